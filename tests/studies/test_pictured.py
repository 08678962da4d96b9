"""The studies of images: their rows, and a whole small run with its record, table, figures and maps."""

import copy

import pytest

from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.base import Request
from linnet.studies.pictured import FIRST, SYSTEMS
from linnet.studies.trained import Scale

QUICK = ("train.steps=2", "train.warmup=1", "train.batch=8", "train.eval_every=2", "train.save_every=2")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The records of two real runs on digits, in place of CIFAR-10."""
    study = STUDY["vision"]
    kept = study.scales
    study.scales = {"cpu": Scale("digits", "_vit_small", QUICK)}
    try:
        out = tmp_path_factory.mktemp("vision")
        request = Request(out=out / "runs", only=("softmax", "T2"))
        report = study().reproduce(request, Screen(quiet=True))
        assert report.data["done"] == 2
        return study().read(out / "runs/results")
    finally:
        study.scales = kept


def test_rows_are_the_systems_of_both_papers():
    assert STUDY["vision"]().runs("cpu") == [f"{name.replace('+', '-')}-seed0" for name in FIRST]
    assert STUDY["lln-vit"]().runs("cpu") == STUDY["vision"]().runs("cpu")
    assert len(STUDY["lln-vit"]().runs("paper")) == len(SYSTEMS) == 10


def test_the_paper_scale_is_llns_own_size():
    planned = {run.run: run for run in STUDY["lln-vit"]().dry_run("paper")}
    assert planned["lln-seed0"].parameters == 2_530_050
    assert planned["lln-seed0"].tokens == 6_240 * 64 * 1024
    config = next(run.config for run in STUDY["lln-vit"]().study_runs("paper") if run.row.name == "lln")
    assert (config.data.side, config.data.patch, config.train.lr, config.train.eps) == (224, 7, 3e-5, 1e-4)


def test_a_record_holds_accuracy_and_readings_by_layer(records):
    for record in records:
        assert 0 <= record["test"]["accuracy"] <= 1
        layers = record["analysis"]["layers"]
        assert len(layers) == 4
        assert set(layers[0]["values"]) >= {"local_score", "entropy", "temperature", "moment_matching"}
        assert record["analysis"]["length"] == 16
    t2 = next(record for record in records if record["row"] == "T2")
    near, far = (t2["analysis"]["layers"][i]["values"]["local_score"]["area"] for i in (0, 3))
    assert max(near) < min(far)  # windows are local


def test_the_table_sorts_by_accuracy_and_gives_intervals(records):
    records = copy.deepcopy(records)
    by_row = {record["row"]: record for record in records}
    by_row["T2"]["test"] |= {"accuracy": 0.9, "samples": 100}
    by_row["softmax"]["test"] |= {"accuracy": 0.5, "samples": 100}
    more = {**copy.deepcopy(by_row["softmax"]), "seed": 1}
    more["test"]["accuracy"] = 0.7
    study = STUDY["vision"]()
    table = study.parts([*records, more])[0]
    assert [row[0] for row in table.rows] == ["T2", "softmax"]
    assert table.rows[0][2] == "90.0 ± 5.9"  # 1.96 sqrt(0.9 0.1 / 100)
    assert table.rows[1][2] == "60.0 ± 9.6 (50.0 to 70.0, 2 seeds)"
    assert [figure.title for figure in study.figures(records, "")][:2] == ["Validation accuracy", "Local area"]
    assert [row for row, _ in study.maps(records)] == ["first layer", "last layer"]
    assert {claim.verdict for claim in study.claims(records)} <= {"cannot be told at this size"}
