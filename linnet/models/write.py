"""Text in, text out: continue a prompt with a model and its tokenizer, piece by piece."""

import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from linnet.errors import InputError
from linnet.models.generate import Sampling

if TYPE_CHECKING:
    from linnet.data.tokenizer import Tokenizer


class TextModel(Protocol):
    """The interface of a model that writing needs."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    @property
    def tokenizer(self) -> "Tokenizer": ...

    def stream(self, ids: Tensor, max_new_tokens: int = 64, sampling: Sampling | None = None) -> Iterator[Tensor]: ...


class Writing:
    """The continuation of `prompt` as an iterator over pieces of text; `tokens` counts the new tokens so far.

    It ends after `max_new_tokens`, at the end of a document (`</s>`; the kind `word` has only ends of lines), and
    before the first of the `stop` texts, which is not part of the result. With `ignore_end` it continues into the next
    document.
    """

    def __init__(
        self,
        model: TextModel,
        prompt: str,
        max_new_tokens: int,
        sampling: Sampling,
        stop: Sequence[str] = (),
        ignore_end: bool = False,
    ) -> None:
        if not isinstance(prompt, str):
            raise InputError(f"the prompt is a {type(prompt).__name__}: it must be text")
        if isinstance(stop, str) or not all(isinstance(text, str) and text for text in stop):
            raise InputError(f"stop is {stop!r}: it must be a list of texts, none of them empty")
        self.tokens, self.stop = 0, tuple(stop)
        self.model, self.sampling, self.max_new_tokens = model, sampling, max_new_tokens
        self.end = None if ignore_end or model.tokenizer.kind == "word" else model.tokenizer.eos
        self.prompt = model.tokenizer.encode(prompt)
        if not self.prompt:
            raise InputError(f"the prompt is {prompt!r}: it has no tokens, and it needs at least one")

    def __iter__(self) -> Iterator[str]:
        from linnet.data.tokenizer import TextStream

        tokenizer, held = self.model.tokenizer, ""
        text, device = TextStream(tokenizer, after=self.prompt), next(iter(self.model.parameters())).device
        ids = torch.tensor([self.prompt], device=device)
        for token in map(int, self.model.stream(ids, self.max_new_tokens, self.sampling)):
            self.tokens += 1
            if token == self.end:
                break
            held += text.push(token) if token < tokenizer.vocab_size else ""  # a model may have spare ids
            found = [place for place in map(held.find, self.stop) if place >= 0]
            if found:
                yield held[: min(found)]
                return
            keep = self._unsure(held)
            if len(held) > keep:
                yield held[: len(held) - keep]
                held = held[len(held) - keep :]
        yield held + text.close()

    def _unsure(self, held: str) -> int:
        """How many characters at the end may be the beginning of a stop text."""
        lengths = (n for text in self.stop for n in range(1, len(text)) if held.endswith(text[:n]))
        return max(lengths, default=0)


def draw_writing_seed() -> int:
    """A new seed for each call."""
    return secrets.randbelow(2**31)
