"""The contract of an attention as a function that you can run on your own: `check_attention(fn)`.

An attention must equal its dense definition, in values and gradients, and in cross-attention too. It must not read the
future, padding, packed neighbors or the rest of the batch. Its recurrent form must equal its parallel form, half
precision must be close to float32, and a second call must repeat the first. `_promises` lists the checks and their
bounds; the files `contract_*.py` measure them.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from linnet.attention.base import Mixer, create_mixer
from linnet.errors import InputError, unknown_name_error
from linnet.testing.contract_cross import (
    cross_gradient_difference,
    cross_head_difference,
    cross_leak,
    cross_value_difference,
    has_cross_form,
)
from linnet.testing.contract_definition import definition_gradient_difference, definition_value_difference
from linnet.testing.contract_forms import (
    compiled_form_difference,
    half_form_difference,
    has_recurrent_form,
    recurrent_form_difference,
    reloaded_form_difference,
    repeated_form_difference,
    untrained_form,
)
from linnet.testing.contract_leaks import batch_leak, future_leak, packing_leak, padding_leak
from linnet.testing.contract_trial import Trial, contract_difference

LENGTHS = (1, 7, 63, 64, 100, 257)
HALF = {torch.bfloat16: 0.02, torch.float16: 0.005}  # how far a mixer in half precision may be from float32


@dataclass(frozen=True)
class Check:
    """One check: the largest deviation measured, and the largest allowed."""

    name: str
    worst: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.worst <= self.bound  # a NaN fails

    def __str__(self) -> str:
        name = _promise(self.name) if self.passed else self.name
        return f"{'ok  ' if self.passed else 'FAIL'} {name}: {self.worst:.2e} (allowed {self.bound:.0e})"


# A check is named after its failure; passed, it is printed as the promise that was kept.
PROMISES = {
    "no gradient reaches the inputs": "gradients reach the inputs",
    "reads ": "does not read ",
    " differs": " does not differ",
    " differ ": " do not differ ",
    " changes ": " does not change ",
}


def _promise(name: str) -> str:
    """The promise that holds if the check `name` has passed."""
    for fault, promise in PROMISES.items():
        if fault in name:
            return name.replace(fault, promise, 1)
    return name


@dataclass
class Report:
    """The checks, in the order in which they ran."""

    name: str
    causal: bool
    lengths: tuple[int, ...]  # the requested lengths that the attention accepts
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        found = {check.name: check for check in self.checks}
        if name not in found:
            raise unknown_name_error("check", name, found)
        return found[name]

    def __str__(self) -> str:
        form = "causal" if self.causal else "bidirectional"
        title = f"{self.name}, {form}, {', '.join(map(str, self.lengths))} tokens"
        return "\n".join([title, *(f"  {check}" for check in self.checks)])


def check_attention(
    attention: str | Callable[..., Tensor],
    *,
    causal: bool | None = None,
    heads: int = 2,
    head_dim: int = 8,
    lengths: tuple[int, ...] = LENGTHS,
    compile: bool = False,
    raises: bool = True,
    options: dict[str, Any] | None = None,
) -> Report:
    """Check an attention against the contract; with `raises`, an AssertionError lists the failures.

    `attention` is a mechanism's name, a core, or any function o = f(q, k, v) on (B,H,N,D). A function is checked for
    padding if it takes `key_mask`, and for packing if it takes `segments`. `causal` defaults to the object's attribute.
    If `attention` is a name, the mechanism's mixer is also compared with float32 in half precision.
    """
    mixer: Mixer | None = None
    if isinstance(attention, str):
        if causal is None:
            raise InputError("causal is None: give True or False with a mechanism's name")
        mixer = create_mixer(attention, width=heads * head_dim, heads=heads, causal=causal, **(options or {}))
        attention = mixer.core
    elif options is not None:
        raise InputError("options is given: only a mechanism chosen by name takes options")
    if not callable(attention):
        raise InputError(f"attention is a {type(attention).__name__}: it must be a name, a core or a function")
    if not isinstance(lengths, tuple | list) or not lengths or any(type(N) is not int or N < 1 for N in lengths):
        raise InputError(f"lengths is {lengths!r}: give a list of numbers of tokens, each at least 1")
    causal = bool(getattr(attention, "causal", False)) if causal is None else causal
    training = isinstance(attention, nn.Module) and attention.training
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            trial = Trial(attention, causal, heads, head_dim, tuple(lengths))
            report = Report(trial.name, causal, trial.lengths)
            for name, bound, measure in _promises(trial, compile):
                report.checks.append(Check(name, measure(trial), bound))
            if mixer is not None:
                report.checks.extend(_halves(mixer, trial.lengths[-1]))
    finally:
        if isinstance(attention, nn.Module):
            attention.train(training)
    if raises and not report.passed:
        raise AssertionError(str(report))
    return report


def _halves(mixer: Mixer, N: int) -> Iterator[Check]:
    """Compare a mixer in half precision with float32, on the same rounded parameters and inputs."""
    for dtype, bound in HALF.items():
        half = copy.deepcopy(mixer).eval().to(dtype)
        x = torch.randn(2, N, mixer.width).to(dtype)
        with torch.no_grad():
            worst = contract_difference(half(x).float(), copy.deepcopy(half).float()(x.float()))
        yield Check(f"{str(dtype).removeprefix('torch.')} mixer differs from float32", worst, bound)


def _promises(trial: Trial, compile: bool) -> Iterator[tuple[str, float, Callable[[Trial], float]]]:
    """Yield (name, bound, measurement) of each check that applies."""
    if trial.core is not None and trial.core.has_weights:
        yield "equals its definition, float64", 1e-10, partial(definition_value_difference, dtype=torch.float64)
        yield "equals its definition, float32", 1e-5, partial(definition_value_difference, dtype=torch.float32)
        yield "gradients equal the definition's", 1e-9, definition_gradient_difference
    if trial.causal and max(trial.lengths) > 1:
        yield "reads the future", 0.0, future_leak
    yield "reads batch mates", 1e-6, batch_leak
    if trial.masks:
        yield "padding changes the result", 1e-6, padding_leak
    if trial.packs:
        yield "packing changes the result", 1e-6, packing_leak
    if has_recurrent_form(trial):
        yield "recurrent form differs", 1e-5, recurrent_form_difference
    if trial.core is not None and has_cross_form(trial.core):
        values = "cross-attention differs from its definition"
        yield f"{values}, float64", 1e-10, partial(cross_value_difference, dtype=torch.float64)
        yield f"{values}, float32", 1e-5, partial(cross_value_difference, dtype=torch.float32)
        yield "gradients of cross-attention differ from the definition's", 1e-10, cross_gradient_difference
        yield "cross-attention reads masked keys or batch mates", 1e-6, cross_leak
        yield "shared heads differ from repeated ones", 1e-6, cross_head_difference
    if max(trial.lengths) > 1:
        yield "no gradient reaches the inputs", 0.0, untrained_form
    yield "bfloat16 differs from float32", 0.1, half_form_difference
    yield "a second call differs", 0.0, repeated_form_difference
    if trial.core is not None:
        yield "a reloaded copy differs", 0.0, reloaded_form_difference
    if compile:
        yield "compiled form differs", 1e-6, compiled_form_difference
