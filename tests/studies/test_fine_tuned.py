"""Fine-tuning studies: rates first, then seeds of the best one, on the encoder that the study has pretrained."""

import json

import pytest

from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.base import Request
from linnet.studies.claims import OPEN, Comparison
from linnet.studies.fine_tuned import FineTuned, Plan, encoder_rows, fine_tuned_averages, fine_tuned_rows
from linnet.studies.trained import Scale

QUIET = Screen(quiet=True)
SIZES = ("width=16", "heads=2", "ffn_width=24", "max_length=128")
SHORT = ("data.context=64", "train.steps=2", "train.warmup=0", "train.eval_batches=1")
PLAN = Plan({"rte": 2}, (1e-4, 3e-2), 2, ("train.batch=4", "train.warmup=0", "train.eval_every=1"), scratch=("T2",))


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """T2 of one page of text, on RTE with six pairs."""
    text, glue = tmp_path / "my.txt", tmp_path / "glue/RTE"
    text.write_text("the cat sat on the mat and looked at the moon\n" * 60)
    glue.mkdir(parents=True)
    pairs = [f"{i}\tthe cat sat\tthe cat {i}\t{('entailment', 'not_entailment')[i % 2]}" for i in range(6)]
    for name in ("train.tsv", "dev.tsv"):
        (glue / name).write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *pairs, ""]))
    monkeypatch.setenv("LINNET_DATA", str(tmp_path))
    sets = (
        *SHORT,
        *(f"model.{size}" for size in SIZES),
        f"data.path={text}",
        "data.tokenizer=bpe",
        "data.vocab_size=270",
    )
    encoders = encoder_rows("T2", "transnormer_t2", sets)[:1]

    class Tiny(FineTuned):
        name, title, paper, item = "tiny", "A tiny study", "none", "none"
        scales = {"cpu": Scale("glue_encoder", "_roberta_small")}  # noqa: RUF012
        plans = {"cpu": PLAN}  # noqa: RUF012
        tuned = fine_tuned_rows(encoders, {"cpu": PLAN})
        rows = (*encoders, *(one.row for one in tuned))
        averaged = ("rte",)
        comparisons = (Comparison("Pretraining helps", "T2, not pretrained", "T2"),)

    return Tiny()


def test_rates_come_first_and_the_best_one_has_more_seeds(tiny):
    names = tiny.runs("cpu")
    assert names[:3] == ["T2-seed0", "finetune-T2-on-rte-at-0.0001-seed0", "finetune-T2-on-rte-at-0.03-seed0"]
    assert names[-2:] == ["finetune-T2-on-rte-seed1", "finetune-T2-not-pretrained-on-rte-seed1"]
    assert len(names) == 1 + 2 * (2 + 1)


def test_a_study_pretrains_fine_tunes_and_renders(tiny, tmp_path):
    request = Request(out=tmp_path / "out", results=tmp_path / "records")
    report = tiny.reproduce(request, QUIET)
    assert (report.data["done"], report.data["planned"]) == (7, 7)
    records = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "records").glob("*.json")}
    rates = {rate: records[f"finetune-T2-on-rte-at-{rate:g}-seed0"]["test"]["accuracy"] for rate in PLAN.rates}
    chosen = records["finetune-T2-on-rte-seed1"]["config"]["train"]["lr"]
    assert rates[chosen] == max(rates.values())
    hashes = {name: record["config"]["data"].get("encoder_sha256") for name, record in records.items()}
    assert len({found for name, found in hashes.items() if name.startswith("finetune")}) == 1
    assert records["finetune-T2-on-rte-seed1"]["model"]["output"] == "sentence"
    text = tiny.to_markdown(tiny.read(tmp_path / "records"))
    assert "| T2, not pretrained |" in text
    assert f"| Pretraining helps | {OPEN} |" in text
    planned = {run.run: run.parameters for run in tiny.dry_run("cpu")}
    assert all(planned[name] == record["parameters"] for name, record in records.items())


def test_a_run_waits_for_its_encoder_and_its_rates(tiny, tmp_path):
    request = Request(out=tmp_path / "out", results=tmp_path / "records", only=("finetune-T2-on-rte-seed1",))
    assert tiny.reproduce(request, QUIET).data["done"] == 0


def test_an_average_needs_every_task():
    assert fine_tuned_averages({"a": {0: 1.0, 1: 3.0}, "b": {0: 2.0}}, ("a", "b")) == {0: 1.5}
    assert fine_tuned_averages({"a": {0: 1.0}}, ("a", "b")) == {}


@pytest.mark.parametrize("name", ["transnormer-table5", "lln-glue"])
def test_both_tables_have_the_rates_of_the_paper_at_its_size(name):
    study = STUDY[name]()
    runs = study.study_runs("paper")
    tuned = [run for run in runs if run.config.task.startswith("glue/")]
    assert {run.config.train.lr for run in tuned} == {1e-5, 3e-5, 6e-5, 1e-4}
    assert {run.config.task for run in tuned} >= {"glue/mnli", "glue/qnli", "glue/qqp", "glue/sst2"}
    assert not any("_dev" in run.config.task or "_20k" in run.config.task for run in tuned)
    assert not any("_dev" in task or "_20k" in task for task in STUDY["transnormer-table5"].averaged)
