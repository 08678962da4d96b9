"""Tokenizers: the published ids and sizes, exact round trips, and decoding one token at a time."""

import json
import random
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linnet.data import tokenizer as module
from linnet.data.corpora import load_corpus
from linnet.data.tokenizer import TextStream, Tokenizer, _without_long_runs, build_tokenizer
from linnet.data.tokenizer_file import KINDS
from linnet.errors import InputError, LinnetError

TEXT = "def f(x):\n    return x  # größer <mask> </s>\n\n\nclass A:\n    pass\n" * 20


@pytest.fixture(scope="module")
def gpt2_files(tmp_path_factory):
    """A small BPE in GPT-2's three files: all bytes and two merges, in another order in dict.txt."""
    folder = tmp_path_factory.mktemp("gpt2")
    symbols = [*sorted(module.BYTES_OF_LETTERS), "th", "the", "<|endoftext|>"]
    numbers = {symbol: i for i, symbol in enumerate(symbols)}
    (folder / "encoder.json").write_text(json.dumps(numbers))
    (folder / "vocab.bpe").write_text("#version: 0.2\nt h\nth e\n", encoding="utf-8")
    rows = [f"{i} 7" for i in reversed(range(len(symbols)))]
    (folder / "dict.txt").write_text("\n".join([*rows, "madeupword0000 0", "madeupword0001 0", ""]))
    return folder


@pytest.fixture(scope="module")
def tokenizers(gpt2_files):
    made = {kind: build_tokenizer(kind, [TEXT], 290, gpt2_files, mask=True) for kind in KINDS}
    assert set(made) == {"word", "bpe", "gpt2", "bytes"}
    return made


@pytest.fixture(params=KINDS)
def tokenizer(request, tokenizers):
    return tokenizers[request.param]


def document(tokenizer, text):
    return np.concatenate(list(tokenizer.encode_document(text))).tolist()


def test_the_order_of_ids_is_one_for_all_kinds(tokenizer):
    assert (tokenizer.bos, tokenizer.pad, tokenizer.eos, tokenizer.unk) == (0, 1, 2, 3)
    assert tokenizer.mask == tokenizer.vocab_size - 1
    assert tokenizer.special_ids == (0, 1, 2, 3, tokenizer.mask)
    names = [tokenizer.token(i) for i in tokenizer.special_ids]
    assert names == ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    assert all(isinstance(tokenizer.token(i), str) for i in range(tokenizer.vocab_size))
    for wrong in (-1, tokenizer.vocab_size):
        with pytest.raises(InputError, match=f"token {wrong} does not exist"):
            tokenizer.token(wrong)


def test_saved_and_loaded_it_is_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.sha256 == tokenizer.sha256
    kind = "bpe" if tokenizer.kind == "gpt2" else tokenizer.kind  # the file does not say where a BPE comes from
    assert (loaded.kind, loaded.vocab_size, loaded.mask) == (kind, tokenizer.vocab_size, tokenizer.mask)
    assert loaded.encode(TEXT) == tokenizer.encode(TEXT)
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()


def test_a_file_of_version_0_1_loads_and_is_written_back_as_it_is(tokenizer, tmp_path):
    path, old = tmp_path / "tokenizer.json", tokenizer.as_old()
    old.save(path)
    assert json.loads(path.read_text())["format"] == "linnet-tokenizer-1"
    loaded = Tokenizer.load(path)
    assert loaded.sha256 == old.sha256 != tokenizer.sha256 and loaded.dumps() == path.read_bytes()
    assert loaded.kind == tokenizer.kind and loaded.encode(TEXT) == tokenizer.encode(TEXT)


def test_special_words_in_a_text_are_text(tokenizer):
    ids = tokenizer.encode("<s> <pad> </s> <mask>")
    assert not set(ids) & {tokenizer.bos, tokenizer.pad, tokenizer.eos, tokenizer.mask}


