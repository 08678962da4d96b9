"""The gated linear unit: act(a) * b of one tensor [a, b], in one pass each way where the CPU kernels run."""

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import gelu, relu, silu

from linnet.errors import InputError
from linnet.ops.backend import backend_serves

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"silu": silu, "gelu": gelu, "relu": relu, "identity": lambda x: x}


def glu(x: Tensor, act: str) -> Tensor:
    """act(a) * b (..., w) for [a, b] = x (..., 2w); `act` is a name in ACTIVATIONS, and "gelu" is the exact GELU."""
    if x.shape[-1] % 2:
        raise InputError(f"x has shape {tuple(x.shape)}: a gated unit halves the last axis, which must be even")
    if act in ("silu", "relu") and x.numel() and backend_serves("glu", x):
        from linnet.ops.cpu.glu import glu as kernel

        y: Tensor = kernel(x.reshape(-1, x.shape[-1]), act)
        return y.view(*x.shape[:-1], -1)
    a, b = x.chunk(2, dim=-1)
    return ACTIVATIONS[act](a) * b  # M49


def silu_gate(a: Tensor, b: Tensor) -> Tensor:
    """silu(a) * b of two tensors (..., w)."""
    if a.shape == b.shape and a.numel() and backend_serves("glu", a) and backend_serves("glu", b):
        from linnet.ops.cpu.glu import gate as kernel

        y: Tensor = kernel(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), "silu")
        return y.view(a.shape)
    return silu(a) * b  # M49
