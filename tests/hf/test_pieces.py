"""Pieces of a text: batches that depend on a seed and a number alone, and one-line errors."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from linnet.errors import InputError
from linnet.hf.pieces import TextPieces, read_text_pieces


@pytest.fixture
def folder(tmp_path):
    """A folder with a tokenizer of words that puts [CLS] and [SEP] around a text."""
    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *"abcdefgh"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("a b c d e f g h\n" * 20)
    return tmp_path


def test_pieces_have_the_special_tokens_of_the_model(folder):
    pieces = read_text_pieces(folder / "text.txt", folder)
    assert (pieces.before, pieces.after, len(pieces.ids)) == ([1], [2], 160)
    batch = pieces.batch(5, 10, 40, seed=3)["input_ids"]
    assert batch.shape == (4, 10) and set(batch[:, 0].tolist()) == {1} and set(batch[:, -1].tolist()) == {2}
    inner = batch[:, 1:-1]
    assert torch.equal((inner[:, 1:] - inner[:, :-1]) % 8, torch.ones_like(inner[:, 1:])), "consecutive words"
    assert torch.equal(batch, pieces.batch(5, 10, 40, seed=3)["input_ids"])
    assert not torch.equal(batch, pieces.batch(6, 10, 40, seed=3)["input_ids"])


def test_wrong_input_is_one_line(folder, tmp_path):
    pieces = TextPieces(torch.arange(100), [1], [2], "")
    with pytest.raises(InputError, match="the text has 100 tokens: a batch needs at least 128"):
        pieces.check_batch((8,), 128)
    with pytest.raises(InputError, match="lengths contains 2: a piece has more than 2 tokens, at most 64"):
        pieces.check_batch((2,), 64)
    with pytest.raises(InputError, match=r"cannot read .*none\.txt"):
        read_text_pieces(folder / "none.txt", folder)
    (folder / "bad.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"bad.txt is not UTF-8 text"):
        read_text_pieces(folder / "bad.txt", folder)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json is not a tokenizer"):
        read_text_pieces(folder / "text.txt", folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"has no tokenizer.json"):
        read_text_pieces(folder / "text.txt", folder)
