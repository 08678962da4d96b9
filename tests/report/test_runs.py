"""Runs read from their folders: a model that cannot be built has no parameter count."""

import pytest

from linnet.errors import LinnetError
from linnet.report.runs import SavedRun, read_report_runs

FIELDS = {"layers": ["diag", "norm"], "width": 8, "heads": 2, "ffn_width": 8, "vocab_size": 11, "causal": True}


def parameters(**changes: object) -> int | None:
    return SavedRun("x", {"model": {**FIELDS, **changes}}, {}, [], [], []).parameters()


@pytest.mark.parametrize(
    "changes",
    [
        {"width": 10**12},
        {"width": True},
        {"layers": "diag"},
        {"layers": ["linformer"], "causal": True},
        {"layers": ["lln_diag"], "options": {"lln_diag": {"block": -1}}},
        {"layers": ["cosformer"], "options": {"cosformer": {"max_length": 10**30}}},
        {"preset": "nothing"},
    ],
    ids=str,
)
def test_a_model_that_cannot_be_built_has_no_parameters(changes):
    assert parameters() is not None
    assert parameters(**changes) is None


def test_metrics_that_are_not_those_of_the_checkpoint_are_refused(copy):
    """A report must not draw curves that somebody has edited."""
    folder = copy("edited")
    read_report_runs([folder])
    log = folder / "metrics.jsonl"
    whole = log.read_text()
    log.write_text(whole + '{"step": 10000, "split": "train", "loss": 1.0}\n')  # written since the checkpoint
    read_report_runs([folder])
    log.write_text(whole.replace("0", "1", 1))
    with pytest.raises(LinnetError, match=r"metrics.jsonl has been changed"):
        read_report_runs([folder])
