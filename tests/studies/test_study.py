"""A study: its runs differ in what they should, stop and go on, and leave records that render to a table."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import linnet
from linnet.errors import InputError, LinnetError
from linnet.screen import Screen
from linnet.studies.results import digest, read_results, render, rendered, to_markdown
from linnet.studies.study import STUDIES, Row, Study, chosen, run_study, trials
from linnet.train.run import start_run

ROOT = Path(__file__).parent.parent.parent
COMMITTED = sorted({path.parent for path in ROOT.glob("docs/results/*/*.json")})
TINY = Study(
    title="A tiny study",
    recipes={"cpu": "smoke"},
    endings={"cpu": "_lm_small"},
    cpu_sets=("train.steps=4", "train.warmup=1", "train.log_every=2", "train.eval_every=2", "train.eval_batches=1"),
    rows=(Row("T2", "transnormer_t2", seeds=2), Row("1+elu", "elu", ("model.layers=['elu', 'elu']",))),
)


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    text = tmp_path / "corpus.txt"
    text.write_text("the cat sat on the mat and looked at the moon\n" * 400)
    sets = (*TINY.cpu_sets, "data.corpus=text", f"data.path={text}")
    monkeypatch.setitem(STUDIES, "tiny", Study(TINY.title, TINY.recipes, TINY.endings, sets, TINY.rows))
    return tmp_path


def test_the_first_seed_of_every_row_comes_first() -> None:
    order = [(trial.row.name, trial.seed) for trial in trials(STUDIES["transnormer-table4"], "cpu")]
    assert [seed for _, seed in order] == [0] * 15 + [1] * 3 + [2] * 3
    assert order[15:18] == [("T2", 1), ("vanilla", 1), ("vanilla with LRPE", 1)]


def test_runs_can_be_chosen_by_the_beginning_of_their_names() -> None:
    planned = list(trials(STUDIES["transnormer-table6"], "cpu"))
    names = [trial.name for trial in chosen(planned, ("listops-vanilla-seed0", "listops-T"))]
    assert names[0] == "listops-vanilla-seed0"
    assert {name.rpartition("-")[0] for name in names[1:]} == {"listops-T1", "listops-T2", "listops-T2-pretrained"}
    assert chosen(planned, ()) == planned
    with pytest.raises(InputError, match="unknown run 'listop-T2': did you mean 'listops-T2"):
        chosen(planned, ("listop-T2",))


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_runs_differ_in_the_model_and_the_seed_alone(name: str) -> None:
    for scale in STUDIES[name].recipes:
        configs: dict[str, set[tuple[str, str, int]]] = {}
        for trial in trials(STUDIES[name], scale):
            c, own = trial.config, {"steps", "pretrain_steps"}
            steps = c.train.steps + (c.train.pretrain_steps or c.train.steps) * c.pretrain
            settings = (c.data.model_dump_json(), c.train.model_dump_json(exclude=own), steps)
            configs.setdefault(c.task, set()).add(settings)
        assert all(len(found) == 1 for found in configs.values())


def test_the_arena_runs_every_system_on_every_task_at_the_papers_size() -> None:
    tasks: dict[str, list[str]] = {}
    for trial in trials(STUDIES["transnormer-table6"], "paper"):
        assert trial.config.train.steps == 50_000
        assert trial.config.model["preset"].endswith("_lra")
        tasks.setdefault(trial.config.task, []).append(trial.row.name)
    assert set(tasks) == {f"lra/{name}" for name in ("listops", "text", "retrieval", "pathfinder", "image")}
    assert all({"T1", "T2", "vanilla"} <= set(names) == set(tasks["lra/text"]) for names in tasks.values())
    names = [trial.name for trial in trials(STUDIES["transnormer-table6"], "cpu")]
    assert len(names) == len(set(names))
    assert {"listops-lln_diag-seed0", "text-vanilla-seed0", "retrieval_small-1-elu-seed0"} <= set(names)


def test_more_seeds_of_every_system_can_be_asked_for() -> None:
    study = STUDIES["transnormer-table6"]
    usual, more = (list(trials(study, "cpu", seeds)) for seeds in (None, 3))
    assert [trial.name for trial in more[: len(usual)]] == [trial.name for trial in usual]
    assert len(more) == 3 * len(usual)
    assert {trial.seed for trial in more} == {trial.config.seed for trial in more} == {0, 1, 2}
    assert len(list(trials(STUDIES["transnormer-table4"], "cpu", 1))) == 15  # or fewer


def test_a_study_goes_on_and_renders(tiny: Path) -> None:
    out, results, quiet = tiny / "runs", tiny / "results", Screen(quiet=True)
    first = next(trials(STUDIES["tiny"], "cpu"))
    start_run(first.config, out / first.name, quiet)  # as if a study had been stopped after its first run
    assert run_study("tiny", "cpu", out, results, quiet) == 0
    records = read_results(results)
    assert sorted((r["row"], r["seed"]) for r in records) == [("1+elu", 0), ("T2", 0), ("T2", 1)]
    assert all(r["tokens"] == 4 * 8 * 128 and len(r["curve"]) == 4 and r["test"]["split"] == "test" for r in records)
    assert str(tiny) not in json.dumps(records)  # no path of this machine
    page, picture = render(results, "A tiny study")
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert digest(records).encode() in picture.read_bytes()
    assert to_markdown(records) in page.read_text()
    before = page.read_text()
    render(results, "A tiny study")
    assert page.read_text() == before
    assert run_study("tiny", "cpu", out, results, quiet) == 0  # nothing is left to do


@pytest.mark.parametrize(
    ("sets", "told"),
    [
        (("train.steps=5",), "steps is 5, not 4"),
        (("train.lr=0.5",), "train.lr is 0.5, not"),
        (("model.dropout=0.3",), "the model is another"),
        (("model.preset=vanilla_lm_small",), "model is 'vanilla_lm_small', not 'transnormer_t2_lm_small'"),
    ],
)
def test_a_run_with_other_settings_than_the_study_has_now_is_not_taken_for_its_own(tiny, monkeypatch, sets, told):
    out, results, quiet = tiny / "runs", tiny / "results", Screen(quiet=True)
    first = next(trials(STUDIES["tiny"], "cpu"))
    start_run(first.config, out / first.name, quiet)
    rows = (replace(TINY.rows[0], sets=sets),)
    monkeypatch.setitem(STUDIES, "tiny", replace(STUDIES["tiny"], rows=rows))
    with pytest.raises(InputError, match=f"T2-seed0 is a run of an earlier form of the study, in which now {told}"):
        run_study("tiny", "cpu", out, results, quiet)
    assert not results.exists()


def test_recall_is_of_every_causal_mechanism() -> None:
    found = [(trial.row.name, trial.seed, trial.config.model["layers"]) for trial in trials(STUDIES["recall"], "cpu")]
    causal = [name for name in linnet.list_attention() if linnet.describe_attention(name)["causal"]]
    assert found == [(name, seed, ["diag", name]) for seed in range(3) for name in causal]
    assert len({trial.name for trial in trials(STUDIES["recall"], "cpu")}) == len(found)
    config = next(trials(STUDIES["recall"], "cpu")).config
    for options in config.model["options"].values():  # nothing local holds a sample, and nothing is longer than one
        assert all(size <= config.data.context // 4 for name, size in options.items() if name != "max_length")
    assert config.model["options"]["cosformer"] == {"max_length": config.data.context}


def test_a_study_of_recall_renders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    study, quiet = STUDIES["recall"], Screen(quiet=True)
    sets = ("train.steps=2", "train.warmup=1", "data.pairs=[1, 3]", "data.context=9", "train.eval_batches=2")
    rows = tuple(row for row in study.rows if row.name in ("softmax", "norm"))
    monkeypatch.setitem(STUDIES, "recall", replace(study, cpu_sets=sets, rows=rows))
    assert run_study("recall", "cpu", tmp_path / "runs", tmp_path / "results", quiet) == 0
    records = read_results(tmp_path / "results")
    assert sorted((r["row"], r["seed"]) for r in records) == [(n, s) for n in ("norm", "softmax") for s in range(3)]
    assert all(0 <= r["test"][f"accuracy_{P}_pairs"] <= 1 for r in records for P in (1, 3))
    page, picture = render(tmp_path / "results", study.title)
    assert to_markdown(records) in page.read_text()
    assert digest(records).encode() in picture.read_bytes()


def test_unequal_budgets_are_refused(tiny: Path) -> None:
    quiet = Screen(quiet=True)
    run_study("tiny", "cpu", tiny / "runs", tiny / "results", quiet)
    records = read_results(tiny / "results")
    records[0]["tokens"] += 1
    with pytest.raises(LinnetError, match="different budgets"):
        to_markdown(records)


def test_bad_names_and_empty_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'transnormer-table4'"):
        run_study("transnormer-table-4", "cpu", tmp_path, tmp_path, Screen(quiet=True))
    with pytest.raises(InputError, match="unknown scale 'gpu'"):
        list(trials(STUDIES["transnormer-table4"], "gpu"))
    with pytest.raises(InputError, match="holds no results"):
        read_results(tmp_path)
    for text in ("{", "[]", "3", "{}", '{"rows": [], "tokens": 1}', '{"row": "T2", "seed": 0}'):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(LinnetError, match="is not a result"):
            read_results(tmp_path)
    measured = {"rows": [], "tokens": 1, "batch": 4, "others": None, "environment": {}, "command": "x"}
    (tmp_path / "x.json").write_text(json.dumps(measured))
    (tmp_path / "y.json").write_text(json.dumps({"study": "z", "settings": {}, "command": "y"}))
    with pytest.raises(InputError, match="holds results of several kinds"):
        read_results(tmp_path)


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda path: path.name)
def test_committed_pages_are_what_the_records_render_to(folder: Path) -> None:
    records = read_results(folder)
    picture = folder.with_suffix(".png")
    assert rendered(records, picture.name) in folder.with_suffix(".md").read_text()
    assert digest(records).encode() in picture.read_bytes()


@pytest.mark.parametrize(
    "folder", [path for path in COMMITTED if path.name.startswith("transnormer")], ids=lambda path: path.name
)
def test_committed_runs_on_a_task_are_of_one_size(folder: Path) -> None:
    sizes: dict[str, list[int]] = {}
    records = read_results(folder)
    for record in records:
        if "parameters" in record:
            sizes.setdefault(record["config"]["task"], []).append(record["parameters"])
    assert sizes or all("rows" in record for record in records)  # or it is about speed
    assert all(max(found) / min(found) < 1.01 for found in sizes.values())
