"""Train a small TransNormer on your own text, in plain PyTorch, and let it write: train_on_text.py FILE [STEPS]."""

import sys
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import linnet

BATCH, CONTEXT = 8, 128


def draw(text: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A batch of pieces of the text, and the same pieces one byte later."""
    starts = torch.randint(len(text) - CONTEXT, (BATCH,), generator=generator).tolist()
    pieces = torch.stack([text[start : start + CONTEXT + 1] for start in starts])
    return pieces[:, :-1], pieces[:, 1:]


def main(path: str, steps: int = 300) -> None:
    """Train on the bytes of a file; a byte is a token, so there is nothing to learn or store besides the model."""
    text = torch.frombuffer(bytearray(Path(path).read_bytes()), dtype=torch.uint8).long()
    if len(text) <= CONTEXT:
        sys.exit(f"{path} has {len(text)} bytes: more than {CONTEXT} are needed")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    model = linnet.create_model("transnormer_t2_lm_small", vocab_size=256, width=128, heads=4, ffn_width=256)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(text):,} bytes of text")

    for step in range(1, steps + 1):
        ids, following = draw(text, generator)
        loss = cross_entropy(model(ids).transpose(1, 2), following)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % max(1, steps // 5) == 0:
            print(f"step {step}: {loss.item() / 0.6931:.2f} bits per byte")

    model.eval()
    prompt = text[None, :32]
    written = model.generate(prompt, max_new_tokens=64, temperature=0.7, seed=0)[0]
    print(repr(bytes(written.tolist()).decode("utf-8", "replace")))


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], *map(int, sys.argv[2:3]))
