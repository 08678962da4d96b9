"""The other forms of an attention give the same result: recurrent, bfloat16, called again, reloaded, compiled."""

import torch
from torch import nn

from linnet.errors import UnsupportedError
from linnet.testing.contract_trial import Trial, contract_difference


def has_recurrent_form(trial: Trial) -> bool:
    """Whether there is a recurrent form; an option may disable the one that the mechanism has."""
    if trial.core is None or not (trial.core.recurrent and trial.causal):
        return False
    try:
        trial.core.check_recurrent()
    except UnsupportedError:
        return False
    return True


def recurrent_form_difference(trial: Trial) -> float:
    """Compare a prefill, a second, padded one from its state, and single steps with the parallel form."""
    core, worst = trial.core, 0.0
    assert core is not None
    with torch.no_grad():
        for N in trial.lengths:
            q, k, v = trial.inputs(N)
            whole = core(q, k, v)
            first, second = max(1, N // 3), max(1, N - N // 4)
            o, state = core.prefill(q[:, :, :first], k[:, :, :first], v[:, :, :first])
            parts = [o]
            if second > first:
                wide = [nn.functional.pad(x[:, :, first:second], (0, 0, 3, 2), value=7.0) for x in (q, k, v)]
                mask = torch.zeros(2, second - first + 5, dtype=torch.bool)
                mask[:, 3:-2] = True
                o, state = core.prefill(wide[0], wide[1], wide[2], key_mask=mask, state=state)
                parts.append(o[:, :, 3:-2])
            for t in range(max(first, second), N):
                o, state = core.step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state)
                parts.append(o)
            worst = max(worst, contract_difference(torch.cat(parts, dim=2), whole))
    return worst


def untrained_form(trial: Trial) -> float:
    """1 if neither q, k nor v gets a gradient; a function may use only one of them."""
    inputs = [x.requires_grad_() for x in trial.inputs(max(trial.lengths))]
    o = trial.fn(*inputs)
    if not o.requires_grad:
        return 1.0
    gradients = torch.autograd.grad(o.square().sum(), inputs, allow_unused=True)
    return float(not any(g is not None and g.any() for g in gradients))


def half_form_difference(trial: Trial) -> float:
    """Compare bfloat16 with float32 on the same rounded inputs."""
    with torch.no_grad():
        N = trial.lengths[-1]
        rounded = [x.bfloat16() for x in trial.inputs(N)]
        try:
            o = trial.typed(torch.bfloat16)(*rounded).float()
        except RuntimeError:
            return float("inf")
        return contract_difference(o, trial.fn(*(x.float() for x in rounded)))


def repeated_form_difference(trial: Trial) -> float:
    """Call twice with the same inputs."""
    with torch.no_grad():
        q, k, v = trial.inputs(trial.lengths[-1])
        return contract_difference(trial.fn(q, k, v), trial.fn(q, k, v))


def reloaded_form_difference(trial: Trial) -> float:
    """Compare with a new core that has only the saved parameters and buffers."""
    core = trial.core
    assert core is not None
    fresh = type(core)(core.heads, core.head_dim, core.causal, core.options)
    fresh.load_state_dict(core.state_dict())
    with torch.no_grad():
        q, k, v = trial.inputs(trial.lengths[-1])
        return contract_difference(fresh.eval()(q, k, v), core(q, k, v))


def compiled_form_difference(trial: Trial) -> float:
    """Compare the compiled form with the eager one, in values and gradients."""
    worst = 0.0
    torch._dynamo.reset()
    compiled = torch.compile(trial.fn, fullgraph=True, backend="aot_eager")
    for N in trial.lengths[-2:]:
        inputs = [x.requires_grad_() for x in trial.inputs(N)]
        outputs = [trial.fn(*inputs), compiled(*inputs)]
        g = torch.randn_like(outputs[0])
        eager, traced = (torch.autograd.grad(o, inputs, g) for o in outputs)
        pairs = zip([outputs[0], *eager], [outputs[1], *traced], strict=True)
        worst = max(worst, *(contract_difference(b, a) for a, b in pairs))
    return worst