def test_a_document_ends_once(tokenizer):
    for text in ("one\ntwo\n", "one\ntwo", "a"):
        ids = document(tokenizer, text)
        assert ids[-1] == tokenizer.eos
        plain = tokenizer.encode(text)
        assert ids == plain if tokenizer.kind == "word" and text.endswith("\n") else ids == [*plain, tokenizer.eos]


@pytest.mark.parametrize("kind", ["bpe", "gpt2", "bytes"])
def test_byte_level_kinds_give_every_text_back(tokenizers, kind):
    @given(st.text())
    def check(text):
        assert tokenizers[kind].decode(tokenizers[kind].encode(text)) == text

    check()
    assert tokenizers[kind].decode(tokenizers[kind].encode(TEXT)) == TEXT


@pytest.mark.parametrize("kind", KINDS)
def test_encoding_a_document_in_pieces_gives_the_same_ids(tokenizers, kind, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 3)
    monkeypatch.setattr(module, "PIECES_AT_ONCE", 2)

    @given(st.text(alphabet=" \n\t\u00a0\x1cath1.'sé", max_size=60))
    def check(text):
        assert "".join(module._pieces(text, 3)) == text
        assert document(tokenizers[kind], text)[: len(tokenizers[kind].encode(text))] == tokenizers[kind].encode(text)

    check()
    assert len(list(module._pieces(TEXT, 3))) == 20  # at each class end: no other cut is safe


@pytest.mark.parametrize("kind", KINDS)
def test_text_that_comes_one_token_at_a_time(tokenizers, kind):
    tokenizer = tokenizers[kind]

    @given(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=40), st.integers(0, 40))
    def check(ids, cut):
        stream = TextStream(tokenizer)
        assert "".join(map(stream.push, ids)) + stream.close() == tokenizer.decode(ids)
        if kind != "word":
            data = b"".join(map(tokenizer.token_bytes, ids))
            assert tokenizer.decode(ids) == data.decode(errors="replace")
        rest = TextStream(tokenizer, after=ids[:cut])
        whole = "".join(map(rest.push, ids[cut:])) + rest.close()
        assert tokenizer.decode(ids).endswith(whole)

    check()


def test_a_character_of_several_tokens_comes_out_complete():
    tokenizer = Tokenizer("bytes")
    stream = TextStream(tokenizer)
    assert [stream.push(i) for i in tokenizer.encode("a€")] == ["a", "", "", "€"]
    assert stream.push(tokenizer.encode("€")[0]) == ""
    assert stream.close() == "\ufffd"


def test_text_that_is_not_unicode(tokenizer):
    with pytest.raises(InputError, match="not valid Unicode at character 3"):
        tokenizer.encode("ab\udcff")


