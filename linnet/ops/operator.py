"""A differentiable operator in its two forms: one custom op to the compiler, an autograd function to everyone else.

A custom op costs a fifth of a millisecond a call and a second at the first one; short sequences would feel both.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_PLAIN = (Tensor, torch.nn.Parameter)


class Operator:
    """`forward`, known to the compiler as linnet::`name`; `fake` makes its results without computing them.

    `gradient` is the pair that torch.library.register_autograd takes: save(ctx, inputs, output), backward(ctx, ...).
    """

    def __init__(
        self,
        name: str,
        forward: Callable[..., Any],
        fake: Callable[..., Any],
        gradient: tuple[Callable[..., None], Callable[..., Any]] | None = None,
    ) -> None:
        self._forward = forward
        self._function: Any = None
        self._op = torch.library.custom_op(f"linnet::{name}", forward, mutates_args=())
        self._op.register_fake(fake)
        if gradient is not None:
            save, backward = gradient
            self._op.register_autograd(backward, setup_context=save)

            def record(ctx: Any, *args: Any) -> Any:  # both in one: torch is slow to bind the arguments of two
                out = forward(*args)
                save(ctx, args, out)
                return out

            parts = {"forward": staticmethod(record), "backward": staticmethod(backward)}
            self._function = type(name, (torch.autograd.Function,), parts)

    def __call__(self, *args: Any) -> Any:
        if not is_plain(*args):
            return self._op(*args)
        if not torch.is_grad_enabled():
            return self._forward(*args)
        # A backward pass that is itself recorded has no gradient: the custom op says so, the loop would give 0.
        return self._op(*args) if self._function is None else self._function.apply(*args)


def is_plain(*args: Any) -> bool:
    """Whether no compiler, tracer, transform of torch.func or extension follows a call with these arguments."""
    if torch._C._are_functorch_transforms_active() or torch._C._get_tracing_state() is not None:
        return False
    # The compiler's tensors, and those of other extensions, are of another class than Tensor.
    return not torch.compiler.is_compiling() and all(type(x) in _PLAIN for x in args if isinstance(x, Tensor))
