"""Converted tokenizers give linnet's ids, also after `AutoTokenizer` has read them from a folder."""

import pytest
from transformers import AutoTokenizer

from linnet.data.tokenizer import Tokenizer, build_tokenizer
from linnet.hf.tokenizer import convert_tokenizer

TEXT = "the cat sat on the mat .\nthe dog , too , sat down on the other mat !\n" * 3
ODD = "Ünïcödé ☃ 𝔘  tabs\t\tand\n\n lines \x00 \x7f the end"


def build(kind: str) -> Tokenizer:
    if kind == "gpt2":
        bpe = build_tokenizer("bpe", [TEXT * 5], 300)
        return Tokenizer("gpt2", bpe._symbols, bpe._merges)  # GPT-2's own files are not in the repository
    return build_tokenizer(kind, [TEXT], 300 if kind == "bpe" else None, mask=True)


@pytest.mark.parametrize("kind", ["word", "bpe", "gpt2", "bytes"])
def test_the_same_ids_and_text(kind, tmp_path):
    own = build(kind)
    convert_tokenizer(own).save_pretrained(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == own.vocab_size
    assert (theirs.bos_token_id, theirs.pad_token_id, theirs.unk_token_id) == (0, 1, 3)
    assert theirs.eos_token_id == (None if kind == "word" else 2)
    assert theirs.mask_token_id == own.mask
    for text in (TEXT, ODD, "", "cat"):
        ids = theirs(text)["input_ids"]
        assert ids == own.encode(text)
        assert theirs.decode(ids) == own.decode(ids)


def test_padding_is_on_the_left():
    batch = convert_tokenizer(build("bytes"))(["abc", "a"], padding=True)
    assert batch["input_ids"][1][:2] == [1, 1] and batch["attention_mask"][1] == [0, 0, 1]
