"""The arguments of the kernels: addresses and strides of checked tensors, and the share of each thread."""

import struct
from operator import mul

import torch
from torch import Tensor

from linnet.errors import InputError
from linnet.ops.cpu.build import built_cpu_kernels
from linnet.ops.memory import Maybe

LONG = 256  # fewest tokens worth a separate thread
GROUP = 512  # numbers of a token that are read together if the heads are adjacent
SMALL = 1 << 18  # multiplications that one thread finishes before another has woken up
WHOLE = dict.fromkeys(("run", "ids", "position", "seed", "spans", "band", "length", "budget"), torch.int64)
TYPES: dict[str, torch.dtype | None] = {"real": torch.bool, **WHOLE, "theta": None, "u": None}  # others are float32


def check_kernel_arguments(op: str, **tensors: tuple[Maybe, tuple[int, ...]]) -> None:
    """Raise unless each tensor has this shape, the type that belongs to its name, and memory for all its numbers.

    Every native call begins with this check, in the backward pass too: a saved tensor may have changed through `.data`,
    a hook on saved tensors or a resized storage, and a kernel would read past its end.
    """
    for name, (x, shape) in tensors.items():
        if x is None:
            continue
        dtype = TYPES.get(name, torch.float32)
        if x.shape != shape or not x.is_cpu or (dtype is not None and x.dtype is not dtype):
            kind = "" if dtype is None else f"{dtype} "
            found, allowed = f"{x.dtype} {tuple(x.shape)} on {x.device}", f"{kind}{tuple(shape)} on cpu"
            raise InputError(f"{op}: {name} is {found}: it must be {allowed}, and stay so until the backward pass")
        held = x.untyped_storage().nbytes()
        used = x.storage_offset() * x.itemsize + (x.nbytes if x.is_contiguous() else _extent(x))
        if held < used and x.numel():
            raise InputError(f"{op}: the storage of {name} has {held} bytes: it must hold {used}")


def _extent(x: Tensor) -> int:
    """Bytes from the first number of x to the end of its last."""
    strides = x.stride()
    return (sum(map(mul, strides, x.shape)) - sum(strides) + 1) * x.itemsize if x.numel() else 0


def kernel_argument_sizes(op: str, q: Tensor, v: Tensor) -> tuple[int, int, int, int, int]:
    """B, H, N, D and E, or a one-line error unless both tensors have four axes."""
    if q.dim() != 4 or v.dim() != 4:
        shapes = f"q {tuple(q.shape)}, v {tuple(v.shape)}"
        raise InputError(f"{op}: {shapes}: each must have four axes (batch, heads, tokens, width)")
    return *q.shape, v.shape[3]


def kernel_argument_view(x: Maybe) -> tuple[int, ...]:
    """The kernels' View: an address and three strides."""
    return (0, 0, 0, 0) if x is None else (x.data_ptr(), *x.stride()[:3])


def kernel_argument_address(x: Maybe) -> int:
    """Where a tensor without gaps begins."""
    return 0 if x is None else x.data_ptr()


def kernel_argument_shares(q: Tensor, work: int) -> tuple[int, int, int]:
    """The number of threads, of heads per item, and of spans per row if there are few rows."""
    B, H, N, D = q.shape
    threads = torch.get_num_threads() if B * H * N * work > SMALL else 1
    spans = max(1, min(threads // (B * H), N // LONG))
    group = max(1, min(H, GROUP // D, B * H // threads)) if q.stride(1) < q.stride(2) else 1
    return min(threads, B * H * spans), group, spans


def call_kernel_with_arguments(name: str, *fields: int | Maybe) -> None:
    """Call the kernel `name` with its problem, a struct of 64-bit numbers and of addresses of tensors without gaps."""
    numbers = [x if isinstance(x, int) else kernel_argument_address(x) for x in fields]
    getattr(built_cpu_kernels().library, name)(struct.pack(f"{len(numbers)}q", *numbers))
