"""Call the compiled kernels with random tensors: `python -m tests.prove.fuzz alone|threads NUMBER`.

Prints how many cases were run. A wrong result, or a report of a sanitizer, ends it with another code than 0.
"""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from linnet import ops
from linnet.errors import LinnetError
from linnet.ops.cpu import build

OPS = (ops.linear_attention, ops.exp_attention, ops.block_attention)


def draw_case(seed: int) -> tuple[Any, list[Tensor], dict[str, Any]]:
    """An op, its tensors with odd shapes and strides, and its options."""
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    op = rng.choice(OPS)
    B, H, N = rng.randint(1, 3), rng.randint(1, 3), rng.choice((1, 2, 7, 64, 65, 200))
    D = rng.choice((8, 9, 16, 33, 64))
    E = D if op is ops.block_attention else rng.choice((8, 11, 17, 40))
    tensors = []
    for width in (D, D, E):
        x = torch.randn(B, N, H, width + rng.choice((0, 0, 3)), generator=generator)[..., :width]
        x = x.transpose(1, 2) if rng.random() < 0.7 else x.transpose(1, 2).contiguous()
        tensors.append(x.detach().requires_grad_())
    if op is ops.linear_attention:
        tensors[:2] = [t.detach().abs().requires_grad_() for t in tensors[:2]]
    given: dict[str, Any] = {"causal": rng.random() < 0.6}
    if rng.random() < 0.4:
        given["key_mask"] = torch.arange(N)[None].expand(B, N) < rng.randint(1, N)
    if rng.random() < 0.3:
        given["segments"] = (torch.arange(N)[None].expand(B, N) // rng.randint(1, N)).contiguous()
    if op is ops.block_attention:
        given |= {"block": rng.choice((1, 4, 64)), "kind": rng.choice(("softmax", "rela"))}
    if op is ops.linear_attention:
        given["normalize"] = rng.random() < 0.5
    return op, tensors, given


def run_case(seed: int, backend: str) -> list[Tensor] | None:
    """The result and the gradients of a case; None if the op refuses it."""
    op, tensors, given = draw_case(seed)
    try:
        o = op(*tensors, **given, backend=backend)
    except LinnetError:
        return None
    real = given.get("key_mask")
    o = o if real is None else torch.where(real[:, None, :, None], o, 0)  # that of padding is not specified
    o.square().sum().backward()
    return [o.detach(), *(t.grad for t in tensors if t.grad is not None)]


def check_case(seed: int) -> int:
    """1 if the kernels ran and agree with PyTorch's path, 0 if they refused."""
    found = run_case(seed, "cpu")
    if found is None:
        return 0
    wanted = run_case(seed, "torch")
    assert wanted is not None
    scale = max(
        1e-2, *(float(b.abs().max()) for b in wanted)
    )  # of all: beside a single key, some gradients are exactly 0
    for a, b in zip(found, wanted, strict=True):
        error = float((a.double() - b.double()).abs().max()) / scale
        assert error < 1e-4, (seed, error, draw_case(seed)[0].__name__, draw_case(seed)[2])
    return 1


def main() -> int:
    """The program."""
    kind, number = sys.argv[1], int(sys.argv[2])
    build.SECONDS = 3600  # sanitizers make the compiler slow
    if kind == "alone":
        print("cases", sum(check_case(seed) for seed in range(number)))
        return 0
    torch.set_num_threads(1)
    alone = [run_case(seed, "cpu") for seed in range(number)]
    with ThreadPoolExecutor(max_workers=8) as pool:
        together = list(pool.map(lambda seed: run_case(seed, "cpu"), range(number)))
    for seed, (a, b) in enumerate(zip(alone, together, strict=True)):
        same = (a is None) == (b is None) and (a is None or all(torch.equal(x, y) for x, y in zip(a, b, strict=True)))
        assert same, f"case {seed} differs in eight threads"
    print("cases", sum(each is not None for each in alone))
    return 0


if __name__ == "__main__":
    sys.exit(main())
