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
