"""One decoding step on the CPU kernels: features, state and output in a single call, since a step is mostly overhead.

If the kernel rejects a step (another type, device, backend or width, or a gradient to keep), the result is None. The
caller then takes its ordinary path, which also raises the errors. The kernel itself checks types, shapes, strides and
LINNET_BACKEND; this file does not.
"""

import ctypes
import struct
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor, empty_like, get_num_threads, is_grad_enabled
from torch._C import _are_functorch_transforms_active as transforms_active
from torch._C import _get_tracing_state as tracing_state
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from linnet.ops.backend import WIDTHS
from linnet.ops.cpu.arguments import SMALL
from linnet.ops.cpu.build import built_cpu_kernels
from linnet.ops.memory import Maybe
from linnet.ops.precision import State

PHI = ("elu", "1+elu", "exp")  # features, in the order of the kernel's numbers
PARTS = ("S", "z", "Szm", "count", "moments")  # what a state may hold, in the kernel's order
CALLS = ("PyTuple_GetItem", "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread")
TABLE = "__dlpack_c_exchange_api__"  # attribute of the tensor class through which C reads tensors


class Mechanism(NamedTuple):
    """The parts of a mechanism's step."""

    phi: str  # of PHI
    state: tuple[str, ...]  # of PARTS
    srms: bool = False  # over the merged heads, at the end
    curve: tuple[float, float, float] = (0.0, 0.0, 0.0)  # c2, c1, c0 of lln
    angles: tuple[type, ...] = ()  # types of theta (D/2,), which rotates q and k by position, and of the mirror u


class Stepper:
    """The steps of one core with `heads` heads and keys of `width`."""

    def __init__(self, how: Mechanism, heads: int, width: int) -> None:
        self.how, self.heads, self.width = how, heads, width
        self.types = (Tensor,) * (3 + len(how.state)) + how.angles
        self.packed: dict[int, bytes] = {}  # the kernel's `Step` for a number of threads

    def __getstate__(self) -> dict[str, Any]:
        """Drop the addresses, which mean nothing in a saved file or another process."""
        return self.__dict__ | {"packed": {}}

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State, *angles: Maybe) -> tuple[Tensor, State] | None:
        """o (B,H,1,E) and the next state, or None; `angles` are those of the mechanism."""
        # Under a transform, a tracer or forward mode, a tensor is more than its own numbers.
        if is_compiling() or transforms_active() or tracing_state() is not None or forward_ad._current_level >= 0:
            return None
        if type(state) is not tuple:
            return None
        given: tuple[Any, ...] = (q, k, v, *state, *angles)
        if tuple(map(type, given)) != self.types or q.is_neg() or k.is_neg() or v.is_neg():  # DLPack cannot express it
            return None
        if is_grad_enabled() and True in [x.requires_grad for x in given]:
            return None
        threads = get_num_threads()
        how = self.packed.get(threads) or self._pack(threads)
        if how is None:
            return None
        o, after = empty_like(v), tuple(map(empty_like, state))
        return (o, after) if _call()(how, (*given, o, *after)) else None

    def _pack(self, threads: int) -> bytes | None:
        """The kernel's `Step`; None if there are no kernels, or none for this width."""
        how, D = self.how, self.width
        if not WIDTHS[0] <= D <= WIDTHS[1] or _call() is None:
            return None
        parts = sum(1 << PARTS.index(part) for part in how.state)
        sizes = self.heads, D, PHI.index(how.phi), parts, len(how.angles), how.srms, threads, SMALL
        self.packed[threads] = struct.pack("5q 8q 3d", *_python(), *sizes, *how.curve)
        return self.packed[threads]


@cache
def _call() -> Any:
    """The kernel; None if there is none, or if torch has no table through which C reads tensors."""
    path = built_cpu_kernels().path
    if path is None or not hasattr(Tensor, TABLE) or ctypes.c_uint32.from_address(_python()[0]).value != 1:
        return None
    function = ctypes.PyDLL(str(path)).linnet_step
    function.argtypes = ctypes.c_char_p, ctypes.py_object
    return function


@cache
def _python() -> tuple[int, ...]:
    """The kernels' `Python`: addresses of the table of tensors, and of functions."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    calls = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in CALLS]
    return pointer(getattr(Tensor, TABLE), b"dlpack_exchange_api"), *calls
