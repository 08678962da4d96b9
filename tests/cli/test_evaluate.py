"""`linnet evaluate`."""

import json
import math

import pytest

from linnet.storage import read_run_metrics


def test_perplexity_by_token_and_by_word(run, trained):
    code, out, err = run("evaluate", trained, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["split"] == "test"
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    assert found["word_perplexity"] == pytest.approx(math.exp(found["loss"] * found["tokens"] / found["words"]))
    assert found["context"] == 32


def test_people_get_a_table(run, trained):
    code, out, _ = run("evaluate", trained, "--split", "valid")
    assert code == 0
    assert all(name in out for name in ("perplexity", "word perplexity", "context", "valid"))


def test_checkpoints_by_name_and_number(run, trained):
    valid = [record for record in read_run_metrics(trained / "metrics.jsonl") if record["split"] == "valid"]
    best = min(valid, key=lambda record: record["loss"])["step"]
    losses = {
        which: json.loads(run("evaluate", trained, "--json", "--checkpoint", which)[1])["loss"]
        for which in ("last", "best", "5", "10")
    }
    assert losses["last"] == losses["10"] != losses["5"]
    assert losses["best"] == losses[str(best)]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--split", "tset"], "did you mean 'test'?"),
        (["--checkpoint", "first"], "--checkpoint is 'first'"),
        (["--checkpoint", "7"], "no checkpoint of that step"),
    ],
)
def test_a_mistake_is_one_line(run, trained, options, line):
    code, out, err = run("evaluate", trained, *options)
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1


def test_any_text_is_measured_as_a_split_is(run, trained, tmp_path):
    """The text of the test split gives the numbers of the test split."""
    from linnet.screen import Screen
    from linnet.train.run import open_run

    documents = open_run(trained, Screen(quiet=True)).task.corpus.splits["test"]
    (tmp_path / "one.txt").write_text(documents[0].text)
    split = json.loads(run("evaluate", trained, "--json")[1])
    found = json.loads(run("evaluate", trained, "--text", tmp_path / "one.txt", "--json")[1])
    assert found["bytes"] == len(documents[0].text.encode()) and found["context"] == split["context"]
    if len(documents) == 1:
        assert found["loss"] == pytest.approx(split["loss"], rel=1e-5) and found["words"] == split["words"]
    assert 0 < found["loss"] < 10 and found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    for bad, why in ((b"", "it is empty"), (b"\xff", "it is not UTF-8 text")):
        (tmp_path / "bad.txt").write_bytes(bad)
        assert why in run("evaluate", trained, "--text", tmp_path / "bad.txt")[2]
    assert run("evaluate", trained, "--text", tmp_path / "absent.txt")[0] == 2
