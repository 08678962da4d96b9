"""Which implementation of an op runs: `backend=`, else LINNET_BACKEND, else the best one that can."""

import os

import torch
from torch import Tensor

from linnet.errors import InputError, UnsupportedError, unknown

NAMES = ("reference", "torch", "cpu", "triton")
WIDTHS = 8, 256  # of heads, that the CPU's kernels take


def choose(op: str, available: tuple[str, ...], backend: str | None, hurdle: str = "") -> str:
    """The backend to use for `op`; an impossible choice is an error, never a silent fallback.

    `hurdle` says why the CPU's kernels cannot take these inputs; without one they are the first choice.
    """
    name = os.environ.get("LINNET_BACKEND") or None if backend is None else backend
    if name is None:
        return "cpu" if "cpu" in available and not hurdle and not no_kernels() else "torch"
    source = "LINNET_BACKEND" if backend is None else "backend"
    if not isinstance(name, str) or name not in NAMES:
        raise InputError(f"{source}: {unknown('backend', name, NAMES)}")
    if name not in available:
        raise UnsupportedError(f"backend {name!r} does not implement {op}: one of {', '.join(available)}")
    if name == "cpu" and (hurdle or no_kernels()):
        raise UnsupportedError(f"{source} 'cpu' cannot run this {op}: {hurdle or no_kernels()}")
    return name


def cpu_hurdle(q: Tensor, v: Tensor) -> str:
    """Why the CPU's kernels do not take these tensors; nothing if they do."""
    D, E = q.shape[3], v.shape[3]
    if v.device.type != "cpu":
        return f"tensors are on {v.device}"
    if v.dtype != torch.float32:
        return f"tensors are {v.dtype}, kernels take float32"
    if not (WIDTHS[0] <= D <= WIDTHS[1] and WIDTHS[0] <= E <= WIDTHS[1]):
        return f"widths are {D} and {E}, kernels take {WIDTHS[0]} to {WIDTHS[1]}"
    return ""


@torch.compiler.assume_constant_result
def no_kernels() -> str:
    """Why there are no compiled kernels here; nothing if there are. The first call compiles them."""
    from linnet.ops.cpu.build import kernels

    return kernels().reason
