"""Generate text token by token: a causal model carries a state from step to step instead of rereading the text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from linnet.errors import InputError, LinnetError
from linnet.models.config import ModelConfig
from linnet.ops.masks import layout_of_masks

Rule = tuple[type, Callable[[Any], bool], str]  # the type of a number, whether it fits, and what is allowed
WHOLE: Rule = (int, lambda n: n >= 0, "a whole number of at least 0")
RULES: dict[str, Rule] = {
    "temperature": (float, lambda t: 0 <= t < math.inf, "at least 0 and finite"),
    "top_k": (int, lambda k: k >= 1, "a whole number of at least 1"),
    "top_p": (float, lambda p: 0 < p <= 1, "above 0 and at most 1"),
    "repetition_penalty": (float, lambda r: 0 < r < math.inf, "above 0 and finite"),
    "seed": (int, lambda n: 0 <= n < 2**63, "a whole number from 0 to 2^63 - 1"),
}


@dataclass(frozen=True)
class Sampling:
    """How to sample a token. Temperature 0 takes the most likely one; the same seed gives the same text.

    `top_k` keeps the k most likely tokens, `top_p` the fewest whose total probability reaches p. A
    `repetition_penalty` above 1 makes tokens that occur in the text so far less likely: it divides their logits where
    positive and multiplies them where negative.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        for name, rule in RULES.items():
            value = getattr(self, name)
            if value is not None or name not in ("top_k", "top_p"):
                _check_number(name, value, rule)


def _check_number(name: str, value: Any, rule: Rule) -> None:
    """Raise if the value breaks the rule."""
    kind, fits, allowed = rule
    number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    if not number or not fits(value):
        raise InputError(f"{name} is {value!r}: it must be {allowed}")


class Writer(Protocol):
    """The interface that generation needs: `prefill` reads a prompt, `step` one more token."""

    config: ModelConfig
    training: bool

    def check_recurrent(self) -> None: ...

    def prefill(
        self, ids: Tensor, key_mask: Tensor | None = None, state: Any = None, select: Tensor | None = None
    ) -> tuple[Tensor, Any]: ...

    def step(self, ids_t: Tensor, state: Any) -> tuple[Tensor, Any]: ...

    def train(self, mode: bool = True) -> Any: ...


def generate_stream(
    model: Writer, ids: Tensor, max_new_tokens: int, sampling: Sampling, key_mask: Tensor | None
) -> Iterator[Tensor]:
    """Yield the tokens that the model generates after the prompts ids (B,N), (B,) ids at a time."""
    _check_number("max_new_tokens", max_new_tokens, WHOLE)
    model.check_recurrent()
    last = _last_tokens(model, ids, key_mask, max_new_tokens)
    return _write(model, ids, key_mask, last, max_new_tokens, _Sampler(sampling, ids, key_mask))


def _last_tokens(model: Writer, ids: Tensor, key_mask: Tensor | None, new: int) -> Tensor:
    """Index of each prompt's last real token among the B*N; raises if there is none, or no room for new tokens."""
    if not isinstance(ids, Tensor):
        raise InputError(f"ids is a {type(ids).__name__}: it must be a tensor (batch, tokens)")
    if ids.dim() != 2 or 0 in ids.shape:
        raise InputError(f"the prompt has shape {tuple(ids.shape)}: it must be (batch, tokens), both at least 1")
    B, N = ids.shape
    where = layout_of_masks(B, N, key_mask, None, ids.device)
    length = torch.as_tensor(where.length, device=ids.device).expand(B)
    if int(length.min()) == 0:
        raise InputError(f"row {int(length.argmin())} of the prompt has no real token: each needs at least one")
    read, limit = int(length.max()) + max(new - 1, 0), model.config.max_length  # the last new token is not read
    if model.config.positions == "learned" and read > limit:
        raise InputError(f"max_new_tokens is {new}: {read} tokens to read, but the model has {limit} positions")
    index = torch.arange(N, device=ids.device).expand(B, N)
    last = index[:, -1] if where.real is None else torch.where(where.real, index, -1).amax(dim=1)
    return last + N * torch.arange(B, device=ids.device)


@torch.no_grad()
def _write(
    model: Writer, ids: Tensor, key_mask: Tensor | None, last: Tensor, new: int, sampler: _Sampler
) -> Iterator[Tensor]:
    """The loop: read the prompt once, then one token per step."""
    training = model.training
    model.train(False)
    try:
        logits, state = model.prefill(ids, key_mask, select=last)  # (B, V)
        for left in reversed(range(new)):
            token = sampler(logits)
            yield token
            if left:
                logits, state = model.step(token[:, None], state)
                logits = logits[:, 0]
    finally:
        model.train(training)


class _Sampler:
    """Samples one id per row from logits (B,V), with its own random generator."""

    def __init__(self, sampling: Sampling, ids: Tensor, key_mask: Tensor | None) -> None:
        self.sampling = sampling
        self.random = torch.Generator(ids.device).manual_seed(sampling.seed)
        self.ids, self.real = ids.long(), None if key_mask is None else key_mask.to(ids.device, torch.bool)
        self.seen: Tensor | None = None  # (B, V): the tokens of the text so far

    def __call__(self, logits: Tensor) -> Tensor:
        logits = logits.float()
        if not bool(logits.isfinite().all()):
            raise LinnetError("the model's output is not finite: no token can be chosen")
        if self.sampling.repetition_penalty == 1:
            return self._draw(logits)
        if self.seen is None:
            real = torch.ones_like(self.ids, dtype=torch.bool) if self.real is None else self.real
            counts = torch.zeros_like(logits).scatter_add_(1, self.ids, real.to(logits.dtype))
            self.seen = counts > 0
        penalty = self.sampling.repetition_penalty
        token = self._draw(torch.where(self.seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits))
        self.seen.scatter_(1, token[:, None], True)
        return token

    def _draw(self, logits: Tensor) -> Tensor:
        if self.sampling.temperature < torch.finfo(logits.dtype).tiny:  # dividing by it would overflow
            return logits.argmax(dim=-1)
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.sampling.temperature
        if self.sampling.top_k is not None:
            kept = logits.topk(min(self.sampling.top_k, logits.shape[-1]))
            logits = torch.full_like(logits, -math.inf).scatter(-1, kept.indices, kept.values)
        p = logits.softmax(dim=-1)
        if self.sampling.top_p is not None:
            p = _nucleus(p, self.sampling.top_p)
        return torch.multinomial(p, 1, generator=self.random).squeeze(1)


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """p (B,V) without its tail: an id is dropped if the more likely ones already reach `top_p`."""
    ranked, order = p.sort(dim=-1, descending=True, stable=True)
    likelier = pad(ranked.cumsum(dim=-1)[:, :-1], (1, 0))  # total probability of the ids before each one
    top_p = max(top_p, torch.finfo(p.dtype).tiny)  # at 0, every id would be dropped
    return torch.zeros_like(p).scatter(-1, order, ranked.masked_fill(likelier >= top_p, 0))
