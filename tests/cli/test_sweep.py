"""`linnet sweep`: every combination of a grid, shared runs, a table and the best."""

import json
import sys

SMALL = (
    *("train.steps=4", "train.warmup=1", "train.batch=2", "train.eval_every=2", "train.save_every=4"),
    *("data.corpus=text", "data.tokenizer=bytes", "data.context=32", "model.width=16", "model.heads=2"),
    *("model.ffn_width=16", 'model.layers=["norm"]'),
)


def test_a_sweep_runs_shares_and_names_the_best(run, tmp_path):
    (tmp_path / "my.txt").write_text("".join(f"{i} and {i * i}\n" for i in range(300)))
    sets = [word for each in (*SMALL, f"data.path={tmp_path / 'my.txt'}") for word in ("--set", each)]
    words = ("sweep", "smoke", "--grid", "train.lr=1e-6,3e-3", *sets, "--out", tmp_path / "out")
    code, out, err = run(*words, "--seeds", "2", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["done"], found["planned"], found["best"]["setting"]) == (4, 4, ["train.lr=3e-3"])
    assert found["best"]["measure"] == "perplexity" and found["best"]["seeds"] == 2
    code, out, err = run(*words, "--seeds", "2")
    assert code == 0 and "train.lr=3e-3" in out and " to " in out  # a range over seeds
    assert "best on the validation split: train.lr=3e-3, perplexity" in out and "step" not in err  # nothing was trained
    code, out, err = run(*words, "--seeds", "3", "--render")  # two runs more, which the page names
    planned = out.partition("Planned and not run")[2].splitlines()[0]
    assert code == 0 and "`train.lr=1e-6-seed2`, `train.lr=3e-3-seed2`" in planned
    folders = sorted(path.name for path in (tmp_path / "out").iterdir() if "seed" in path.name)
    before = {name: (tmp_path / "out" / name / "metrics.jsonl").stat().st_mtime_ns for name in folders}
    assert folders == [f"train.lr={lr}-seed{seed}" for lr in ("1e-6", "3e-3") for seed in (0, 1)]
    other = ("sweep", "smoke", "--grid", "train.lr=3e-3", *sets, "--out", tmp_path / "out", "--json")
    assert json.loads(run(*other)[1])["done"] == 1  # a smaller grid finds its run there
    after = {name: (tmp_path / "out" / name / "metrics.jsonl").stat().st_mtime_ns for name in folders}
    assert before == after


def test_a_missing_library_is_named_before_the_training(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for words in (("sweep", "smoke", "--grid", "train.lr=1e-3"), ("reproduce", "recall")):
        code, out, err = run(*words, "--out", tmp_path / "out")
        assert (code, out) == (2, "") and err.startswith("linnet: a figure needs matplotlib: ") and err.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_a_grid_is_planned_and_mistakes_are_one_line(run):
    grids = ("--grid", "train.lr=1e-3,3e-3", "--grid", 'model.layers=["norm"],["diag", "norm"]')
    rows = json.loads(run("sweep", "smoke", *grids, "--seeds", "3", "--dry-run", "--json")[1])
    assert len(rows) == 12 and rows[0]["parameters"] != rows[1]["parameters"]
    for grid, said in (
        ("train.lr", "must be a key and values"),
        ("train.lr=1,1", "occurs twice"),
        ("train.lr=1,", "must"),
    ):
        code, out, err = run("sweep", "smoke", "--grid", grid, "--dry-run")
        assert (code, out) == (2, "") and said in err and err.count("\n") == 1
    assert (
        run("sweep", "smoke")[2] == "linnet: --grid is missing: give at least one, such as --grid train.lr=1e-3,3e-3\n"
    )
    assert run("sweep", "smoke", "--grid", "train.lrr=1", "--dry-run")[0] == 2