def test_words_by_the_rules_of_fairseq():
    tokenizer = build_tokenizer("word", ["b b c c a\nc <unk> d <s>\n", "\n  é madeupword0000\n"])
    words = [tokenizer.token(i) for i in range(tokenizer.vocab_size)]
    assert words[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert words[4:] == ["c", "b", "a", "d", "madeupword0000", "é", *(f"madeupword000{i}" for i in range(1, 7))]
    assert tokenizer.vocab_size == 16
    assert tokenizer.mask is None
    assert tokenizer.encode("a b\n\n zz <unk>") == [6, 5, 2, 2, 3, 3]
    assert tokenizer.decode([6, 5, 2, 2, 3, 7]) == "a b\n\n<unk> d"
    assert build_tokenizer("word", ["b c c"], mask=True).mask == 8
    assert build_tokenizer("word", ["x y z " * 9 + "w"], vocab_size=7).encode("w x y z") == [3, 4, 5, 6]
    with pytest.raises(InputError, match="vocab_size is 4"):
        build_tokenizer("word", ["a"], vocab_size=4)


def test_words_of_wikitext_2(data_dir):
    corpus = load_corpus("wikitext", data_dir("wikitext-2"))
    tokenizer = build_tokenizer("word", (document.text for document in corpus.splits["train"]))
    assert tokenizer.vocab_size == 33_280  # 33,278 types, of which <unk> and the end of line are special, to 8
    assert [tokenizer.token(i) for i in range(4, 9)] == ["the", ",", ".", "of", "and"]
    text = corpus.splits["valid"][0].text
    assert document(tokenizer, text) == tokenizer.encode(text)
    assert len(tokenizer.encode(text)) == 217_646


def test_roberta_ids_from_the_files_of_gpt2(data_dir):
    path = data_dir("gpt2-bpe")
    tokenizer = build_tokenizer("gpt2", path=path)
    assert tokenizer.vocab_size == 50_265
    assert tokenizer.mask == 50_264
    assert tokenizer.encode("Hello world!") == [31414, 232, 328]  # as in fairseq's documentation of RoBERTa
    assert tokenizer.encode(".") == [4]
    assert tokenizer.encode(" the") == [5]


def test_the_order_of_dict_txt(gpt2_files, tmp_path):
    ordered = build_tokenizer("gpt2", path=gpt2_files)
    assert ordered.token(4) == "<|endoftext|>"
    assert ordered.encode("the") == [5]
    assert ordered.vocab_size == 265  # 4 + 259 + 1 to a multiple of 8, then the mask
    for name in ("encoder.json", "vocab.bpe"):
        (tmp_path / name).write_bytes((gpt2_files / name).read_bytes())
    assert build_tokenizer("gpt2", path=tmp_path).encode("the") == [4 + 257]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("encoder.json", None, "cannot read"),
        ("encoder.json", "{", "not valid JSON"),
        ("encoder.json", "[]", "does not number its symbols"),
        ("encoder.json", '{"a": 0, "b": 2}', "does not number its symbols"),
        ("encoder.json", '{"a": 0, "b": "1"}', "does not number its symbols"),
        ("encoder.json", '{"a": 0, "b": 1}', "not made of the 256 bytes"),
        ("vocab.bpe", None, "cannot read"),
        ("vocab.bpe", "t h e\n", "the merge"),
        ("vocab.bpe", "x y\n", "the merge"),
        ("dict.txt", "0 7\n1 7\n", "does not list each number"),
    ],
)
def test_damaged_files_of_gpt2(gpt2_files, tmp_path, name, content, said):
    for file in ("encoder.json", "vocab.bpe"):
        (tmp_path / file).write_bytes((gpt2_files / file).read_bytes())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(content)
    with pytest.raises(LinnetError) as error:
        build_tokenizer("gpt2", path=tmp_path)
    assert said in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_gpt2_without_a_folder(monkeypatch):
    monkeypatch.delenv("LINNET_DATA", raising=False)
    with pytest.raises(InputError, match="LINNET_DATA"):
        build_tokenizer("gpt2")


def test_bpe_has_the_size_asked_for_and_learns_whole_words():
    tokenizer = build_tokenizer("bpe", [TEXT], vocab_size=295)
    assert tokenizer.vocab_size == 295
    assert len(tokenizer.encode(TEXT)) < 0.6 * len(TEXT.encode())
    learned = build_tokenizer("bpe", ["on the mat, in the sun, by the sea\n" * 9], vocab_size=270)
    assert learned.encode(" the") == [learned.encode(" the sun")[0]]
    assert learned.token(learned.encode(" the")[0]) == " the"
    for size in (None, 260):
        with pytest.raises(InputError, match=f"vocab_size is {size}: .* at least 261"):
            build_tokenizer("bpe", [TEXT], vocab_size=size)
    assert build_tokenizer("bpe", ["ab"], vocab_size=1000).vocab_size == 261  # no more to learn


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_learning_tells_how_much_of_the_text_it_has_read(kind):
    texts, seen = ["zwei Wörter\n" * 20_000, "one more\n"], []
    build_tokenizer(kind, texts, 300, progress=seen.append)
    assert seen == sorted(seen) and seen[-1] == sum(len(text.encode()) for text in texts)
    assert len(seen) > 3, "a long text is told in parts"


