"""What the kernels are told: addresses and strides of tensors, and how the work is shared between threads."""

import struct

import torch
from torch import Tensor

from linnet.ops.cpu.build import kernels
from linnet.ops.memory import Maybe

LONG = 256  # tokens that are worth a thread of their own
GROUP = 512  # numbers of a token that are read together, where the heads lie side by side
SMALL = 1 << 18  # multiplications that one thread does before another has woken up


def view(x: Maybe) -> tuple[int, ...]:
    """The kernels' View: an address and three strides."""
    return (0, 0, 0, 0) if x is None else (x.data_ptr(), *x.stride()[:3])


def address(x: Maybe) -> int:
    """Where a tensor without gaps begins."""
    return 0 if x is None else x.data_ptr()


def shares(q: Tensor, work: int) -> tuple[int, int, int]:
    """Threads that take part, heads that are taken together, and spans that a row is cut into where rows are few."""
    B, H, N, D = q.shape
    threads = torch.get_num_threads() if B * H * N * work > SMALL else 1
    spans = max(1, min(threads // (B * H), N // LONG))
    group = max(1, min(H, GROUP // D, B * H // threads)) if q.stride(1) < q.stride(2) else 1
    return min(threads, B * H * spans), group, spans


def call(name: str, *numbers: int) -> None:
    """Call the kernel `name` with its problem, a struct of 64-bit numbers."""
    getattr(kernels().library, name)(struct.pack(f"{len(numbers)}q", *numbers))
