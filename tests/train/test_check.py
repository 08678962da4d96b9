"""Folders, checkpoints, settings and data that do not fit a run are refused in one line."""

import json
from pathlib import Path

import pytest

from linnet.errors import InputError, LinnetError
from linnet.storage import checkpoint_steps, read_checkpoint, save_checkpoint
from linnet.train.run import evaluate_run, resume_run, start_run
from tests.train.test_run import QUIET, Listening, edit


def age(folder: Path) -> None:
    """Turn the newest checkpoint into one of a linnet that did not save the settings yet."""
    checkpoint = read_checkpoint(folder / f"checkpoints/step-{checkpoint_steps(folder / 'checkpoints')[-1]}")
    state = {key: value for key, value in checkpoint.state.items() if key not in ("settings", "device")}
    save_checkpoint(folder / "checkpoints", checkpoint.step, checkpoint.model, checkpoint.optimizer, state)


def test_a_folder_with_something_in_it_is_refused(config, tmp_path):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    with pytest.raises(InputError, match=r"not empty: `linnet resume"):
        start_run(config(), tmp_path / "run", QUIET)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/a").touch()
    with pytest.raises(InputError, match="not empty: name another"):
        start_run(config(), tmp_path / "other", QUIET)
    with pytest.raises(InputError, match="is a file"):
        start_run(config(), tmp_path / "other/a", QUIET)
    with pytest.raises(LinnetError, match="cannot write"):
        start_run(config(), tmp_path / "other/a/b", QUIET)


@pytest.mark.parametrize("use", [resume_run, lambda folder, screen: evaluate_run(folder, "test", screen)])
def test_a_folder_that_is_not_a_run_is_refused(use, tmp_path):
    with pytest.raises(InputError, match="is not a run"):
        use(tmp_path, QUIET)
    with pytest.raises(InputError, match="does not exist"):
        use(tmp_path / "nothing", QUIET)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (("ffn_width = 24", "ffn_width = 25"), "ffn_width"),
        (('kind = "softmax"', 'kind = "rela"'), "options"),  # T1 has the shapes of T2
    ],
)
def test_a_checkpoint_of_another_model_is_refused(config, tmp_path, change, name):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    edit(tmp_path / "run", *change)
    metrics = (tmp_path / "run/metrics.jsonl").read_bytes()
    line = rf"run: its checkpoints belong to another model \(model\.{name} in config\.toml differs\)$"
    for use in (resume_run, lambda folder, screen: evaluate_run(folder, "test", screen)):
        with pytest.raises(InputError, match=line):
            use(tmp_path / "run", QUIET)
    edit(tmp_path / "run", "steps = 2", "steps = 4")  # not finished, then
    with pytest.raises(InputError, match=line):
        resume_run(tmp_path / "run", QUIET)
    assert (tmp_path / "run/metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        ("lr = 0.01", "lr = 0.02", r"train\.lr is 0\.02, but the run was started with 0\.01: put it back"),
        ("seed = 0", "seed = 1", r"seed is 1, but the run was started with 0"),
        ("context = 24", "context = 32", r"data\.context is 32, but the run was started with 24"),
        ("eval_batches = 2", "eval_batches = 3", r"train\.eval_batches is 3"),
    ],
)
def test_settings_that_decide_the_numbers_cannot_change(config, tmp_path, before, after, line):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    edit(tmp_path / "run", before, after)
    for use in (resume_run, lambda folder, screen: evaluate_run(folder, "test", screen)):
        with pytest.raises(InputError, match=line):
            use(tmp_path / "run", QUIET)
    edit(tmp_path / "run", "steps = 2", "steps = 4")
    with pytest.raises(InputError, match=line):
        resume_run(tmp_path / "run", QUIET)


def test_how_often_to_save_and_tell_and_the_place_of_the_text_may_change(own_text, tmp_path):
    start_run(own_text(steps=2), tmp_path / "run", QUIET)
    (tmp_path / "my.txt").rename(tmp_path / "yours.txt")
    for before, after in (("steps = 2", "steps = 4"), ("save_every = 2", "save_every = 1")):
        edit(tmp_path / "run", before, after)
    for before, after in (("log_every = 4", "log_every = 1"), ("eval_every = 3", "eval_every = 2")):
        edit(tmp_path / "run", before, after)
    edit(tmp_path / "run", f'path = "{tmp_path}/my.txt"', f'path = "{tmp_path}/yours.txt"')
    screen = Listening()
    assert resume_run(tmp_path / "run", screen).step == 4
    assert screen.warnings == []


def test_a_checkpoint_without_settings_is_one_line(config, tmp_path):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    new = evaluate_run(tmp_path / "run", "test", QUIET)
    age(tmp_path / "run")
    screen = Listening()
    assert resume_run(tmp_path / "run", screen).step == 2
    assert evaluate_run(tmp_path / "run", "test", screen) == new
    assert len(screen.warnings) == 2
    assert all("step-2 was written by an earlier linnet" in text for text in screen.warnings)
    edit(tmp_path / "run", "steps = 2", "steps = 4")
    with pytest.raises(LinnetError, match=r"run: its checkpoint was written by an earlier linnet .* cannot be resumed"):
        resume_run(tmp_path / "run", QUIET)


@pytest.mark.parametrize("old", [False, True])
def test_changed_data_are_refused(own_text, tmp_path, old):
    start_run(own_text(steps=2), tmp_path / "run", QUIET)
    if old:
        age(tmp_path / "run")
    text = tmp_path / "my.txt"
    text.write_text("x" + text.read_text())
    with pytest.raises(LinnetError, match=r"the data of the run have changed \(train\)"):
        evaluate_run(tmp_path / "run", "test", Listening())
    edit(tmp_path / "run", "steps = 2", "steps = 4")
    with pytest.raises(LinnetError, match="be resumed" if old else r"the data of the run have changed \(train\)"):
        resume_run(tmp_path / "run", QUIET)


def test_a_changed_tokenizer_is_refused(config, tmp_path):
    words = config(steps=2).data.model_copy(update={"tokenizer": "word"})
    start_run(config(steps=2).model_copy(update={"data": words}), tmp_path / "run", QUIET)
    file = tmp_path / "run/tokenizer.json"
    content = json.loads(file.read_text())
    ids = content["model"]["vocab"]
    one, other = sorted(ids, key=ids.__getitem__)[4:6]
    ids[one], ids[other] = ids[other], ids[one]
    file.write_text(json.dumps(content))
    with pytest.raises(LinnetError, match=r"tokenizer.json is not the tokenizer of this model"):
        evaluate_run(tmp_path / "run", "test", QUIET)
