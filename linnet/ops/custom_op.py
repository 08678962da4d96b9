"""A differentiable operator in two forms: a custom op for compilers, a plain autograd function for eager calls.

A custom op costs a fifth of a millisecond per call, and a second at the first call, too much for short sequences.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from linnet.errors import UnsupportedError
from linnet.ops.flops import count_flops

_PLAIN = (Tensor, torch.nn.Parameter)


class CustomOp:
    """`forward`, which compilers see as linnet::`name`; `fake` allocates its results without computing them.

    `gradient` is the pair that torch.library.register_autograd takes: save(ctx, inputs, output), backward(ctx, ...).
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        fake: Callable[..., Any],
        gradient: tuple[Callable[..., None], Callable[..., Any]] | None = None,
    ) -> None:
        self._name, self._forward = name, forward
        self._function: Any = None
        self._op = torch.library.custom_op(f"linnet::{name}", forward, mutates_args=())
        self._op.register_fake(fake)
        if gradient is not None:
            save, backward = gradient
            self._op.register_autograd(backward, setup_context=save)

            def record(ctx: Any, *args: Any) -> Any:  # both in one function: torch is slow to bind the arguments of two
                out = forward(*args)
                save(ctx, args, out)
                return out

            self._function = _function(name, forward=record, backward=backward)
        save, backward = gradient or (_save_nothing, _refuse_second_derivative)
        # For transforms of torch.func, which do not support a custom op with a gradient.
        self._transformed = _function(
            name, forward=self._op, setup_context=save, backward=backward, vmap=self._one_by_one
        )

    def __call__(self, *args: Any) -> Any:
        _refuse_forward_mode(args)
        if torch._C._are_functorch_transforms_active():
            return self._transformed.apply(*args)
        if not custom_op_is_plain(*args):
            if not torch.compiler.is_compiling() and torch._C._len_torch_dispatch_stack():
                count_flops(self._name, self._op._opoverload.overloadpacket, self._forward)
            return self._op(*args)
        if not torch.is_grad_enabled():
            return self._forward(*args)
        # A recorded backward pass has no gradient: the custom op raises an error, the loop would give 0.
        return self._op(*args) if self._function is None else self._function.apply(*args)

    def _one_by_one(self, info: Any, dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        """Under torch.vmap: computes the samples one by one and stacks their results along a first axis."""
        pairs = list(zip(args, dims, strict=True))
        outs = [self(*(x if dim is None else x.select(dim, i) for x, dim in pairs)) for i in range(info.batch_size)]
        if isinstance(outs[0], Tensor):
            return torch.stack(outs), 0
        return tuple(torch.stack(parts) for parts in zip(*outs, strict=True)), (0,) * len(outs[0])


def _function(name: str, **parts: Callable[..., Any]) -> Any:
    """An autograd function of these parts."""
    return type(name, (torch.autograd.Function,), {part: staticmethod(fn) for part, fn in parts.items()})


def _save_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep nothing for the backward pass."""


def _refuse_second_derivative(ctx: Any, *gradients: Tensor) -> None:
    raise UnsupportedError("second derivatives are not supported: only first-order gradients are")


def custom_op_is_plain(*args: Any) -> bool:
    """Whether a call with these arguments is invisible to compilers, tracers, counters, torch.func and extensions."""
    if torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None:
        return False
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():  # a mode such as FlopCounterMode
        return False
    # Compilers and other extensions use subclasses of Tensor.
    return all(type(x) in _PLAIN for x in args if isinstance(x, Tensor))


def _refuse_forward_mode(args: tuple[Any, ...]) -> None:
    """Raise: a custom backward pass would silently give zero tangents."""
    if torch.compiler.is_compiling() or forward_ad._current_level < 0:
        return
    if any(isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in args):
        raise UnsupportedError("forward-mode differentiation (jvp) is not supported: use reverse mode (backward, grad)")
