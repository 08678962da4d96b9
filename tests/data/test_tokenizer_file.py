"""tokenizer.json is a file of the library `tokenizers`, which gives the same ids; other files are refused."""

import json

import pytest
from tokenizers import Tokenizer as Library

from linnet.data.tokenizer import Tokenizer, build_tokenizer
from linnet.errors import InputError

TEXT = "def f(x):\n    return x  # gr\u00f6\u00dfer\n\nclass A:\n    pass\n" * 20


@pytest.mark.parametrize("kind", ["word", "bpe", "bytes"])
@pytest.mark.parametrize("mask", [True, False])
def test_the_library_loads_it_with_the_same_ids(kind, mask, tmp_path):
    tokenizer = build_tokenizer(kind, [TEXT], 290, mask=mask)
    tokenizer.save(tmp_path / "tokenizer.json")
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    assert library.get_vocab_size() == tokenizer.vocab_size
    for text in (TEXT, "class Bee:", "unknown words, 123 \u20ac"):
        ids = tokenizer.encode(text)
        assert library.encode(text).ids == ids
        assert library.decode(ids, skip_special_tokens=False) == tokenizer.decode(ids)
    assert library.token_to_id("<pad>") == tokenizer.pad


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Lowercase"}),
        ("pre_tokenizer", {"type": "Whitespace"}),
        ("pre_tokenizer", None),
        ("model", {"type": "Unigram"}),
        ("model", None),
        ("model", {"type": "BPE", "vocab": {"a": 0, "b": 2}, "merges": []}),
        ("model", {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}),
        ("model", {"type": "BPE", "vocab": ["a"], "merges": []}),
        ("model", {"type": "BPE", "vocab": {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "a": 4}, "merges": []}),
    ],
)
def test_another_file_of_the_library_is_refused(part, value, tmp_path):
    path = tmp_path / "tokenizer.json"
    content = json.loads(build_tokenizer("bpe", [TEXT], 290).dumps())
    path.write_text(json.dumps({**content, part: value}))
    with pytest.raises(InputError) as error:
        Tokenizer.load(path)
    assert str(error.value).startswith(f"{path} is not a tokenizer of linnet: ") and "\n" not in str(error.value)
