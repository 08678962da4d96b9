"""Text tasks on shards: the tokens of text in memory, mixtures by weight, resume to the same bits, and plans."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from linnet.cli.app import run_app
from linnet.config import dump_config, load_recipe_config, parse_config
from linnet.data import shards
from linnet.data.corpora import SPLITS
from linnet.errors import InputError
from linnet.registry import TASK
from linnet.tasks import sharded_text

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path):
    """Two corpora: text files and JSON lines."""
    (tmp_path / "books").mkdir()
    for path in sorted((ROOT / "docs").glob("*.md"))[:6]:
        shutil.copy(path, tmp_path / "books")
    rows = [{"body": f"row {i} says {'word ' * (i % 30)}"} for i in range(800)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def table(folder, task="causal_lm", steps=4, **data):
    data = {"corpus": "shards", "tokenizer": "bytes", "context": 32, "cache": str(folder / "cache"), **data}
    train = {"batch": 8, "steps": steps, "save_every": 2, "eval_batches": 1, "threads": 1}
    preset = "transnormer_t2_roberta_small" if task == "masked_lm" else "transnormer_t2_lm_small"
    model = {"preset": preset, "layers": ["norm"], "width": 16, "heads": 2, "ffn_width": 24}
    return {"task": task, "seed": 3, "data": data, "model": model, "train": train}


def made(folder, task="causal_lm", **data):
    config = parse_config(table(folder, task, **data))
    config.data.check()
    found = TASK[task](config)
    found.prepare()
    return found


def mixture(folder, books=3.0, web=1.0):
    web_part = {"path": str(folder / "web.jsonl"), "field": "body", "weight": web}
    return {"books": {"path": str(folder / "books"), "weight": books}, "web": web_part}


@pytest.mark.parametrize("tokenizer", ["bpe", "word", "bytes"])
def test_tokenizer_and_tokens_are_those_of_text_in_memory(folder, tokenizer):
    whole = made(folder, corpus="text", path=str(folder / "books"), tokenizer=tokenizer, held_out="auto")
    found = made(folder, path=str(folder / "books"), tokenizer=tokenizer)
    assert found.tokenizer.sha256 == whole.tokenizer.sha256
    for split in SPLITS:
        tokens = found.streams[split].tokens
        assert tokens[np.arange(len(tokens))].tolist() == whole.streams[split].tokens.tolist()
        assert found.streams[split].words == whole.streams[split].words
    assert sorted(found.train_samples(0)[0]) != sorted(whole.train_samples(0)[0])


def test_a_mixture_is_read_by_its_weights_and_each_block_once_per_epoch(folder):
    task = made(folder, mixture=mixture(folder))
    books, web = (each.sum("count") for each in task.corpus._opened["train"])
    border, total = -(-books // 32), (books + web) // 32
    drawn = [task.train_samples(number) for number in range(10_000 // 8)]
    samples, epochs = (np.concatenate(each) for each in zip(*drawn, strict=True))
    assert (samples < border).sum() == 7500
    for first, stop in ((0, border), (border, total)):
        mine = (samples >= first) & (samples < stop)
        for epoch in range(int(epochs[mine].max())):
            assert sorted(samples[mine & (epochs == epoch)]) == list(range(first, stop))
    batch = task.train_batch(5)["targets"]
    tokens = task.streams["train"].tokens
    assert torch.equal(batch[2], torch.from_numpy(tokens[samples[42] * 32 + np.arange(32)].astype(np.int64)))


def test_the_order_of_tables_does_not_matter_and_the_fingerprint_names_both_corpora(folder):
    parts = mixture(folder)
    one, two = made(folder, mixture=parts), made(folder, mixture=dict(reversed(parts.items())))
    assert one.fingerprint() == two.fingerprint()
    assert [one.train_samples(k)[0].tolist() for k in range(9)] == [two.train_samples(k)[0].tolist() for k in range(9)]
    (folder / "web.jsonl").write_text('{"body": "one more row"}\n' * 900)
    assert made(folder, mixture=parts).fingerprint()["train"] != one.fingerprint()["train"]


def run(folder, name, steps=4, code=0, task="causal_lm", **data):
    config = parse_config(table(folder, task, steps=steps, **data))
    (folder / "my.toml").write_text(dump_config(config))
    assert run_app(["train", str(folder / "my.toml"), "--out", str(folder / name), "--json"]) == code
    return folder / name


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_a_run_on_a_mixture_resumes_to_the_same_bits_where_its_files_have_moved(folder, task, capsys):
    whole = run(folder, "whole", task=task, mixture=mixture(folder))
    half = run(folder, "half", task=task, mixture=mixture(folder))
    shutil.rmtree(half / "checkpoints" / "step-4")
    moved = folder / "moved"
    moved.mkdir()
    shutil.move(folder / "books", moved / "books")
    shutil.move(folder / "web.jsonl", moved / "web.jsonl")
    text = (half / "config.toml").read_text()
    for name in ("books", "web.jsonl"):
        text = text.replace(f'"{folder / name}"', f'"{moved / name}"')
    (half / "config.toml").write_text(text)
    shutil.rmtree(folder / "cache")  # the shards are made again, the same
    assert run_app(["resume", str(half)]) == 0
    for file in ("checkpoints/step-4/model.safetensors", "checkpoints/step-4/optimizer.safetensors", "metrics.jsonl"):
        assert (half / file).read_bytes() == (whole / file).read_bytes()
    (half / "config.toml").write_text(text.replace("weight = 3.0", "weight = 2.0"))
    capsys.readouterr()
    assert run_app(["resume", str(half)]) == 2
    assert "config.toml: data.mixture is " in capsys.readouterr().err


def test_a_dry_run_estimates_until_there_are_shards(folder, monkeypatch, capsys):
    (folder / "my.toml").write_text(dump_config(parse_config(table(folder, mixture=mixture(folder)))))
    plan = ["train", str(folder / "my.toml"), "--dry-run"]
    with monkeypatch.context() as patch:
        patch.setattr(shards, "open_shards", lambda *_: pytest.fail("tokenized"))
        patch.setattr(sharded_text, "open_shards", lambda *_: pytest.fail("tokenized"))
        assert run_app([*plan, "--json"]) == 0
        guess = json.loads(capsys.readouterr().out)
        assert run_app(plan) == 0
        assert "# tokens of web: train about " in capsys.readouterr().out
    assert guess["estimated"] == ["books", "web"]
    assert not (folder / "cache").exists()
    run(folder, "run", mixture=mixture(folder))
    capsys.readouterr()
    assert run_app([*plan, "--json"]) == 0
    exact = json.loads(capsys.readouterr().out)
    assert exact["estimated"] == []
    for name in ("books", "web"):
        assert guess["corpora"][name]["train"] == pytest.approx(exact["corpora"][name]["train"], rel=0.03)
    task = made(folder, mixture=mixture(folder))
    assert exact["samples"] == {split: task.count(split) for split in SPLITS}
    assert exact["corpora"]["web"]["test"] == task.corpus._opened["test"][1].sum("count")


def test_the_remarks_say_what_is_read_held_out_and_skipped(folder):
    (folder / "books" / "picture.png").write_bytes(b"\x89PNG")
    lines = made(folder, mixture=mixture(folder)).remarks()
    assert lines[0].startswith("books: 6 files, ")
    assert ", 0.75 of the samples; tokens: train " in lines[0]
    assert any(line.startswith("held out for valid (the end of every file): ") for line in lines)
    assert any("picture.png (.png is not read as text)" in line for line in lines)


def test_a_large_corpus_gives_its_tokenizer_a_sample(folder, monkeypatch):
    task = made(folder, mixture=mixture(folder))
    whole = sum(len(text.encode()) for text in task.corpus.sample())
    assert whole == pytest.approx(task.corpus.size("train"), rel=0.01)
    (folder / "long.txt").write_text("".join(f"line {i} of many\n" for i in range(100_000)))
    task = made(folder, path=str(folder / "long.txt"))
    monkeypatch.setattr(sharded_text, "SAMPLE", 1 << 18)
    sample = sum(len(text.encode()) for text in task.corpus.sample())
    assert sample < 1.3 * (1 << 18) < task.corpus.size("train")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"path": None}, "data.path is missing: set it to a file or folder, or set data.mixture to several"),
        ({"path": "x", "mixture": {"a": {"path": "a", "weight": 1}}}, "data.path is 'x': with data.mixture, each"),
        ({"mixture": {}}, "data.mixture is empty: give each corpus a table with path and weight"),
        ({"mixture": {"a": {"path": "a"}}}, "data.mixture.a.weight is missing"),
        ({"mixture": {"a": {"path": "a", "weight": -1}}}, "data.mixture.a.weight is -1"),
        ({"mixture": {"a": {"path": "a", "weight": 0}}}, "data.mixture.a.weight is 0"),
        ({"mixture": {"a": {"path": "a", "weight": "2"}}}, "data.mixture.a.weight is '2'"),
        ({"mixture": {"a": {"weight": 1}}}, "data.mixture.a.path is missing"),
        ({"mixture": {"a": {"path": "a", "wieght": 1, "weight": 1}}}, "data.mixture.a.wieght is 1"),
        (
            {"mixture": {"a": {"path": "a", "weight": 1}, "b": {"path": "b", "weight": 1e-5}}},
            "data.mixture.b.weight is 1e-05: that is under one of 10,000 samples",
        ),
        ({"path": "x", "corpus": "text", "field": "body"}, "data.field is 'body': only data.corpus 'shards' uses it"),
        ({"path": "x", "kind": "json"}, "data.kind is 'json'"),
        ({"path": "x", "context": 10**7}, "x does not exist: data.path must be a file of text, JSON lines or Parquet"),
    ],
)
def test_mistakes_are_one_line_that_names_the_key(folder, data, said):
    given = {key: value for key, value in data.items() if value is not None}
    with pytest.raises(InputError) as error:
        made(folder, **given)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_corpus_too_small_for_a_block_is_named(folder):
    (folder / "tiny.jsonl").write_text('{"text": "x"}\n' * 30)
    parts = {**mixture(folder), "tiny": {"path": str(folder / "tiny.jsonl"), "weight": 1.0}}
    with pytest.raises(InputError, match=r"the train split of tiny has 54 tokens, too few for a block of data.context"):
        made(folder, mixture=parts, context=64)


def test_nothing_is_written_to_a_run_whose_data_are_bad(folder, capsys):
    (folder / "web.jsonl").write_text('{"body": "good"}\n{"text": "bad"}\n')
    run(folder, "run", code=2, mixture=mixture(folder))
    err = capsys.readouterr().err
    assert "web.jsonl, line 2: it has no field 'body' (data.field); its fields are 'text'" in err
    assert not (folder / "run").exists()


def test_a_mixture_can_be_set_from_the_command_line(folder):
    sets = [f"data.mixture.books.path={folder / 'books'}", "data.mixture.books.weight=3"]
    sets += [
        f"data.mixture.web.path={folder / 'web.jsonl'}",
        "data.mixture.web.weight=1",
        "data.mixture.web.field=body",
    ]
    config = load_recipe_config("shards", sets)
    assert {name: part.weight for name, part in config.data.mixture.items()} == {"books": 3.0, "web": 1.0}
    assert parse_config(config.model_dump(exclude_none=True)) == config
