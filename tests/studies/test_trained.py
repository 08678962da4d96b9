"""A study of training runs: they differ only as intended, resume after a stop, and leave records that render."""

import json
from pathlib import Path

import pytest

from linnet.errors import InputError, LinnetError
from linnet.figures.figure import read_figure_metadata
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.base import Request
from linnet.studies.perplexity import Perplexity
from linnet.studies.records import mean_core_seconds, record_code_version, records_sha256
from linnet.studies.trained import Row, Scale
from linnet.train.run import Run, start_run

RESULTS = Path(__file__).parents[2] / "docs/results"
TRAINED = [name for name in STUDY.names() if STUDY[name].kind == "trained"]
QUIET = Screen(quiet=True)
SETS = ("train.steps=4", "train.warmup=1", "train.log_every=2", "train.eval_every=2", "train.eval_batches=1")
ROWS = (Row("T2", "transnormer_t2", seeds=2), Row("1+elu", "elu", ("model.layers=['elu', 'elu']",)))


@pytest.fixture
def tiny(tmp_path):
    """A study of two small systems."""
    text = tmp_path / "corpus.txt"
    text.write_text("the cat sat on the mat and looked at the moon\n" * 400)

    class Tiny(Perplexity):
        name, title, paper, item = "tiny", "A tiny study", "none", "none"
        scales = {"cpu": Scale("smoke", "_lm_small", (*SETS, "data.corpus=text", f"data.path={text}"))}  # noqa: RUF012
        rows = ROWS

    return Tiny()


def test_runs_can_be_chosen_by_the_beginning_of_their_names() -> None:
    study = STUDY["transnormer-table6"]()
    names = [study_run.name for study_run in study.study_runs("cpu", only=["listops-vanilla-seed0", "listops-T"])]
    assert names[0] == "listops-vanilla-seed0"
    assert {name.rpartition("-")[0] for name in names[1:]} == {"listops-T1", "listops-T2", "listops-T2-pretrained"}
    with pytest.raises(InputError, match="unknown run 'listop-T2': did you mean 'listops-T2"):
        study.study_runs("cpu", only=["listop-T2"])


# Learning rates are what these compare, or each system has its best one, as found by mlm-rates.
WITH_RATES = {
    *("mlm-plateau", "mlm-rates", "transnormer-table4-rates"),
    *("transnormer-table5", "lln-glue"),
    *("transnormer-table1", "transnormer-table2-bidirectional", "transnormer-figure2-bidirectional"),
}


@pytest.mark.parametrize("name", TRAINED)
def test_runs_differ_in_the_model_and_the_seed_alone(name: str) -> None:
    study = STUDY[name]()
    for scale in study.scales:
        configs: dict[str, set[tuple[str, str, int]]] = {}
        for study_run in study.study_runs(scale):
            c, own = study_run.config, {"steps", "pretrain_steps", *(("lr",) if name in WITH_RATES else ())}
            steps = c.train.steps + (c.train.pretrain_steps or c.train.steps) * c.pretrain
            settings = (c.data.model_dump_json(exclude={"scratch"}), c.train.model_dump_json(exclude=own), steps)
            configs.setdefault(c.task, set()).add(settings)
        assert all(len(found) == 1 for found in configs.values())


def test_shared_runs_are_the_same_runs() -> None:
    """In studies that share a folder, runs of the same name have the same configuration."""
    found: dict[tuple[str, str, str], str] = {}
    for study in (STUDY[name]() for name in TRAINED if STUDY[name].shared):
        for scale in study.scales:
            for study_run in study.study_runs(scale):
                config = study_run.config.model_dump_json()
                assert found.setdefault((study.shared, scale, study_run.name), config) == config
    assert found


def test_more_seeds_of_every_system_can_be_asked_for() -> None:
    study = STUDY["transnormer-table6"]()
    usual, more = (study.study_runs("cpu", seeds) for seeds in (None, 3))
    assert [study_run.name for study_run in more[: len(usual)]] == [study_run.name for study_run in usual]
    assert len(more) == 3 * len(usual)
    assert {study_run.seed for study_run in more} == {study_run.config.seed for study_run in more} == {0, 1, 2}


