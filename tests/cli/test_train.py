"""`linnet train` and `linnet resume`."""

import json
import re
import tomllib

import pytest

from linnet.storage import checkpoint_steps


def test_train_then_resume(run, recipe, tmp_path):
    code, out, err = run("train", recipe, "--out", tmp_path / "run", "--set", "train.steps=6")
    assert code == 0
    assert re.fullmatch(rf"finished: 6 steps, 768 tokens, \d+ s: {tmp_path}/run\n", out)
    assert "step 6/6" in err
    code, out, err = run("resume", tmp_path / "run")
    assert code == 0
    assert f"{tmp_path}/run is at step 6 of 6 and finished\n" in err


def test_json_is_all_there_is(run, recipe, tmp_path):
    code, out, err = run("train", recipe, "--out", tmp_path / "run", "--json", "--set", "train.steps=5")
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert (found["step"], found["steps"], found["tokens"], found["signal"]) == (5, 5, 5 * 4 * 32, 0)
    assert found["folder"] == str(tmp_path / "run")
    assert found["valid"]["step"] == 5
    code, out, err = run("resume", tmp_path / "run", "--json")
    assert (code, err, json.loads(out)["valid"]) == (0, "", found["valid"])


def test_the_default_folder_is_named_after_the_recipe(run, recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("train", recipe, "--set", "train.steps=2", "--json")[0] == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert re.fullmatch(r"tiny-\d{8}-\d{6}", folder.name)


def test_a_dry_run_prints_the_whole_configuration_and_writes_nothing(run, recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("train", recipe, "--dry-run", "--out", "run")
    assert code == 0
    shown = tomllib.loads(out)
    assert shown["model"]["vocab_size"] == 261
    assert shown["train"]["betas"] == [0.9, 0.98]
    assert re.search(r"# [\d,]+ parameters; trains on 40 samples of up to 32 tokens, at most 1,280 in all", out)
    assert json.loads(run("train", recipe, "--dry-run", "--json")[1])["config"] == shown
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_gives_an_upper_bound_on_tokens(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sets = (part for key in ("data.count=40", "train.steps=10", "train.warmup=1") for part in ("--set", key))
    code, out, _ = run("train", "lra/listops", "--dry-run", *sets)
    assert code == 0
    told = "# 209,118 parameters; trains on 320 samples of up to 2,000 tokens, at most 640,000 in all, drawn from:"
    drawn, _, memory = out.rpartition("# estimated memory: ")
    assert drawn.endswith(f"{told}\n# train 38, valid 1, test 1\n")
    assert re.fullmatch(r"[\d.]+ MiB: parameters 0.8, gradients 0.8, optimizer 1.6, activations [\d.]+\n", memory)


def test_a_used_folder_is_refused_with_a_hint(run, recipe, trained):
    code, out, err = run("train", recipe, "--out", trained)
    assert (code, out) == (2, "")
    assert err == f"linnet: {trained} is not empty: `linnet resume {trained}` continues it\n"


@pytest.mark.parametrize(
    ("sets", "code", "line"),
    [
        (["data.path=/nowhere/at/all"], 2, "/nowhere/at/all does not exist"),
        (["model.preset=linformer_lm_small"], 2, "unknown model 'linformer_lm_small'"),
        (["model.preset=vanilla_roberta_small"], 2, "model.output is 'masked_lm': the task causal_lm needs"),
        (["model.options.norm.phy=1"], 2, "'phy': did you mean 'phi'?"),
        (["model.heads=3"], 2, "model.heads is 3: it must divide width"),
        (["data.context=1000000"], 2, "too few for a block of data.context = 1000000"),
        (["train.device=cuda"], 2, "train.device is 'cuda'"),
        (["data.corpus=stdlib"], 2, "data.corpus 'stdlib' takes no path, 'text' does"),
        (["data.tokenizer_path=x"], 2, "data.tokenizer_path is 'x': only data.tokenizer 'gpt2' reads files"),
        (["data.tokenizer=bpe", "data.vocab_size=50"], 2, "the tokenizer 'bpe' needs at least 261"),
        (["train.batch=1000000000"], 2, "train.batch is 1000000000"),
        (["model.width=1000000", "model.heads=1"], 2, "this machine has"),
    ],
)
def test_an_untrainable_configuration_is_one_line_and_leaves_nothing(run, recipe, tmp_path, sets, code, line):
    if sets == ["train.device=cuda"] and __import__("torch").cuda.is_available():
        pytest.skip("there is a GPU here")
    options = [word for assignment in sets for word in ("--set", assignment)]
    done, out, err = run("train", recipe, "--out", tmp_path / "run", "--json", *options)
    assert (done, out) == (code, "")
    assert line in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("content", "line"),
    [(b"", "is empty"), (b"PNG\x00", "it is binary"), (b"a\nb\xff\n", "line 2")],
)
def test_a_bad_corpus_is_one_line(run, recipe, tmp_path, content, line):
    (tmp_path / "my.txt").write_bytes(content)
    options = ("--set", f"data.path={tmp_path / 'my.txt'}", "--out", tmp_path / "run")
    code, out, err = run("train", recipe, *options)
    assert (code, out) == (2, "")
    assert "my.txt" in err
    assert line in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["resume", "evaluate", "export", "generate"])
def test_a_folder_that_is_not_a_run_is_one_line(run, tmp_path, command):
    options = {"export": ["--out", tmp_path / "x"], "generate": ["--prompt", "x"]}.get(command, [])
    for folder in (tmp_path, tmp_path / "nothing"):
        code, out, err = run(command, folder, *options)
        assert (code, out) == (2, "")
        assert str(folder) in err
        assert err.count("\n") == 1


def test_a_damaged_checkpoint_is_reported_and_skipped(run, recipe, tmp_path):
    run("train", recipe, "--out", tmp_path / "run", "--json")
    assert checkpoint_steps(tmp_path / "run/checkpoints") == [5, 10]
    (tmp_path / "run/checkpoints/step-10/state.json").write_text("{}")
    code, out, err = run("generate", tmp_path / "run", "--prompt", "a", "--json")
    assert code == 0
    assert "step-10/state.json is damaged" in err
    code, out, err = run("resume", tmp_path / "run", "--json")
    assert code == 0
    assert err.count("\n") == 1
    assert "step-10/state.json is damaged" in err
    assert run("resume", tmp_path / "run", "--json")[2] == ""


def test_held_out_and_skipped_files_are_printed(run, recipe, tmp_path):
    (tmp_path / "text").mkdir()
    for name, line in (("english", "the quick brown fox\n"), ("greek", "ταχεία αλεπού\n")):
        (tmp_path / f"text/{name}.txt").write_text(line * 400)
    (tmp_path / "text/bad.txt").write_bytes(b"\xff")
    options = ("--set", f"data.path={tmp_path / 'text'}", "--set", "train.steps=2", "--out", tmp_path / "run")
    code, _, err = run("train", recipe, *options)
    assert code == 2
    assert err.endswith("it is not UTF-8 text: data.skip_bad=true skips such files\n")
    code, _, err = run("train", recipe, *options, "--skip-bad")
    assert code == 0, err
    assert "held out for valid (the end of every file): english.txt, greek.txt\n" in err
    assert "held out for test (the end of every file): english.txt, greek.txt\n" in err
    assert f"skipped: {tmp_path}/text/bad.txt (line 1: the file holds the byte 0xff: it is not UTF-8 text)" in err
    assert 'held_out = "auto"' in (tmp_path / "run/config.toml").read_text()
    assert run("resume", tmp_path / "run")[0] == 0
