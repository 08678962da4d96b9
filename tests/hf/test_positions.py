"""Stretched positions: old ones lie where they should among the new, longer texts are read, saving keeps them."""

import pytest
import torch

from linnet.errors import InputError, UnsupportedError
from linnet.hf import load, patch, stretch_positions


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "electra"])
def test_a_stretched_encoder_reads_longer_texts(name, stock, tmp_path):
    model = stock(name)
    (table,) = [m for key, m in model.named_modules() if key.endswith("position_embeddings")]
    first = 0 if table.padding_idx is None else table.padding_idx + 1
    old = table.weight[first:].clone()
    had = len(old)
    assert stretch_positions(model, 3 * had - 2) is model  # so that every third position is an old one
    torch.testing.assert_close(table.weight[first::3], old)
    torch.testing.assert_close(table.weight[first + 1], (2 * old[0] + old[1]) / 3)
    ids, mask = torch.randint(3, 99, (2, 2 * had)), torch.ones(2, 2 * had, dtype=torch.long)
    mask[1, had:] = 0
    patch(model, "lln_diag")
    wanted = model(input_ids=ids, attention_mask=mask)[0]
    assert wanted.isfinite().all()
    model.save_pretrained(tmp_path)
    assert torch.equal(load(tmp_path)(input_ids=ids, attention_mask=mask)[0], wanted)


def test_what_cannot_be_stretched_is_refused(stock):
    for name in ("modernbert", "vit"):
        with pytest.raises(UnsupportedError, match="has no table of positions"):
            stretch_positions(stock(name), 128)
    for tokens in (64, 3, True, 2**21, "100"):
        with pytest.raises(InputError, match=r"tokens is .*: the model has 64; allowed are 65 to 1048576"):
            stretch_positions(stock("bert"), tokens)
