"""Embeddings do not depend on the batch that a text is in."""

import torch

from linnet.hf.embedding import embed_texts


@torch.no_grad()
def test_embeddings_are_means_over_real_tokens(stock):
    model = stock("bert_encoder")
    texts = [torch.randint(3, 99, (n,)).tolist() for n in (5, 30, 1, 12, 12)]
    found = embed_texts(model, texts, batch_tokens=40)
    for text, embedding in zip(texts, found, strict=True):
        mean = model(torch.tensor([text])).last_hidden_state[0].mean(dim=0)
        torch.testing.assert_close(embedding, mean / mean.norm(), rtol=1e-4, atol=1e-5)
