"""Stream tokens through a layer with a state of constant size, and compare its memory with a softmax cache."""

import torch
from torch import Tensor

import linnet

WIDTH, HEADS, PROMPT, STREAMED = 256, 4, 512, 256


def kib(state: tuple[Tensor, ...]) -> float:
    """The size of a state in KiB."""
    return sum(part.numel() * part.element_size() for part in state) / 1024


@torch.no_grad()
def stream(name: str, x: Tensor) -> tuple[Tensor, float, float]:
    """The outputs token by token, and the size of the state after the prompt and at the end."""
    torch.manual_seed(0)
    mixer = linnet.create_mixer(name, width=WIDTH, heads=HEADS, causal=True).eval()
    y, state = mixer.prefill(x[:, :PROMPT])
    outputs, before = [y], kib(state)
    for t in range(PROMPT, x.shape[1]):
        y, state = mixer.step(x[:, t : t + 1], state)  # x_t and y_t: (batch, 1, width)
        outputs.append(y)
    streamed = torch.cat(outputs, dim=1)
    torch.testing.assert_close(streamed, mixer(x), atol=1e-4, rtol=1e-3)  # equal to the parallel form
    return streamed, before, kib(state)


def main() -> None:
    """Compare two linear mechanisms with softmax."""
    torch.manual_seed(0)
    x = torch.randn(1, PROMPT + STREAMED, WIDTH)
    for name in ("norm", "lln", "softmax"):
        _, before, after = stream(name, x)
        print(f"{name:8s} {before:7.0f} KiB after {PROMPT} tokens, {after:7.0f} KiB after {x.shape[1]}")


if __name__ == "__main__":
    main()