def test_bpe_is_the_same_in_every_process():
    program = (
        "from linnet.data.corpora import load_corpus\nfrom linnet.data.tokenizer import build_tokenizer\n"
        "texts = [document.text for document in load_corpus('stdlib').splits['valid']]\n"
        "print(build_tokenizer('bpe', texts, 1024).sha256)"
    )
    hashes = set()
    for threads in "12":
        environment = {"PYTHONHASHSEED": threads, "RAYON_NUM_THREADS": threads}
        run = subprocess.run(
            [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, check=True
        )
        hashes.add(run.stdout)
    assert len(hashes) == 1
    assert len(hashes.pop().strip()) == 64


def test_bytes_are_bytes():
    tokenizer = build_tokenizer("bytes")
    assert tokenizer.vocab_size == 261
    assert tokenizer.encode("aß") == [4 + byte for byte in "aß".encode()]
    assert tokenizer.token(4 + 0xC3) == "\\xc3"


@pytest.mark.parametrize(
    "change",
    [
        {"format": "other"},
        {"kind": "posix"},
        {"kind": "word", "symbols": "abc"},
        {"kind": "word", "symbols": ["a", "a"]},
        {"kind": "word", "symbols": ["a", 1]},
        {"kind": "bpe", "symbols": ["a"]},
        {"merges": [["q", "zz"]]},
        {"merges": ["ab"]},
        {"merges": [1]},
        {"merges": None},
        {"kind": "bytes", "symbols": [], "merges": None},
        {"kind": "bytes", "symbols": [], "merges": [1]},
        {"kind": "word", "symbols": ["a"], "merges": {"a": "b"}},
        {"kind": "word", "symbols": ["\ud800"], "merges": []},
        {"kind": ["bpe"]},
        {"symbols": None},
        {"mask": "yes"},
        {"mask": None},
    ],
)
def test_a_file_that_is_not_a_tokenizer_is_refused(tokenizers, tmp_path, change):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(tokenizers["bpe"].as_old().dumps()), **change}))
    with pytest.raises(InputError) as error:
        Tokenizer.load(path)
    assert str(error.value).startswith(f"{path} is not a tokenizer of linnet: ")
    assert "\n" not in str(error.value)


def test_files_that_are_no_json(tmp_path):
    (tmp_path / "list.json").write_text("[1]")
    with pytest.raises(InputError, match="not a tokenizer"):
        Tokenizer.load(tmp_path / "list.json")
    (tmp_path / "pickle.json").write_bytes(b"\x80\x04cposix\nsystem\n")
    for name in ("pickle.json", "absent.json"):
        with pytest.raises(LinnetError, match=name):
            Tokenizer.load(tmp_path / name)


def test_unknown_kind():
    with pytest.raises(InputError, match="did you mean 'word'"):
        build_tokenizer("words")


def test_bpe_learns_from_one_endless_word_in_time():
    """The time is linear in the length of a run; 300 KB of emoji once took 21 seconds."""
    start = time.perf_counter()
    for text in ("\U0001f600\U0001f680" * 37_500, " " * 300_000, "x1" * 300 + "y" * 300_000):
        assert build_tokenizer("bpe", [text], 300).decode(build_tokenizer("bpe", [text], 300).encode(text)) == text
    assert time.perf_counter() - start < 10


def test_only_very_long_runs_are_cut(monkeypatch):
    rng = random.Random(0)
    words = ["".join(rng.choice("abc") for _ in range(rng.randint(1, 511))) for _ in range(200)]
    texts = [" ".join(words) + "\n" * 511 + "_-" * 255 + "1" * 511 + "é" * 511]
    assert list(_without_long_runs(texts[0])) == texts
    learned = build_tokenizer("bpe", texts, 400).sha256
    monkeypatch.setattr("linnet.data.tokenizer._without_long_runs", lambda text: [text])
    assert build_tokenizer("bpe", texts, 400).sha256 == learned
    monkeypatch.undo()
    for long in ("é" * 1100, "7" * 1100, " " * 1100, "_" * 1100, "!?" * 550):
        parts = list(_without_long_runs(f"a {long} b"))
        assert "".join(parts) == f"a {long} b"
        assert max(map(len, parts)) <= 514
