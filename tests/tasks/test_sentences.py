"""Sentence tasks on a real encoder: pairs, exact padding, pretrained weights, resume, predictions, refused input."""

from pathlib import Path

import numpy as np
import pytest
import torch

import linnet
from linnet.cli.app import run_app as run
from linnet.config import load_recipe_config
from linnet.data.tokenizer import Tokenizer
from linnet.errors import InputError
from linnet.screen import Screen
from linnet.train.run import Run, open_run

QUIET = Screen(quiet=True)
ENCODER = """
task = "masked_lm"
[data]
corpus = "text"
path = "{text}"
tokenizer = "bytes"
context = 64
[model]
preset = "transnormer_t2_roberta_small"
layers = ["diag", "norm"]
width = 16
heads = 2
ffn_width = 24
max_length = 128
[train]
steps = 4
batch = 4
warmup = 0
eval_every = 0
"""
SHORT = (
    "train.steps=4",
    "train.warmup=0",
    "train.batch=16",
    "train.eval_every=2",
    "train.save_every=2",
    "train.threads=1",
)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("encoder")
    text = Path(__file__).parent.parent.parent / "CONTRIBUTING.md"
    (folder / "mlm.toml").write_text(ENCODER.format(text=text))
    assert run(["train", str(folder / "mlm.toml"), "--out", str(folder / "run"), "--json"]) == 0
    return folder / "run"


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """Texts of different lengths; the label is whether a text begins with a vowel."""
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghij "))
    texts = ["".join(rng.choice(letters, n)).strip() or "a" for n in rng.integers(3, 60, 80)]
    path = tmp_path_factory.mktemp("table") / "mine.tsv"
    rows = [f"{text}\t{text[::-1]} and more\t{'vowel' if text[0] in 'aei' else 'other'}" for text in texts]
    path.write_text("text\tsecond\tlabel\n" + "\n".join(rows) + "\n")
    return path


def sets(encoder, table, *more):
    given = ("task=classify", f"data.encoder={encoder}", f"data.path={table}", "data.context=64")
    return [word for assignment in (*given, *SHORT, *more) for word in ("--set", assignment)]


def finetune(encoder, table, out, *more):
    words = ["finetune", str(encoder), "classify", "--out", str(out), "--json"]
    return run([*words, *sets(encoder, table, *more)[2:]])


def made(encoder, table, *more):
    config = load_recipe_config("finetune", sets(encoder, table, 'data.labels=["other","vowel"]', *more)[1::2])
    return Run(config, None, QUIET)


def test_pairs_are_joined_and_cut_as_in_roberta(encoder, table):
    task = made(encoder, table, "data.pair=second", "data.context=16").task
    bos, eos = Tokenizer.bos, Tokenizer.eos
    assert task._joined([10, 11], [12]).tolist() == [bos, 10, 11, eos, eos, 12, eos]
    assert task._joined([10, 11], None).tolist() == [bos, 10, 11, eos]
    for a, b, kept in (
        (20, 2, (10, 2)),
        (2, 20, (2, 10)),
        (20, 20, (6, 6)),
        (7, 9, (6, 6)),
        (5, 9, (5, 7)),
        (6, 6, (6, 6)),
    ):
        ids = task._joined([7] * a, [8] * b)
        assert ((ids == 7).sum(), (ids == 8).sum()) == kept
        assert len(ids) <= 16


@torch.no_grad()
def test_a_batch_gives_what_each_text_gives_alone(encoder, table):
    made_run = made(encoder, table, "data.pair=second")
    task, model = made_run.task, made_run.model.eval()
    places = np.arange(20)
    batch = task.batch("train", places, places)
    assert "key_mask" in batch
    whole = model(batch["ids"], key_mask=batch["key_mask"])
    for row, ids in enumerate(task.encoded("train")[:20]):
        alone = model(torch.from_numpy(ids)[None])
        torch.testing.assert_close(whole[row : row + 1], alone, rtol=1e-4, atol=1e-5)
    parts = task.parts(batch)
    assert [len(part["ids"]) for part in parts] == [8, 8, 4]
    assert float(task.loss(model, batch)[0]) == pytest.approx(
        sum(float(task.loss(model, part)[0]) for part in parts), 1e-5
    )