def test_a_study_resumes_and_renders(tiny: Perplexity, tmp_path: Path) -> None:
    request = Request(out=tmp_path / "runs", results=tmp_path / "results")
    first = tiny.study_runs("cpu")[0]
    start_run(first.config, tmp_path / "runs" / first.name, QUIET)  # as if the study had been stopped after a run
    report = tiny.reproduce(request, QUIET)
    assert (report.signal, report.data["done"], report.data["planned"]) == (0, 3, 3)
    records = tiny.read(tmp_path / "results")
    assert sorted((r["row"], r["seed"]) for r in records) == [("1+elu", 0), ("T2", 0), ("T2", 1)]
    assert all(r["tokens"] == 4 * 8 * 128 and len(r["curve"]) == 4 and r["test"]["split"] == "test" for r in records)
    assert str(tmp_path) not in json.dumps(records)  # no path of this machine
    page, picture = tmp_path / "results.md", tmp_path / "results.png"
    about = read_figure_metadata(picture)
    assert (about["linnet-study"], about["linnet-results"]) == ("tiny", records_sha256(records))
    assert tiny.to_markdown(records) in page.read_text()
    assert page.read_text().startswith("# A tiny study (cpu scale)\n")
    before = page.read_text(), {path: path.read_bytes() for path in (tmp_path / "results").iterdir()}
    assert tiny.reproduce(request, QUIET).data == report.data  # nothing is left to do
    assert before == (page.read_text(), {path: path.read_bytes() for path in (tmp_path / "results").iterdir()})


def test_a_record_says_what_it_is(tiny: Perplexity, tmp_path: Path) -> None:
    tiny.make(Request(only=("T2-seed1",)), tmp_path / "runs", tmp_path / "results", QUIET)
    (record,) = tiny.read(tmp_path / "results")
    assert (record["schema"], record["study"], record["kind"]) == (2, "tiny", "trained")
    assert record["code"] == record_code_version()
    assert record["command"] == "linnet reproduce tiny --scale cpu"
    assert record["model"]["layers"] == ["diag", "diag", "norm", "norm"]
    assert record["model"]["options"]["norm"] == {**record["model"]["options"]["norm"], "phi": "1+elu", "xnorm": "srms"}
    assert record["checkpoint"] == "last"
    assert mean_core_seconds([record]) == record["core_seconds"] > 0
    assert record["model"]["vocab_size"] > 0


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (("train.steps=5",), "steps is 5, not 4"),
        (("train.lr=0.5",), "train.lr is 0.5, not"),
        (("model.dropout=0.3",), "the model differs"),
        (("model.preset=vanilla_lm_small",), "model is 'vanilla_lm_small', not 'transnormer_t2_lm_small'"),
    ],
)
def test_a_run_with_other_settings_than_the_study_has_now_is_not_taken_for_its_own(
    tiny, monkeypatch, tmp_path, sets, told
):
    first = tiny.study_runs("cpu")[0]
    start_run(first.config, tmp_path / "runs" / first.name, QUIET)
    monkeypatch.setattr(type(tiny), "rows", (ROWS[0]._replace(sets=sets),))
    with pytest.raises(InputError, match=f"T2-seed0 was made by an earlier version of the study; now {told}"):
        tiny.make(Request(), tmp_path / "runs", tmp_path / "results", QUIET)
    assert not (tmp_path / "results").exists()


def test_a_run_with_changed_options_is_taken_up_again(tiny, monkeypatch, tmp_path):
    """The options of the plan change those of the preset, and do not replace them."""
    row = ROWS[0]._replace(sets=(*ROWS[0].sets, "model.options.diag.block=32"))
    monkeypatch.setattr(type(tiny), "rows", (row,))
    first = tiny.study_runs("cpu")[0]
    start_run(first.config, tmp_path / "runs" / first.name, QUIET)
    tiny.make(Request(), tmp_path / "runs", tmp_path / "results", QUIET)
    assert tiny.read(tmp_path / "results")[0]["model"]["options"]["diag"]["block"] == 32


def test_a_shared_run_is_scored_once(tiny: Perplexity, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(type(tiny), "shared", "several")
    monkeypatch.setattr(type(tiny), "scored_batches", 1)
    request = Request(only=("T2-seed1",))
    tiny.make(request, tmp_path / "runs", tmp_path / "first", QUIET)
    monkeypatch.setattr(Run, "evaluate", None)
    tiny.make(request, tmp_path / "runs", tmp_path / "second", QUIET)
    first, second = (tiny.read(tmp_path / name) for name in ("first", "second"))
    assert first == second
    assert (tmp_path / "runs/T2-seed1/test-last-4-1.json").exists()


def test_unequal_budgets_are_refused() -> None:
    study = STUDY["transnormer-table4"]()
    records = study.read(RESULTS / "transnormer-table4-cpu")
    records[0]["tokens"] += 1
    with pytest.raises(LinnetError, match="different budgets"):
        study.to_markdown(records)


COMMITTED = [name for name in TRAINED if name.startswith("transnormer") and (RESULTS / f"{name}-cpu").is_dir()]


@pytest.mark.parametrize("name", [name for name in COMMITTED if name != "transnormer-table12"])  # two attentions each
def test_committed_runs_on_a_task_are_of_one_size(name: str) -> None:
    sizes: dict[str, list[int]] = {}
    for record in STUDY[name]().read(RESULTS / f"{name}-cpu"):
        sizes.setdefault(record["config"]["task"], []).append(record["parameters"])
    assert sizes
    assert all(max(found) / min(found) < 1.01 for found in sizes.values())
