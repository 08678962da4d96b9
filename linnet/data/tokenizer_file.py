"""`tokenizer.json` in the format of the library `tokenizers`, which gives the same ids, except for special words.

linnet reads special words in a text as ordinary text; the library reads them as the special tokens that they name. The
content is written here and not by the library, so that its bytes do not depend on the version of the library.
"""

from collections.abc import Sequence
from typing import Any

from linnet.config import short_config_value

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


def _byte_letters() -> tuple[str, ...]:
    """GPT-2's visible character for each byte: Latin-1 if visible, else from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in visible else next(others)) for byte in range(256))


BYTE_LETTERS = _byte_letters()
