"""`tokenizer.json` in the format of the library `tokenizers`, which gives the same ids, except for special words.

linnet reads special words in a text as ordinary text; the library reads them as the special tokens that they name. The
content is written here and not by the library, so that its bytes do not depend on the version of the library.
"""

from collections.abc import Sequence
from typing import Any

from linnet.config import short_config_value

KINDS = ("word", "bpe", "gpt2", "bytes")
OLD_FORMAT = "linnet-tokenizer-1"  # of version 0.1: its files still load, and are written back as they are
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
MASK = "<mask>"
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LINE_END = {"type": "Replace", "pattern": {"String": "\n"}, "content": f" {SPECIALS[2]} "}
WORDS = {  # a space between words, none of which starts with the prefix, and the ends of lines
    "type": "Sequence",
    "decoders": [
        {"type": "WordPiece", "prefix": "\0", "cleanup": False},
        {"type": "Fuse"},
        {"type": "Replace", "pattern": {"Regex": f" ?{SPECIALS[2]} ?"}, "content": "\n"},
    ],
}
NO_UNKNOWN = {
    **dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix")),
    **dict.fromkeys(("fuse_unk", "byte_fallback", "ignore_merges"), False),
}


def dump_tokenizer_file(
    kind: str, symbols: Sequence[str], merges: Sequence[tuple[str, str]], mask: bool
) -> dict[str, Any]:
    """The content of the file; the kind "bytes" has a symbol per byte and no merges."""
    symbols = list(BYTE_LETTERS) if kind == "bytes" else symbols
    vocab = {symbol: i for i, symbol in enumerate([*SPECIALS, *symbols, *[MASK] * mask])}
    words = kind == "word"
    special = [name for name in (*SPECIALS, *[MASK] * mask) if not (words and name == SPECIALS[2])]  # it ends a line
    flags = {**dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False), "special": True}
    bpe = {"type": "BPE", **NO_UNKNOWN, "vocab": vocab, "merges": [list(merge) for merge in merges]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": vocab[name], "content": name, **flags} for name in special],
        "normalizer": LINE_END if words else None,
        "pre_tokenizer": {"type": "WhitespaceSplit"} if words else BYTE_LEVEL,
        "post_processor": None,
        "decoder": WORDS if words else BYTE_LEVEL,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": SPECIALS[3]} if words else bpe,
    }


def read_tokenizer_file(content: dict[str, Any]) -> dict[str, Any] | str:
    """kind, symbols, merges and mask of such a file, or what is wrong with it."""
    model, before = content.get("model"), content.get("pre_tokenizer")
    kinds = {("WordLevel", "WhitespaceSplit"): "word", ("BPE", "ByteLevel"): "bpe"}
    parts = [part.get("type") if isinstance(part, dict) else None for part in (model, before)]
    kind = kinds.get((str(parts[0]), str(parts[1])))
    if kind is None or not isinstance(model, dict):
        return f"its model and pre_tokenizer are {parts[0]} and {parts[1]}, not BPE and ByteLevel"
    if content.get("normalizer") != (LINE_END if kind == "word" else None):
        return f"its normalizer is {short_config_value(content.get('normalizer'))}, which linnet does not apply"
    vocab, merges = model.get("vocab"), model.get("merges", [])
    if not isinstance(vocab, dict) or sorted(vocab.values(), key=str) != sorted(range(len(vocab)), key=str):
        return "its vocabulary is not numbered from 0 on"
    names = sorted(vocab, key=vocab.__getitem__)
    if tuple(names[:4]) != SPECIALS:
        return f"its vocabulary does not begin with {' '.join(SPECIALS)}"
    mask = names[-1] == MASK
    symbols = names[4 : len(names) - mask]
    if kind == "bpe" and tuple(symbols) == BYTE_LETTERS and not merges:
        return {"kind": "bytes", "symbols": [], "merges": [], "mask": mask}
    return {"kind": kind, "symbols": symbols, "merges": merges, "mask": mask}


def tokenizer_fault(content: Any, old: bool) -> str:
    """What is wrong with the content of a tokenizer.json; empty if nothing is."""
    if not isinstance(content, dict) or (old and content.get("format") != OLD_FORMAT):
        return f"its format is neither that of `tokenizers` nor {OLD_FORMAT!r}"
    kind, symbols, merges, mask = (content.get(key) for key in ("kind", "symbols", "merges", "mask"))
    if kind not in KINDS or not isinstance(mask, bool):
        return "its kind is unknown"
    if not isinstance(symbols, list) or not all(_is_text(symbol) for symbol in symbols):
        return "its symbols are not a list of strings"
    if len(set(symbols)) != len(symbols):
        return "a symbol occurs twice"
    if not isinstance(merges, list):
        return f"its merges are {short_config_value(merges)}, not a list"
    if kind in ("bpe", "gpt2"):
        return bpe_fault(symbols, merges)
    return f"the kind {kind!r} has no merges" if merges else ""


def _is_text(symbol: Any) -> bool:
    """Whether this is a string that can be encoded: JSON can also hold lone surrogates."""
    return isinstance(symbol, str) and not any("\ud800" <= character <= "\udfff" for character in symbol)


def bpe_fault(symbols: list[str], merges: list[Any]) -> str:
    """What is wrong with the symbols and merges of a byte-level BPE; empty if nothing is."""
    known = set(symbols)
    if set().union(*symbols) != BYTES_OF_LETTERS.keys() or not BYTES_OF_LETTERS.keys() <= known:
        return "its symbols are not made of the 256 bytes"
    for merge in merges:
        pair = isinstance(merge, list) and len(merge) == 2 and all(isinstance(part, str) for part in merge)
        if not pair or not {*merge, "".join(merge)} <= known:
            return f"the merge {short_config_value(merge)} is not of two symbols into a third"
    return ""


def _byte_letters() -> tuple[str, ...]:
    """GPT-2's visible character for each byte: Latin-1 if visible, else from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in visible else next(others)) for byte in range(256))


BYTE_LETTERS = _byte_letters()
BYTES_OF_LETTERS = {letter: byte for byte, letter in enumerate(BYTE_LETTERS)}
