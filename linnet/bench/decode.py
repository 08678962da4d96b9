"""`bench decode`: microseconds per token and bytes of state as the context grows, for cores and for models."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from linnet.attention.base import Core, create_mixer, describe_attention
from linnet.bench.measure import Bench, Group
from linnet.bench.memory import Job
from linnet.errors import UnsupportedError
from linnet.models.backbone import Model, ModelState
from linnet.models.config import ModelConfig
from linnet.models.presets import preset
from linnet.ops.precision import State
from linnet.registry import ATTENTION

H, D = 8, 64
START = 128  # tokens that are really read; for a longer context, the state is extended
CONTEXTS, BATCHES = (128, 1024, 8192, 65536), (1, 8, 32)
VOCABULARY = 8192
MOST = 2**31  # a step with a larger state, in bytes, is not measured
CACHE, T2 = "torch SDPA, cache in place", "transnormer_t2"


def decode_bench(lengths: Sequence[int] | None = None, quick: bool = False, only: str = "") -> Bench:
    """The plan: every mechanism with a recurrent state; whole models at batch 1 only."""
    contexts = list(lengths or ((128, 256) if quick else CONTEXTS))
    for context in contexts:
        if context % START:
            raise UnsupportedError(f"context is {context}: it must be a multiple of {START}")
    names = [name for name in ATTENTION.names() if describe_attention(name)["recurrent"]]
    cores = [name for name in [*names, CACHE] if only in name]
    models = [name for name in [*names, T2] if only in name]
    batches = (1, 2) if quick else BATCHES
    groups = [Group([_job("core", name, batch, N) for name in cores]) for batch in batches for N in contexts] + [
        Group([_job("model", name, 1, N) for name in models]) for N in (contexts[-1:] if quick else contexts)
    ]
    sizes = {"contexts": contexts, "batches": list(batches), "only": only}
    model = {"layers": 6, "width": H * D, "vocabulary": VOCABULARY}
    settings = {"heads": H, "head_dim": D, "type": "float32", "model": model, **sizes}
    return Bench("decode", "linnet.bench.decode", prepare_decode, groups, [], settings, torch.no_grad)


def _job(table: str, name: str, batch: int, context: int) -> dict[str, Any]:
    return {"table": table, "case": name, "form": "causal", "pass": "step", "batch": batch, "tokens": context}


class _Step:
    """A step to measure, always from the same state."""

    def __init__(self, step: Callable[[], object], state: Sequence[Any]) -> None:
        self.step, self.facts = step, {"state": _bytes(state)}

    def __call__(self) -> None:
        self.step()


def prepare_decode(job: Job) -> Callable[[], object]:
    """The step for a job."""
    torch.manual_seed(0)
    B, N, name = job["batch"], job["tokens"], job["case"]
    if job["table"] == "model":
        model, ids = Model(_config(name, N)).eval(), torch.randint(VOCABULARY, (B, START))
        after = _model_state(model, ids, N)
        return _Step(partial(model.step, ids[:, :1], after), after)
    if name == CACHE:
        cache, token = _cache(B, N), torch.randn(3, B, H, 1, D)
        return _Step(partial(_cache_step, token[0], token[1], token[2], *cache), cache)
    core = decode_core(name, N)
    with torch.no_grad():
        state = grow_decode_state(core, core.prefill(*decode_inputs(core, B, START))[1], N)
    return _Step(partial(core.step, *decode_inputs(core, B, 1), state), state)


def decode_core(name: str, N: int) -> Core:
    """The core of a mechanism with 8 heads of width 64, or of a layer of that width if it chooses its own heads."""
    return create_mixer(name, width=H * D, heads=H, causal=True, **_room(name, N)).core.eval()


def decode_inputs(core: Core, B: int, N: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random q, k and v."""
    q, k, v = torch.randn(3, B, core.heads, N, core.head_dim).unbind(0)
    return q, k, v


def _room(name: str, N: int) -> dict[str, Any]:
    """The option that sets the maximal length, for mechanisms that have one."""
    return {"max_length": N + 1} if "max_length" in ATTENTION[name].Options.model_fields else {}


def _config(name: str, N: int) -> ModelConfig:
    """TransNormer's language model with 6 layers of the mechanism, or with its own layers for T2."""
    base = preset("transnormer_t2_lm", vocab_size=VOCABULARY)
    if name == T2:
        return base
    return base.model_copy(update={"layers": (name,) * len(base.layers), "options": {name: _room(name, N)}})


def _model_state(model: Model, ids: Tensor, N: int) -> ModelState:
    """The state of a model after N tokens, extended from that after `ids`."""
    with torch.no_grad():
        _, state = model.prefill(ids)
    layers = tuple(
        tuple(grow_decode_state(mixer.core, part, N) for mixer, part in zip(block.mixers, parts, strict=True))
        for block, parts in zip(model.blocks, state.layers, strict=True)
    )
    return ModelState(layers, torch.full_like(state.length, N))


def grow_decode_state(core: Core, state: State, N: int) -> State:
    """Extend the state after START tokens to N tokens: growing parts are repeated, and counts become N."""
    kinds = core.state_types or ("sum",) * len(state)
    shapes = core.state_shapes(state[0].shape[0], core.head_dim)
    times = [[N // START if size is None else 1 for size in shape] for shape in shapes]
    _check(sum(_bytes(part) * math.prod(time) for part, time in zip(state, times, strict=True)))
    return tuple(
        torch.full_like(part, N) if kind == "count" else part.repeat(time)
        for part, time, kind in zip(state, times, kinds, strict=True)
    )


def _cache(B: int, N: int) -> tuple[Tensor, Tensor]:
    """A cache with room for N + 1 keys and values."""
    _check(2 * 4 * B * H * (N + 1) * D)
    k, v = torch.randn(2, B, H, N + 1, D).unbind(0)
    return k, v


def _cache_step(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Write the token into its place, then attend to all: softmax with a preallocated cache."""
    keys[:, :, -1:], values[:, :, -1:] = k, v
    return scaled_dot_product_attention(q, keys, values)


def _check(size: int) -> None:
    """Raise if a state is too large to measure."""
    if size > MOST:
        raise UnsupportedError(f"its state would be {size / 2**30:.3g} GiB")


def _bytes(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    return sum(_bytes(part) for part in state)
