"""Models on disk: loading restores what was saved, the bytes are always the same, and misfits are named."""

import json
import os
import shutil
import warnings
from pathlib import Path

import pytest
import tomli_w
import torch

import linnet
from linnet.errors import InputError, LinnetError
from linnet.models.backbone import Model
from linnet.models.config import ModelConfig
from linnet.models.loading import export_model, load_model, load_model_weights
from linnet.storage import save_checkpoint


@pytest.fixture
def run(tiny, tmp_path):
    """A run folder with checkpoints of steps 5 and 10, and the two models."""
    folder, models = tmp_path / "run", {}
    for step in (5, 10):
        models[step] = tiny("transnormer_t2_lm")
        table = models[step].config.model_dump(mode="json", exclude_none=True)
        state = {"settings": {"task": "causal_lm", "model": table}}
        save_checkpoint(folder / "checkpoints", step, models[step].state_dict(), {}, state)
    config = {"task": "causal_lm", "model": {"preset": "transnormer_t2_lm_small", **table}}
    (folder / "config.toml").write_text(tomli_w.dumps(config))
    return folder, models


def same(one, other):
    ids = torch.randint(61, (1, 20))
    return torch.equal(one(ids), other(ids))


def test_a_run_gives_its_newest_checkpoint_or_the_one_asked_for(run):
    folder, models = run
    model = linnet.load_model(str(folder))
    assert not model.training
    assert same(model, models[10])
    assert same(load_model(folder, step=5), models[5])


@pytest.mark.parametrize(
    ("before", "after", "name"),
    [('phi = "1+elu"', 'phi = "elu"', "model.options"), ("tie = true", "tie = false", "model.tie")]
    + [('task = "causal_lm"', 'task = "masked_lm"', "task")],
)
def test_a_checkpoint_of_another_model_of_the_same_shapes_is_refused(run, before, after, name):
    folder, _ = run
    text = (folder / "config.toml").read_text()
    assert before in text
    (folder / "config.toml").write_text(text.replace(before, after))
    with pytest.raises(InputError) as error:
        load_model(folder)
    assert one_line(error) == f"{folder}: its checkpoints belong to another model ({name} in config.toml differs)"


def test_the_name_of_the_preset_is_only_information(run):
    folder, models = run
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace("transnormer_t2_lm_small", "vanilla_lm"))
    assert same(load_model(folder), models[10])


def test_a_checkpoint_without_a_recorded_model_warns(run):
    folder, models = run
    save_checkpoint(folder / "checkpoints", 11, models[5].state_dict(), {}, {"data": {}})
    told = []
    assert same(load_model(folder, warn=told.append), models[5])
    assert len(told) == 1
    assert told[0].startswith(f"{folder}/checkpoints/step-11 was written by an earlier linnet")


def test_a_damaged_checkpoint_is_named_and_skipped(run):
    folder, models = run
    weights = folder / "checkpoints/step-10/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    with pytest.warns(UserWarning, match=r"step-10/model.safetensors is damaged"):
        assert same(load_model(folder), models[5])
    told = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_model(folder, warn=told.append)
    assert len(told) == 1
    with pytest.raises(LinnetError, match="damaged"):
        load_model(folder, step=10)


