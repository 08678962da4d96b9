"""Which implementation of an op runs: `backend=`, else LINNET_BACKEND, else the best one that can."""

import os

import torch
from torch import Tensor
from torch.autograd import forward_ad

from linnet.errors import InputError, UnsupportedError, unknown_name_error
from linnet.ops.custom_op import custom_op_is_plain

NAMES = ("reference", "torch", "cpu", "triton")
WIDTHS = 8, 256  # the least and the largest head width of the kernels


def choose_kernel_backend(op: str, q: Tensor, v: Tensor, backend: str | None, hurdle: str = "") -> str:
    """`choose_backend` for an op that has all backends; `hurdle` says why no kernel can run."""
    return choose_backend(
        op, NAMES, backend, hurdle or cpu_backend_hurdle(q, v), hurdle or _triton_hurdle(q, v), v.device.type
    )


def choose_backend(
    op: str, available: tuple[str, ...], backend: str | None, hurdle: str = "", on_gpu: str = "", device: str = "cpu"
) -> str:
    """Choose the backend for `op`; an impossible choice is an error, never a silent fallback.

    `hurdle` says why the CPU kernels cannot take these inputs, `on_gpu` why the Triton kernels cannot. Kernels without
    a hurdle are the first choice on their device.
    """
    name, source = requested_backend(backend)
    if name is None:
        if "triton" in available and device == "cuda" and not on_gpu and not no_triton_backend(device):
            return "triton"
        return "cpu" if "cpu" in available and not hurdle and not no_cpu_backend() else "torch"
    if name not in available:
        raise UnsupportedError(f"backend {name!r} does not implement {op}: one of {', '.join(available)}")
    if name == "cpu" and (hurdle or no_cpu_backend()):
        raise UnsupportedError(f"{source} 'cpu' cannot run this {op}: {hurdle or no_cpu_backend()}")
    if name == "triton" and (on_gpu or no_triton_backend(device)):
        raise UnsupportedError(f"{source} 'triton' cannot run this {op}: {on_gpu or no_triton_backend(device)}")
    return name


def requested_backend(backend: str | None = None) -> tuple[str | None, str]:
    """The requested backend or None, and where it was requested; a one-line error for an unknown name."""
    name = os.environ.get("LINNET_BACKEND") or None if backend is None else backend
    source = "LINNET_BACKEND" if backend is None else "backend"
    if name is not None and (not isinstance(name, str) or name not in NAMES):
        raise InputError(f"{source}: {unknown_name_error('backend', name, NAMES)}")
    return name, source


def cpu_backend_hurdle(q: Tensor, v: Tensor) -> str:
    """Why the CPU kernels do not take these tensors; empty if they do."""
    D, E = q.shape[3], v.shape[3]
    if v.device.type != "cpu":
        return f"tensors are on {v.device}"
    if v.dtype != torch.float32:
        return f"tensors are {v.dtype}, kernels take float32"
    return _width_hurdle(D, E)


def cpu_backend_serves(q: Tensor, v: Tensor) -> bool:
    """Whether the CPU kernels may replace torch: they can run, and no other backend is requested."""
    return (
        (os.environ.get("LINNET_BACKEND") or "cpu") == "cpu" and not cpu_backend_hurdle(q, v) and not no_cpu_backend()
    )


def backend_serves(op: str, x: Tensor) -> bool:
    """Whether a kernel runs this pointwise `op`; compilers fuse it themselves, transforms need plain operations."""
    if (
        not custom_op_is_plain(x)
        or x.dtype != torch.float32
        or x.device.type != "cpu"
        or forward_ad._current_level >= 0
    ):
        return False
    return choose_backend(op, ("reference", "torch", "cpu"), None) == "cpu"


def _triton_hurdle(q: Tensor, v: Tensor) -> str:
    """Why the Triton kernels do not take these tensors; empty if they do."""
    if v.device.type not in ("cuda", "cpu"):
        return f"tensors are on {v.device}"
    if v.dtype == torch.float64:
        return "tensors are torch.float64, kernels take float32, bfloat16 and float16"
    return _width_hurdle(q.shape[3], v.shape[3])


def _width_hurdle(D: int, E: int) -> str:
    if WIDTHS[0] <= D <= WIDTHS[1] and WIDTHS[0] <= E <= WIDTHS[1]:
        return ""
    return f"widths are {D} and {E}, kernels take {WIDTHS[0]} to {WIDTHS[1]}"


@torch.compiler.assume_constant_result
def no_triton_backend(device: str) -> str:
    """Why the Triton kernels do not run on such a device; empty if they do. The first call imports Triton."""
    try:
        from linnet.ops.triton.tiles import tiles_interpreted
    except ImportError as error:
        return f"triton cannot be imported ({error})"
    on_cpu = "tensors are on cpu, where Triton runs only with TRITON_INTERPRET=1 in the environment"
    return on_cpu if device == "cpu" and not tiles_interpreted() else ""


@torch.compiler.assume_constant_result
def no_cpu_backend() -> str:
    """Why there are no compiled kernels; empty if there are. The first call compiles them."""
    from linnet.ops.cpu.build import built_cpu_kernels

    return built_cpu_kernels().reason
