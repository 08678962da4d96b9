"""linnet's tokenizers as Transformers tokenizers, with the same ids."""

import json
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast

from linnet.data.tokenizer import MASK, SPECIALS, Tokenizer

_BOS, _PAD, _EOS, _UNK = SPECIALS


def convert_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """A tokenizer that `AutoTokenizer` loads; nothing is added around a text, and padding is on the left.

    In a text of words, `</s>` is the end of a line and so an ordinary word. Elsewhere it ends a document.
    """
    about = json.loads(tokenizer.dumps())
    kind, mask = about["kind"], [MASK] if tokenizer.mask is not None else []
    symbols = _byte_letters() if kind == "bytes" else about["symbols"]
    vocabulary = {symbol: i for i, symbol in enumerate([*SPECIALS, *symbols, *mask])}
    backend = _words(vocabulary) if kind == "word" else _byte_level(vocabulary, about["merges"])
    special: dict[str, Any] = {"bos_token": _BOS, "pad_token": _PAD, "unk_token": _UNK}
    if kind != "word":
        special["eos_token"] = _EOS
    if mask:
        special["mask_token"] = MASK
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special.values()])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **special,
    )


def _byte_letters() -> list[str]:
    """The character that byte-level tokenizers write for each byte: itself if visible, else the next from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in visible else next(others)) for byte in range(256)]


def _byte_level(vocabulary: dict[str, int], merges: list[list[str]]) -> Backend:
    """A BPE on bytes; without merges, one token per byte."""
    backend = Backend(models.BPE(vocab=vocabulary, merges=[(left, right) for left, right in merges]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def _words(vocabulary: dict[str, int]) -> Backend:
    """Words between white space; the end of a line becomes a word of its own."""
    backend = Backend(models.WordLevel(vocab=vocabulary, unk_token=_UNK))
    backend.normalizer = normalizers.Replace("\n", f" {_EOS} ")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="\0", cleanup=False),  # a space between words, none of which starts so
            decoders.Fuse(),
            decoders.Replace(Regex(f" ?{_EOS} ?"), "\n"),
        ]
    )
    return backend
