"""Swap softmax for linear attention in an nn.TransformerEncoder, keep the weights, and compare time and outputs."""

import copy
import time

import torch
from torch import Tensor, nn

import linnet

WIDTH, HEADS, LAYERS, TOKENS = 128, 4, 2, 2048


def swap(encoder: nn.TransformerEncoder, attention: str) -> nn.TransformerEncoder:
    """A copy of `encoder` whose layers use `attention` with the same weights."""
    swapped = copy.deepcopy(encoder)
    for layer in swapped.layers:
        new = linnet.MultiheadAttention(WIDTH, HEADS, batch_first=True, attention=attention)
        new.load_state_dict(layer.self_attn.state_dict())  # the names are torch's
        layer.self_attn = new
    return swapped.eval()


@torch.no_grad()
def timed(encoder: nn.TransformerEncoder, x: Tensor, ignore: Tensor) -> tuple[Tensor, float]:
    """The output, and the milliseconds of the fastest of three calls."""
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        y = encoder(x, src_key_padding_mask=ignore)
        seconds.append(time.perf_counter() - start)
    return y, 1000 * min(seconds)


def main() -> None:
    """Compare three encoders on one batch with padding."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=256, batch_first=True)
    encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    x = torch.randn(1, TOKENS, WIDTH)
    ignore = torch.zeros(1, TOKENS, dtype=torch.bool)
    ignore[:, TOKENS - 100 :] = True  # as in torch, True means padding
    real = ~ignore[0]

    expected, before = timed(encoder, x, ignore)
    print(f"torch's own softmax: {before:6.1f} ms")
    for attention in ("softmax", "lln"):
        y, after = timed(swap(encoder, attention), x, ignore)
        difference = (y - expected)[:, real].abs().max()
        print(f"linnet's {attention:10s}: {after:6.1f} ms, largest difference {difference:.1e}")
    print("softmax gives the same numbers; lln approximates them, so fine-tune after the swap")


if __name__ == "__main__":
    main()
