"""Masks, segments and comparisons that the tests of the ops share."""

import subprocess
import sys

import torch
from torch import Tensor

MASKS = (None, "left", "right", "inner", "all")


def key_mask(kind: str | None, B: int, N: int) -> Tensor | None:
    """A mask whose first row is masked as `kind` says; the other rows are all real."""
    if kind is None:
        return None
    real = torch.ones(B, N, dtype=torch.bool)
    third = max(N // 3, 1)
    first = {"left": 0, "right": N - third, "inner": N // 2, "all": 0}[kind]
    real[0, first : N if kind == "all" else first + third] = False
    return real


def segments(B: int, N: int) -> Tensor:
    """Runs of random lengths."""
    return torch.randint(0, 2, (B, N)).cumsum(dim=1) // 3


def specified(real: Tensor | None, ids: Tensor | None, B: int, N: int) -> Tensor:
    """(B,1,N,1): tokens whose output is promised, i.e. all but the padding before or after a run's real tokens."""
    real = torch.ones(B, N, dtype=torch.bool) if real is None else real
    ids = torch.zeros(B, N, dtype=torch.long) if ids is None else ids
    keep = torch.zeros(B, N, dtype=torch.bool)
    for b in range(B):
        start = 0
        for end in range(1, N + 1):
            if end == N or ids[b, end] != ids[b, start]:
                there = real[b, start:end].nonzero().flatten()
                if len(there):
                    keep[b, start + int(there[0]) : start + int(there[-1]) + 1] = True
                start = end
    return keep[:, None, :, None]


def grads(outputs: list[Tensor], leaves: list[Tensor]) -> list[Tensor]:
    """Gradients of a fixed random functional of the outputs."""
    noise = torch.Generator().manual_seed(1)
    total = sum((x * torch.randn(x.shape, generator=noise, dtype=x.dtype)).sum() for x in outputs)
    return list(torch.autograd.grad(total, leaves))


def relative(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest entry of b; infinite if something is not finite."""
    if not (a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-2))


MEMORY = """
import resource, torch
from linnet.ops import {op}
torch.set_num_threads(1)
def run(N):
    q, k, v = (torch.randn(4, 8, N, 64, requires_grad=True) for _ in range(3))
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    {op}(q, k, v).sum().backward()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base
run(128)
print(run(4096) / 1024)
"""


def memory_over_floor(op: str) -> float:
    """Peak memory of forward and backward over the inputs, N = 4,096, in units of output and three gradients."""
    program = [sys.executable, "-c", MEMORY.format(op=op)]
    out = subprocess.run(program, capture_output=True, text=True, check=True, timeout=120)
    return float(out.stdout) / 128  # MiB
