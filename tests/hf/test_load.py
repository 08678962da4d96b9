"""`linnet.hf.load`: what it restores, and what it refuses before anything is run or unpickled."""

import json
import os
import signal

import pytest
import torch
import transformers

from linnet.errors import InputError, LinnetError
from linnet.hf import LinnetForCausalLM, load, patch


@torch.no_grad()
@pytest.mark.parametrize(
    "attention, options", [("lln_diag", {"mix": "scale"}), ("hedgehog", {}), ("performer", {"features": 16})]
)
def test_a_patched_model_comes_back_with_its_weights(attention, options, stock, tmp_path):
    model, ids = stock("bert"), torch.randint(3, 99, (2, 12))
    patch(model, attention, layers=[0, 2], **options)
    for core in (model.bert.encoder.layer[i].attention.self.linnet for i in (0, 2)):
        for parameter in core.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    again = load(tmp_path)
    assert type(again) is type(model) and again.config.linnet == model.config.linnet
    assert torch.equal(again(ids).logits, model(ids).logits)
    again.save_pretrained(tmp_path / "twice")
    assert torch.equal(load(tmp_path / "twice")(ids).logits, model(ids).logits)


@torch.no_grad()
def test_stock_and_linnet_models_load_too(stock, tiny, tmp_path):
    ids = torch.randint(3, 60, (2, 12))
    for name, model in (("stock", stock("modernbert")), ("own", tiny("lln_lm", LinnetForCausalLM))):
        model.save_pretrained(tmp_path / name)
        again = load(tmp_path / name)
        assert type(again) is type(model) and torch.equal(again(ids).logits, model(ids).logits)
    assert load(tmp_path / "stock", dtype=torch.bfloat16).dtype == torch.bfloat16


HOSTILE = {
    "auto_map": {"AutoModel": "evil/repo--modeling.Model"},
    "_attn_implementation": "evil/kernel",
    "_attn_implementation_internal": "evil/kernel",
    "attn_implementation": "evil/kernel",
    "trust_remote_code": True,
}
WRONG = {
    "model_type": ("no_such_model", "no_such_model"),
    "transformers_version": ("99.1.0", "was written by transformers '99.1.0': the installed version is"),
    "architectures": (["os.system"], "architectures names 'os.system', which is not a known class"),
    "hidden_size": ("abc", "hidden_size"),
    "num_hidden_layers": (4, "weights are missing, first bert.encoder.layer.3"),
    "linnet": ({"attention": "lln"}, "it must have attention, options and layers"),
}


@pytest.fixture
def saved(stock, tmp_path):
    patch(stock("bert"), "hedgehog").save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def change(folder, **keys):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def refused(folder) -> str:
    with pytest.raises(InputError) as error:
        load(folder)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("key", HOSTILE)
def test_a_config_that_names_code_is_refused(key, saved):
    change(saved, **{key: HOSTILE[key]})
    assert f"has the key {key!r}, which names code to run" in refused(saved)


@pytest.mark.parametrize("key", WRONG)
def test_a_wrong_config_is_one_line(key, saved):
    change(saved, **{key: WRONG[key][0]})
    assert WRONG[key][1] in refused(saved)


def test_saved_choices_are_checked_like_any_others(saved):
    for chosen, said in (
        ({"attention": "os.system", "options": {}, "layers": [0]}, "unknown attention 'os.system'"),
        ({"attention": "hedgehog", "options": {"features": 3}, "layers": [0, 1, 2]}, "has shape"),
        ({"attention": "hedgehog", "options": {}, "layers": [0, 1]}, "the weights of hedgehog do not fit"),
        ({"attention": "hedgehog", "options": {"model": 1}, "layers": [0]}, "attention must be a name"),
        ({"attention": "hedgehog", "options": {}, "layers": [0, 99]}, "layers contains 99"),
    ):
        change(saved, linnet=chosen)
        assert said in refused(saved)


def test_missing_and_pickled_weights(saved, stock):
    weights = saved / "model.safetensors"
    data = weights.read_bytes()
    weights.write_bytes(data[: len(data) // 2])
    refused(saved)
    weights.unlink()
    assert "has no weights: model.safetensors is missing" in refused(saved)
    (saved / "pytorch_model.bin").write_bytes(b"not even a pickle")
    assert "has only pickled weights (pytorch_model.bin)" in refused(saved)
    (saved / "config.json").unlink()
    assert "has no config.json" in refused(saved)
    (saved / "config.json").write_text("[]")
    assert "names no model_type" in refused(saved)


def test_the_installed_version_is_one_that_wrote_it(saved):
    change(saved, transformers_version=transformers.__version__)
    assert load(saved).config.model_type == "bert"


@pytest.mark.parametrize("name", ["model.safetensors", "generation_config.json"])
def test_only_regular_files_are_opened(saved, name):
    """A pipe would block for ever; the alarm ends the test then."""
    (saved / name).unlink(missing_ok=True)
    os.mkfifo(saved / name)
    signal.alarm(60)
    for link in ("", "/dev/zero"):
        if link:
            (saved / name).unlink()
            (saved / name).symlink_to(link)
        with pytest.raises(LinnetError, match="it is not a regular file"):
            load(saved)
    signal.alarm(0)


def test_parts_of_the_weights_are_in_the_folder(saved):
    (saved / "model.safetensors").rename(saved.parent / "outside.safetensors")
    (saved / "x.safetensors").write_bytes((saved.parent / "outside.safetensors").read_bytes())
    for name in ("../outside.safetensors", str(saved.parent / "outside.safetensors"), 3):
        index = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": name}}
        (saved / "model.safetensors.index.json").write_text(json.dumps(index))
        assert "which is not a file in this folder" in refused(saved)
