"""Writing text token by token: a causal model carries a state from step to step instead of reading all again."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from linnet.errors import InputError, LinnetError
from linnet.models.config import ModelConfig
from linnet.ops.masks import layout


class Generation(nn.Module):
    """`generate` and `stream`, for a model that defines `prefill` and `step`."""

    config: ModelConfig

    def prefill(
        self, ids: Tensor, key_mask: Tensor | None = None, state: Any = None, select: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Logits of ids (B,N), or of the tokens that `select` names, and the state after the last real one."""
        raise NotImplementedError

    def step(self, ids_t: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits (B,1,V) after the next token ids_t (B,1), and the state after it."""
        raise NotImplementedError

    def check_recurrent(self) -> None:
        """The one-line error where there is no state to carry."""
        raise NotImplementedError

    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """The prompts ids (B,N) and what the model writes after them: (B, N + max_new_tokens).

        `temperature` 0 takes the likeliest token. `top_k` keeps the k likeliest, `top_p` the fewest whose probability
        reaches p. The same seed gives the same text. `key_mask` (B,N) marks the real tokens of unequal prompts.
        """
        new = self.stream(ids, max_new_tokens, temperature, top_k, top_p, seed, key_mask)
        return torch.cat([ids, *(token[:, None].to(ids.dtype) for token in new)], dim=1)

    def stream(
        self,
        ids: Tensor,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        key_mask: Tensor | None = None,
    ) -> Iterator[Tensor]:
        """`generate` as an iterator over the new ids, (B,) each, as they are written."""
        _check_sampling(max_new_tokens, temperature, top_k, top_p, seed)
        self.check_recurrent()
        last = self._last_tokens(ids, key_mask, max_new_tokens)
        sampler = _Sampler(temperature, top_k, top_p, seed, ids.device)
        return self._write(ids, key_mask, last, max_new_tokens, sampler)

    def _last_tokens(self, ids: Tensor, key_mask: Tensor | None, new: int) -> Tensor:
        """Index of each prompt's last real token among the B*N, once there is one and room for what is to come."""
        if not isinstance(ids, Tensor):
            raise InputError(f"ids is a {type(ids).__name__}: it must be a tensor (batch, tokens)")
        if ids.dim() != 2 or 0 in ids.shape:
            raise InputError(f"the prompt has shape {tuple(ids.shape)}: it must be (batch, tokens), neither of them 0")
        B, N = ids.shape
        where = layout(B, N, key_mask, None, ids.device)
        length = torch.as_tensor(where.length, device=ids.device).expand(B)
        if int(length.min()) == 0:
            raise InputError(f"row {int(length.argmin())} of the prompt has no real token: each needs at least one")
        read, limit = int(length.max()) + max(new - 1, 0), self.config.max_length  # the last new token is not read
        if self.config.positions == "learned" and read > limit:
            raise InputError(f"max_new_tokens is {new}: {read} tokens to read, but the model has {limit} positions")
        index = torch.arange(N, device=ids.device).expand(B, N)
        last = index[:, -1] if where.real is None else torch.where(where.real, index, -1).amax(dim=1)
        return last + N * torch.arange(B, device=ids.device)

    @torch.no_grad()
    def _write(
        self, ids: Tensor, key_mask: Tensor | None, last: Tensor, new: int, sampler: "_Sampler"
    ) -> Iterator[Tensor]:
        """The loop: read the prompt once, then one token a step."""
        training = self.training
        self.eval()
        try:
            logits, state = self.prefill(ids, key_mask, select=last)  # (B, V)
            for left in reversed(range(new)):
                token = sampler(logits)
                yield token
                if left:
                    logits, state = self.step(token[:, None], state)
                    logits = logits[:, 0]
        finally:
            self.train(training)


class _Sampler:
    """Draws one id a row from logits (B,V), by a random stream of its own."""

    def __init__(
        self, temperature: float, top_k: int | None, top_p: float | None, seed: int, device: torch.device
    ) -> None:
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self.random = torch.Generator(device).manual_seed(seed)

    def __call__(self, logits: Tensor) -> Tensor:
        logits = logits.float()
        if not bool(logits.isfinite().all()):
            raise LinnetError("the model's output is not finite: there is nothing to choose a token by")
        if self.temperature < torch.finfo(logits.dtype).tiny:  # by which float32 cannot divide
            return logits.argmax(dim=-1)
        logits = (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature
        if self.top_k is not None:
            kept = logits.topk(min(self.top_k, logits.shape[-1]))
            logits = torch.full_like(logits, -math.inf).scatter(-1, kept.indices, kept.values)
        p = logits.softmax(dim=-1)
        if self.top_p is not None:
            p = _nucleus(p, self.top_p)
        return torch.multinomial(p, 1, generator=self.random).squeeze(1)


def _nucleus(p: Tensor, top_p: float) -> Tensor:
    """p (B,V) without the tail: an id goes if the likelier ones already reach `top_p`."""
    ranked, order = p.sort(dim=-1, descending=True, stable=True)
    likelier = pad(ranked.cumsum(dim=-1)[:, :-1], (1, 0))  # how much the ids before each one have
    return torch.zeros_like(p).scatter(-1, order, ranked.masked_fill(likelier >= top_p, 0))


def _check_sampling(new: int, temperature: float, top_k: int | None, top_p: float | None, seed: int) -> None:
    """One-line errors for what no text can be drawn by."""
    rules: tuple[tuple[str, Any, type, Callable[[Any], bool], str], ...] = (
        ("max_new_tokens", new, int, lambda n: n >= 0, "a whole number of at least 0"),
        ("temperature", temperature, float, lambda t: 0 <= t < math.inf, "at least 0 and finite"),
        ("top_k", 1 if top_k is None else top_k, int, lambda k: k >= 1, "a whole number of at least 1"),
        ("top_p", 1.0 if top_p is None else top_p, float, lambda p: 0 < p <= 1, "above 0 and at most 1"),
        ("seed", seed, int, lambda n: 0 <= n < 2**63, "a whole number from 0 to 2^63 - 1"),
    )
    for name, value, kind, fits, allowed in rules:
        number = isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        if not number or not fits(value):
            raise InputError(f"{name} is {value!r}: it must be {allowed}")
