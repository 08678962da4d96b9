"""Cross-attention, where queries are another sequence than the keys, equals its definition and leaks nothing."""

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.errors import UnsupportedError
from linnet.testing.contract_definition import difference_of_definition_gradients
from linnet.testing.contract_trial import Trial, contract_difference

LENGTHS = ((1, 9), (9, 1), (40, 100), (100, 40), (64, 64))  # of queries and of keys


def has_cross_form(core: Core) -> bool:
    """Whether queries may be another sequence than the keys; an option may disable what the mechanism can do."""
    try:
        core.check_cross()
    except UnsupportedError:
        return False
    return not core.causal and core.has_weights


def _cross_inputs(
    trial: Trial, T: int, N: int, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q of T and k, v of N tokens, and a mask that hides keys of its rows on the left, on the right and inside."""
    q, k, v = (torch.randn(3, trial.heads, n, trial.head_dim, dtype=dtype) for n in (T, N, N))
    real, third = torch.ones(3, N, dtype=torch.bool), N // 3
    real[0, :third], real[1, N - third :], real[2, third : 2 * third] = False, False, False
    return q, k, v, real


def _both(core: Core, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
    """The outputs of cross-attention and of its definition; every query counts, even beside masked keys."""
    where = core.layout(q, k, v, real, None, cross=True)
    return core.run(q, k, v, where, False), core.finish(core.definition(q, k, v, where, False))


def cross_value_difference(trial: Trial, dtype: torch.dtype) -> float:
    """Compare outputs with the definition, without a key mask and with one."""
    core, worst = trial.typed(dtype), 0.0
    assert isinstance(core, Core)
    with torch.no_grad():
        for T, N in LENGTHS:
            q, k, v, real = _cross_inputs(trial, T, N, dtype)
            worst = max(worst, *(contract_difference(*_both(core, q, k, v, mask)) for mask in (None, real)))
    return worst


def cross_gradient_difference(trial: Trial) -> float:
    """Compare gradients of the inputs and parameters with the definition's."""
    core, worst = trial.typed(torch.float64), 0.0
    assert isinstance(core, Core)
    for T, N in LENGTHS:
        q, k, v, real = _cross_inputs(trial, T, N, torch.float64)
        leaves = [*(x.requires_grad_() for x in (q, k, v)), *core.parameters()]
        outputs = _both(core, q, k, v, real)
        g = torch.randn_like(outputs[0])
        few = 1e-4 if N == 1 else 1e-5  # beside a single key the gradients of q and k are rounding errors
        worst = max(worst, difference_of_definition_gradients(outputs, leaves, g, few))
    return worst


def cross_leak(trial: Trial) -> float:
    """Compare each row of a masked batch with the row alone, without its padding, and with other hidden keys."""
    core, worst = trial.core, 0.0
    assert core is not None
    with torch.no_grad():
        for T, N in LENGTHS:
            q, k, v, real = _cross_inputs(trial, T, N)
            where = core.layout(q, k, v, real, None, cross=True)
            together = core.run(q, k, v, where, False)
            hidden = ~real[:, None, :, None]
            other = core.run(q, k.masked_fill(hidden, 7.0), v.masked_fill(hidden, 7.0), where, False)
            worst = max(worst, contract_difference(other, together))
            for b in range(3):
                kept = real[b] if b < 2 else torch.ones_like(real[b])  # the hole of the last row stays
                own_q, own_k, own_v = q[b : b + 1], k[b : b + 1, :, kept], v[b : b + 1, :, kept]
                where = core.layout(own_q, own_k, own_v, real[b : b + 1, kept], None, cross=True)
                worst = max(
                    worst, contract_difference(core.run(own_q, own_k, own_v, where, False), together[b : b + 1])
                )
    return worst


def cross_head_difference(trial: Trial) -> float:
    """Compare shared key and value heads with the same heads repeated, including at equal lengths."""
    core, worst = trial.core, 0.0
    assert core is not None
    with torch.no_grad():
        for heads in (n for n in range(1, trial.heads + 1) if trial.heads % n == 0):
            for T, N in LENGTHS:
                q, k, v, real = _cross_inputs(trial, T, N)
                k, v = k[:, :heads], v[:, :heads]
                o = core(q, k, v, key_mask=real)
                k, v = (x.repeat_interleave(trial.heads // heads, dim=1) for x in (k, v))
                where = core.layout(q, k, v, real, None, cross=heads < trial.heads or T != N)
                worst = max(worst, contract_difference(o, core.run(q, k, v, where, False)))
    return worst
