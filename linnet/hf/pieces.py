"""Pieces of a text as batches for an encoder; the seed and the batch's number determine each batch."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from linnet.errors import InputError
from linnet.storage import read_text_file


class TextPieces:
    """A text in the tokens of a model, with the special tokens that go around each piece."""

    def __init__(self, ids: Tensor, before: Sequence[int], after: Sequence[int], sha256: str) -> None:
        self.ids, self.before, self.after, self.sha256 = ids, list(before), list(after), sha256

    @property
    def around(self) -> int:
        """Number of special tokens per piece."""
        return len(self.before) + len(self.after)

    def check_batch(self, lengths: Sequence[int], tokens: int) -> None:
        """Raise if the text is too short for a batch, or a length for its special tokens."""
        for length in lengths:
            if not self.around < length <= tokens:
                raise InputError(
                    f"lengths contains {length}: a piece has more than {self.around} tokens, at most {tokens}"
                )
        if len(self.ids) < tokens:
            raise InputError(f"the text has {len(self.ids)} tokens: a batch needs at least {tokens}")

    def batch(self, number: int, length: int, tokens: int, seed: int) -> dict[str, Tensor]:
        """Batch `number`: pieces of `length` tokens from random places, about `tokens` in all."""
        random = torch.Generator().manual_seed((seed << 32) + number + 2)  # numbers start at -2
        inner = length - self.around
        starts = torch.randint(len(self.ids) - inner + 1, (max(1, tokens // length),), generator=random)
        rows = [[*self.before, *self.ids[start : start + inner].tolist(), *self.after] for start in starts.tolist()]
        return {"input_ids": torch.tensor(rows)}


def load_tokenizer_of_pieces(folder: Path) -> Tokenizer:
    """The tokenizer of a folder of Transformers, without padding or truncation."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise InputError(f"{folder} has no tokenizer.json: save the tokenizer there with its save_pretrained")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001  the library raises bare exceptions
        raise InputError(f"{path} is not a tokenizer: {' '.join(str(error).split())[:200]}") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def read_text_pieces(text: Path, folder: Path) -> TextPieces:
    """A text file in the tokens of the model in `folder`."""
    return text_pieces(read_text_file(text), load_tokenizer_of_pieces(folder))


def text_pieces(content: str, tokenizer: Tokenizer) -> TextPieces:
    """A text in the tokens of a tokenizer."""
    special = tokenizer.encode("").ids
    lines = content.split("\n")
    parts = ["\n".join(lines[i : i + 200]) for i in range(0, len(lines), 200)]  # encoded at once
    encoded = tokenizer.encode_batch_fast(parts, add_special_tokens=False)
    ids = torch.tensor([token for part in encoded for token in part.ids], dtype=torch.int64)
    return TextPieces(ids, special[:1], special[1:], hashlib.sha256(content.encode()).hexdigest())