def test_export_and_load(tiny, tmp_path, system, kind):
    model = tiny(f"{system}_{kind}")
    (tmp_path / "tokenizer").write_bytes(b"{}")
    first = export_model(model, tmp_path / "deep" / "first", tmp_path / "tokenizer")
    assert sorted(path.name for path in first.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert (first / "tokenizer.json").read_bytes() == b"{}"
    assert [path.name for path in first.parent.iterdir()] == ["first"]
    loaded = load_model(first)
    assert loaded.config == model.config
    assert same(loaded, model)
    second = export_model(loaded, tmp_path / "second", tmp_path / "tokenizer")
    for path in first.iterdir():
        assert path.read_bytes() == (second / path.name).read_bytes()


def test_tied_weights_are_stored_once(tiny, tmp_path):
    sizes = {}
    for tie in (True, False):
        folder = export_model(tiny("vanilla_lm", tie=tie), tmp_path / str(tie))
        sizes[tie] = (folder / "model.safetensors").stat().st_size
    assert 0 <= sizes[False] - sizes[True] - 61 * 32 * 4 < 200


def test_an_existing_folder_is_not_touched(tiny, tmp_path):
    model = tiny("vanilla_lm")
    (tmp_path / "empty").mkdir()
    export_model(model, tmp_path / "empty")
    before = (tmp_path / "empty/config.json").read_bytes()
    for name in ("empty", "empty/config.json"):
        with pytest.raises(InputError, match="exists: a model is exported to a new folder"):
            export_model(model, tmp_path / name)
    assert (tmp_path / "empty/config.json").read_bytes() == before


def test_a_failed_export_leaves_nothing(tiny, tmp_path, monkeypatch):
    model = tiny("vanilla_lm")
    with pytest.raises(LinnetError, match=r"^cannot read .*nothing: No such file"):
        export_model(model, tmp_path / "out", tmp_path / "nothing")

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("linnet.models.loading.write_file_atomic", full)
    with pytest.raises(LinnetError, match=r"^cannot write .*out: No space left on device$"):
        export_model(model, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_files_that_a_killed_export_left_are_removed(tiny, tmp_path):
    left = tmp_path / ".linnet-out-999999999-0123abcd.tmp"  # no process has such a number
    left.mkdir()
    os.utime(left, (0, 0))
    export_model(tiny("vanilla_lm"), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_weights_of_another_precision_are_loaded_but_not_of_another_kind(tiny, tmp_path):
    model = tiny("vanilla_lm")
    half = load_model(export_model(tiny("vanilla_lm").bfloat16(), tmp_path / "half"))
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    tensors = {name: tensor.bool() for name, tensor in model.state_dict().items()}
    for cast in (True, False):
        with pytest.raises(InputError, match=r"is of type torch\.bool, in the model torch\.float32$"):
            load_model_weights(model, tensors, Path("x"), cast)


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def test_folders_that_are_no_model(run, tmp_path):
    folder, _ = run
    for path, message in [
        (tmp_path / "nowhere", "nowhere does not exist"),
        (tmp_path, "is neither a run (config.toml) nor a model (config.json)"),
    ]:
        with pytest.raises(InputError) as error:
            load_model(path)
        assert one_line(error).endswith(message)
    with pytest.raises(InputError) as error:
        load_model(folder, step=7)
    assert "has no checkpoint of that step" in one_line(error)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(LinnetError) as error:
        load_model(folder)
    assert one_line(error).endswith("checkpoints has no valid checkpoint")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = [", "is not valid TOML"),
        ("task = 'causal_lm'", "config.toml has no table `model`"),
        ("[model]\nwidth = 8", "model.layers is missing"),
        ("[model]\nwidht = 8", "config.toml: unknown key of model 'widht': did you mean 'width'?"),
        (b"\xff\xfe", "line 1: the file is not UTF-8 text"),
    ],
)
def test_bad_configurations_of_runs(run, text, message):
    folder, _ = run
    (folder / "config.toml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(LinnetError) as error:
        load_model(folder)
    assert message in one_line(error)
    assert "config.toml" in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 64}, "the shape of blocks.0.ffn.enter.weight is (80, 32), in the model (80, 64)"),
        ({"layers": ["diag"]}, "which has no tensor blocks.1."),
        ({"layers": ["diag"] * 5}, "it has no tensor blocks.4."),
        ({"vocab_size": 60}, "the shape of embedding.weight is (61, 32), in the model (60, 32)"),
    ],
)
def test_weights_that_do_not_fit_are_named(tiny, change, message):
    model = tiny("transnormer_t2_lm")
    other = Model(ModelConfig(**{**model.config.model_dump(), **change}))
    with pytest.raises(InputError) as error:
        load_model_weights(other, model.state_dict(), Path("model.safetensors"))
    assert message in one_line(error)
    assert "model.safetensors does not fit this model" in one_line(error)


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about["model"].update(norm="rms"),
        lambda about: about["model"]["options"]["norm"].update(phi="elu"),
        lambda about: about.update(tied={"output.weight": "embedding.weight"}),
        lambda about: about.update(tied=None),
        lambda about: about.pop("config_sha256"),
    ],
)
def test_an_edited_export_is_refused(tiny, tmp_path, change):
    folder = export_model(tiny("transnormer_t2_lm"), tmp_path / "model")
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about))  # written otherwise, but the same
    load_model(folder)
    change(about)
    (folder / "config.json").write_text(json.dumps(about))
    with pytest.raises(LinnetError) as error:
        load_model(folder)
    assert "config.json has been changed" in one_line(error)


def test_damaged_exports(tiny, tmp_path):
    folder = export_model(tiny("vanilla_lm"), tmp_path / "model")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(LinnetError) as error:
        load_model(folder)
    assert one_line(error).endswith("is damaged: its SHA-256 is not the one in config.json")
    (folder / "model.safetensors").unlink()
    with pytest.raises(LinnetError, match=r"^cannot read .*model.safetensors: No such file"):
        load_model(folder)
    (folder / "config.json").write_text('{"architectures": []}')
    with pytest.raises(InputError, match="is not the configuration of an exported model"):
        load_model(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(LinnetError, match="is not valid JSON"):
        load_model(folder)
    with pytest.raises(InputError, match=r"^step is 3: .* is an exported model, which has no steps$"):
        load_model(folder, step=3)