def test_the_weights_of_the_encoder_are_taken_over(encoder, table, tmp_path, capfd):
    assert finetune(encoder, table, tmp_path / "run", "train.lr=1e-9") == 0
    before = linnet.load_model(encoder).state_dict()
    after = linnet.load_model(tmp_path / "run").state_dict()
    shared = [name for name in after if not name.startswith("output.")]
    assert set(shared) == {name for name in before if not name.startswith("output.")}
    for name in shared:
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=1e-6)
    assert finetune(encoder, table, tmp_path / "fresh", "train.lr=1e-9", "data.scratch=true") == 0
    fresh = linnet.load_model(tmp_path / "fresh").state_dict()
    assert not torch.allclose(fresh["embedding.weight"], before["embedding.weight"])
    capfd.readouterr()


def test_an_exported_encoder_gives_the_same_run(encoder, table, tmp_path, capfd):
    assert run(["export", str(encoder), "--out", str(tmp_path / "exported"), "--json"]) == 0
    for name, source in (("a", encoder), ("b", tmp_path / "exported")):
        assert finetune(source, table, tmp_path / name) == 0
    one, other = (linnet.load_model(tmp_path / name).state_dict() for name in "ab")
    assert all(torch.equal(one[name], other[name]) for name in one)
    digest = [open_run(tmp_path / name, QUIET).given.data.encoder_sha256 for name in "ab"]
    assert digest[0] == digest[1] is not None
    capfd.readouterr()


def test_resume_and_predict_do_not_need_the_encoder(encoder, table, tmp_path, capfd):
    gone = tmp_path / "encoder"
    assert run(["export", str(encoder), "--out", str(gone), "--json"]) == 0
    assert finetune(gone, table, tmp_path / "run", "train.steps=2") == 0
    assert finetune(gone, table, tmp_path / "whole") == 0
    gone.rename(tmp_path / "elsewhere")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("steps = 2\n", "steps = 4\n", 1))
    assert run(["resume", str(tmp_path / "run"), "--json"]) == 0
    assert (
        run(["predict", str(tmp_path / "run"), "--data", str(table), "--out", str(tmp_path / "p.tsv"), "--json"]) == 0
    )
    lines = (tmp_path / "p.tsv").read_text().splitlines()
    assert lines[0] == "index\tprediction"
    assert len(lines) == 81
    assert {line.split("\t")[1] for line in lines[1:]} <= {"other", "vowel"}
    assert run(["evaluate", str(tmp_path / "run"), "--split", "valid", "--json"]) == 0
    capfd.readouterr()


@pytest.mark.parametrize(
    "more,words",
    [
        (("data.path=absent.tsv",), "absent.tsv"),
        (("data.label=class",), "no column is named 'class'"),
        (("data.context=4",), "data.context is 4"),
        (("data.context=1000", "model.positions=learned"), "positions"),
        (("data.pooling=last",), "data.pooling is 'last'"),
        (("model.width=32",), "does not fit this model"),
    ],
)
def test_bad_settings_are_one_line(encoder, table, tmp_path, capfd, more, words):
    assert finetune(encoder, table, tmp_path / "run", *more) in (1, 2)
    err = capfd.readouterr().err
    assert (err.count("\n"), words in err) == (1, True), err


def test_what_is_no_encoder_is_refused(encoder, table, tmp_path, capfd):
    sets = ("--set", "train.steps=1", "--set", "train.warmup=0")
    assert run(["train", "smoke", *sets, "--out", str(tmp_path / "lm"), "--json"]) == 0
    capfd.readouterr()
    for source, words in (
        (tmp_path / "lm", "reads only what came before"),
        (tmp_path, "is neither a run"),
        (tmp_path / "absent", "absent"),
    ):
        assert finetune(source, table, tmp_path / "run") == 2
        err = capfd.readouterr().err
        assert (err.count("\n"), words in err) == (1, True), err
        assert not (tmp_path / "run").exists()


def test_other_runs_do_not_predict(encoder, tmp_path, capfd):
    assert run(["predict", str(encoder), "--out", str(tmp_path / "p.tsv")]) == 2
    assert "only tasks on sentences" in capfd.readouterr().err
    assert not (tmp_path / "p.tsv").exists()


def test_labels_of_the_head_are_those_of_the_run(encoder, table, tmp_path):
    other = tmp_path / "other.tsv"
    other.write_text(table.read_text().replace("vowel", "consonant"))
    with pytest.raises(InputError, match="the label is 'consonant': it must be one of other, vowel"):
        _ = made(encoder, table, f"data.valid_path={other}").task
