"""`linnet reproduce`: Table 7 and Figure 1 at the smallest real size, unfinished runs, and refused input."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

from linnet.bench import lra
from linnet.figures.figure import read_figure_metadata
from linnet.registry import STUDY
from linnet.studies.records import records_sha256
from linnet.studies.unfinished import unfinished_figures, unfinished_runs


@contextlib.contextmanager
def measured(module):
    """Replaces the process that measures memory, which tests/bench covers."""
    yield lambda job: 1000 * job["tokens"]


@pytest.fixture
def small(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(lra, "BATCH", 1)
    monkeypatch.setattr(lra, "peak_memory_server", measured)
    monkeypatch.setattr(STUDY["transnormer-table7"], "lengths", (64, 2048))
    monkeypatch.setattr(STUDY["transnormer-table7"], "systems", {"T2": "transnormer_t2", "vanilla": "vanilla"})
    return tmp_path


def test_table_7_and_figure_1(small, run):
    code, out, _ = run("reproduce", "transnormer-table7")
    assert code == 0
    assert "| inference, steps per second | 64 | 2,048 |" in out
    assert "2 of 2 runs are done" in out
    results = small / "runs" / "transnormer-table7-cpu" / "results"
    before = (results / "n64.json").read_bytes()
    record = json.loads(before)
    assert (record["schema"], record["study"], record["kind"]) == (2, "transnormer-table7", "measured")
    assert record["models"]["T2"]["options"]["norm"]["positions"] == "rope"
    assert {"row", "preset", "training", "inference", "memory"} == record["rows"][0].keys()
    assert run("reproduce", "transnormer-table7", "--json")[0] == 0
    assert (results / "n64.json").read_bytes() == before  # nothing is measured again
    code, _, err = run("reproduce", "transnormer-figure1")
    assert (code, err.count("\n")) == (2, 1)
    assert "holds no results: `linnet reproduce transnormer-table6` makes them" in err
    scores = small / "runs" / "transnormer-table6-cpu" / "results"
    scores.mkdir(parents=True)
    for name, accuracy in (("T2", 0.4), ("vanilla", 0.3)):
        record = {"row": name, "seed": 0, "config": {"task": "lra/listops"}, "test": {"accuracy": accuracy}}
        record |= {"curve": [], "environment": {}, "command": "linnet reproduce transnormer-table6 --scale cpu"}
        (scores / f"{name}.json").write_text(json.dumps(record))
    code, out, _ = run("reproduce", "transnormer-figure1", "--json")
    assert code == 0
    assert sorted(json.loads(out)["systems"]) == ["T2", "vanilla"]
    assert (small / "runs" / "transnormer-figure1-cpu.png").read_bytes()[:4] == b"\x89PNG"


def test_speed_has_no_other_scale(small, run):
    code, _, err = run("reproduce", "transnormer-table7", "--scale", "paper")
    assert (code, "unknown scale 'paper'" in err) == (2, True)


@pytest.mark.parametrize("name", ["transnormer-table7", "transnormer-figure1", "lln-distribution"])
def test_what_has_no_runs_has_no_seeds(small, run, name):
    code, _, err = run("reproduce", name, "--seeds", "2")
    assert (code, err.count("\n")) == (2, 1)
    assert f"--seeds is 2: {name} has no runs to choose from" in err


def test_only_planned_runs_are_counted_and_only_missing_ones_are_done(small, run):
    results = Path(__file__).parents[2] / "docs/results/transnormer-table6-cpu"
    (small / "there").mkdir()
    for seed in (0, 1):
        record = json.loads((results / "listops-T2-seed0.json").read_text()) | {"seed": seed}
        (small / "there" / f"listops-T2-seed{seed}.json").write_text(json.dumps(record))
    command = ("reproduce", "transnormer-table6", "--results", "there")
    planned = json.loads(run(*command, "--render", "--json")[1])["planned"]
    for options in (("--render",), ("--only", "listops-T2-seed0")):  # neither trains anything
        code, out, _ = run(*command, *options)
        assert (code, out.splitlines()[-1]) == (0, f"1 of {planned} runs are done; other results there: 1")
    out = run(*command, "--render", "--seeds", "2")[1]
    assert out.splitlines()[-1] == f"2 of {2 * planned} runs are done"


@pytest.mark.parametrize(
    "damage",
    [
        {"config": 3},
        {"config": {"task": "lra/listops", "train": []}},
        {"test": {}},
        {"test": {"accuracy": 0.5, "samples": 0}},
        {"curve": [1]},
        {"environment": None},
        {"row": ["T2"]},
        {"loading": "much"},
    ],
    ids=str,
)
def test_a_result_with_a_damaged_table_is_named_in_one_line_and_nothing_is_drawn(small, run, damage):
    results = Path(__file__).parents[2] / "docs/results/transnormer-table6-cpu"
    (small / "there").mkdir()
    for name in ("listops-T1-seed0.json", "listops-T2-seed0.json"):
        record = json.loads((results / name).read_text())
        (small / "there" / name).write_text(json.dumps(record | damage if "T2" in name else record))
    code, _, err = run("reproduce", "transnormer-table6", "--results", "there", "--render")
    assert (code, err.count("\n")) == (1, 1)
    assert "there/listops-T2-seed0.json is damaged: " in err
    assert [path.name for path in small.iterdir()] == ["there"]


def test_results_that_do_not_go_together_are_one_line(small, run):
    results = Path(__file__).parents[2] / "docs/results"
    (small / "there").mkdir()
    for name, seed in (("T1", 0), ("T2", "one")):
        record = json.loads((results / f"transnormer-table6-cpu/listops-{name}-seed0.json").read_text())
        (small / "there" / f"{name}.json").write_text(json.dumps(record | {"seed": seed}))
    code, _, err = run("reproduce", "transnormer-table6", "--results", "there", "--render")
    assert (code, err.count("\n"), "linnet: there is damaged: TypeError" in err) == (1, 1, True)
    (small / "there").rename(small / "transnormer-table6-cpu")
    shutil.copytree(results / "transnormer-table7-cpu", small / "transnormer-table7-cpu")
    code, _, err = run("reproduce", "transnormer-figure1", "--out", "circles.png")
    assert (code, err.count("\n")) == (1, 1)
    assert "transnormer-table6-cpu or transnormer-table7-cpu is damaged: TypeError" in err


def test_a_run_without_an_evaluation_has_a_row_but_no_figure(small, run):
    for name, valid in (("listops-T2-seed0", None), ("listops-vanilla-seed0", 0.25)):
        folder = small / "kept" / name
        folder.mkdir(parents=True)
        (folder / "config.toml").write_text('task = "lra/listops"\n[train]\nsteps = 50_000\n')
        metrics = [{"step": 50, "split": "train", "loss": 2.0}]
        metrics += [{"step": 50, "split": "valid", "loss": 2.0, "accuracy": valid}] if valid else []
        (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
        code, out, _ = run("reproduce", "transnormer-table6", "--scale", "paper", "--out", "kept", "--render")
        assert (code, "| listops-T2-seed0 | 50 | 50,000 | - | - | 0 |" in out) == (0, True)
        assert (small / "kept.png").exists() == ("kept.png" in (small / "kept.md").read_text()) == bool(valid)
    figures = unfinished_figures(unfinished_runs(small / "kept"), "")  # none of perplexity, which is not measured here
    assert [figure.title for figure in figures] == ["Accuracy so far", "Loss so far"]
    assert all([series.name for series in figure.series] == ["listops-vanilla-seed0"] for figure in figures)


def test_how_far_unfinished_runs_are(small, run):
    folder = small / "kept" / "listops-T2-seed0"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('task = "lra/listops"\n[train]\nsteps = 50_000\n')
    metrics = [
        {"step": 500, "split": "train", "loss": 2.0},
        {"step": 500, "split": "valid", "loss": 2.0, "accuracy": 0.25},
        {"step": 1000, "split": "train", "loss": 1.9},
        {"step": 1000, "split": "valid", "loss": 1.9, "accuracy": 0.2},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
    command = ("reproduce", "transnormer-table6", "--scale", "paper", "--out", "kept", "--render")
    code, out, _ = run(*command)
    assert code == 0
    assert "| listops-T2-seed0 | 1,000 | 50,000 | 25.00 % | 500 | 0 |" in out
    assert "| listops-T2-seed0 | 1,000 |" in (small / "kept.md").read_text()
    assert (small / "kept.png").read_bytes()[:4] == b"\x89PNG"
    code, out, err = run(*command, "--json")
    found = json.loads(out)
    assert (code, err, found["begun"]) == (0, "", ["listops-T2-seed0"])
    assert (found["begun_page"], found["begun_figure"], found["page"]) == ("kept.md", "kept.png", None)
    before = folder / "pretrain"
    before.mkdir()
    for name in ("config.toml", "metrics.jsonl"):
        (folder / name).rename(before / name)
    code, out, _ = run(*command)
    assert (code, "| listops-T2-seed0/pretrain | 1,000 |" in out) == (0, True)
    (before / "config.toml").rename(folder / "config.toml")
    for record, listed in ((metrics[2], True), (metrics[3], False)):
        record["step"] = 50_000  # with the evaluation after its last step it is at its end
        (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in metrics))
        code, out, err = run(*command)
        assert (code, "| listops-T2-seed0 | 50,000 | 50,000 |" in out) == ((0, True) if listed else (2, False))
        assert ("holds no results" in err) != listed


@pytest.mark.parametrize(
    ("page", "told"),
    [(b"# Mine\n", "must have the lines <!-- rendered from JSON --> and <!-- end -->"), (b"\xff", "is not UTF-8 text")],
)
def test_a_page_without_markers_is_reported_and_not_changed(small, run, page, told):
    shutil.copytree(Path(__file__).parents[2] / "docs/results/transnormer-table7-cpu", small / "there")
    (small / "there.md").write_bytes(page)
    code, _, err = run("reproduce", "transnormer-table7", "--results", "there", "--render")
    assert (code, err.count("\n"), f"there.md {told}" in err) == (2, 1, True)
    assert (small / "there.md").read_bytes() == page
    assert not (small / "there.png").exists()


@pytest.mark.parametrize("train", ["", "train = 3", "[train]\nsteps = 1e400", '[train]\nsteps = "many"'])
def test_a_run_without_recorded_steps_is_still_reported(small, run, train):
    (small / "kept/listops-T2-seed0").mkdir(parents=True)
    (small / "kept/listops-T2-seed0/config.toml").write_text(f'task = "lra/listops"\n{train}\n')
    code, _, err = run("reproduce", "transnormer-table6", "--scale", "paper", "--out", "kept", "--render")
    assert (code, err.count("\n")) == (1, 1)
    assert "kept/listops-T2-seed0/config.toml is damaged: it does not say how many steps" in err


def test_a_run_whose_pretraining_is_done_is_unfinished_before_its_first_record(small, run):
    folder = small / "kept" / "listops-T2-pretrained-seed0"
    (folder / "pretrain").mkdir(parents=True)
    for place in (folder, folder / "pretrain"):
        (place / "config.toml").write_text('task = "lra/listops"\n[train]\nsteps = 100\n')
    command = ("reproduce", "transnormer-table6", "--scale", "paper", "--out", "kept", "--render", "--json")
    steps = {50: [f"{folder.name}/pretrain"], 100: [folder.name]}
    for step, begun in steps.items():
        done = [{"step": step, "split": split, "loss": 2.0} for split in ("train", "valid")]
        (folder / "pretrain/metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in done))
        assert json.loads(run(*command)[1])["begun"] == begun
    assert f"| {folder.name} | 0 | 100 | - | - | 0 |" in (small / "kept.md").read_text()


@pytest.mark.parametrize(
    "command",
    [
        ("transnormer-table6", "--scale", "paper"),
        ("transnormer-table4",),
        ("transnormer-table7",),
        ("lln-distribution",),
    ],
    ids=lambda command: command[0],
)
def test_results_of_another_study_or_scale_are_refused_before_the_work(small, run, command):
    (small / "there").mkdir()
    other = {"command": "linnet reproduce transnormer-table6 --scale cpu"}
    (small / "there" / "listops-T2-seed0.json").write_text(json.dumps(other))
    code, _, err = run("reproduce", *command, "--results", "there")
    assert (code, err.count("\n")) == (2, 1)
    assert "listops-T2-seed0.json is of `linnet reproduce transnormer-table6 --scale cpu`, not of" in err
    assert not (small / "runs").exists()


@pytest.mark.parametrize("name", ["transnormer-table6", "transnormer-table7", "lln-distribution"])
@pytest.mark.parametrize("option", ["--out", "--results"])
def test_an_unwritable_results_folder_is_reported_before_the_work(small, run, name, option):
    (small / "file").write_text("")
    code, _, err = run("reproduce", name, option, "file/deeper")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{option} is file/deeper: " in err
    assert "is a file, and the results need a folder" in err
    assert [path.name for path in small.iterdir()] == ["file"]


def test_the_committed_circles_are_drawn_from_the_committed_tables():
    root = Path(__file__).parents[2] / "docs/results"
    names = ("transnormer-table6", "transnormer-table7")
    records = [record for name in names for record in STUDY[name]().read(root / f"{name}-cpu")]
    about = read_figure_metadata(root / "transnormer-figure1-cpu.png")
    assert (about["linnet-results"], about["linnet-study"]) == (records_sha256(records), "transnormer-figure1")
    assert "(transnormer-figure1-cpu.png)" in (root / "transnormer-table7-cpu.md").read_text()


@pytest.mark.parametrize("place", ["transnormer-table6-cpu", "transnormer-table6-cpu.png", "renamed.png"])
@pytest.mark.parametrize("option", ["--out", "--results"])
def test_figure_1_never_writes_over_the_picture_of_another_study(small, run, place, option):
    root = Path(__file__).parents[2] / "docs/results"
    for name in ("transnormer-table6-cpu", "transnormer-table7-cpu"):
        shutil.copytree(root / name, small / name)
    picture = small / f"{place.removesuffix('.png')}.png"
    shutil.copy(root / "transnormer-table6-cpu.png", picture)
    before = picture.read_bytes()
    code, _, err = run("reproduce", "transnormer-figure1", option, place)
    assert (code, err.count("\n")) == (2, 1)
    assert f"{picture.name} is a figure of transnormer-table6, not of transnormer-figure1" in err
    assert picture.read_bytes() == before
    picture.write_bytes(before.replace(b"linnet-study", b"nothing-else"))  # as figures were before they named it
    code, _, err = run("reproduce", "transnormer-figure1", option, place)
    assert (code, picture.read_bytes() == before) == ((0, False) if place == "renamed.png" else (2, False))
    assert ("is the figure of the results in" in err) == (place != "renamed.png")


def test_no_study_overwrites_the_picture_of_another(small, run):
    root = Path(__file__).parents[2] / "docs/results"
    shutil.copytree(root / "transnormer-table7-cpu", small / "there")
    shutil.copy(root / "transnormer-table4-cpu.png", small / "there.png")
    code, _, err = run("reproduce", "transnormer-table7", "--results", "there", "--render")
    assert (code, err.count("\n")) == (2, 1)
    assert "there.png is a figure of transnormer-table4, not of transnormer-table7" in err
    assert not (small / "there.md").exists()


@pytest.mark.parametrize("picture", ["docs/benchmarks/ops-causal.png", "LICENSE"])
def test_no_study_overwrites_what_no_study_has_drawn(small, run, picture):
    root = Path(__file__).parents[2]
    for name in ("transnormer-table6-cpu", "transnormer-table7-cpu"):
        shutil.copytree(root / "docs/results" / name, small / name)
    shutil.copy(root / picture, small / "mine.png")
    code, _, err = run("reproduce", "transnormer-figure1", "--results", "mine")
    assert (code, err) == (2, "linnet: mine.png is not a figure of a study: change --out or --results\n")
    assert (small / "mine.png").read_bytes() == (root / picture).read_bytes()


def test_a_dry_run_is_a_table(small, run):
    code, out, err = run("reproduce", "transnormer-table4", "--dry-run", "--only", "T2", "--seeds", "1")
    assert (code, err) == (0, "")
    head, line = out.splitlines()
    assert head.split() == ["run", "parameters", "tokens", "steps", "gpu_hours"]
    assert line.split()[:4] == ["T2-seed0", "2,563,936", "2,048,000", "500"]


def test_bad_names_offer_the_nearest_study(run):
    for name, nearest in (("lln-distributions", "lln-distribution"), ("transnormer-table-4", "transnormer-table4")):
        code, _, err = run("reproduce", name)
        assert (code, f"unknown study '{name}': did you mean '{nearest}'?" in err) == (2, True)
