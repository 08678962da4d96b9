"""Instruments on models of Transformers: the weights that they read are those that the model uses."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from linnet.cli.app import run_app
from linnet.errors import UnsupportedError
from linnet.hf import patch
from linnet.hf.views import views_of_encoder
from linnet.instruments.analyze import analyze_views

IDS = {"input_ids": torch.randint(3, 99, (1, 17), generator=torch.Generator().manual_seed(0))}


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "modernbert", "llama"])
def test_stock_weights_are_those_that_transformers_computes(name, stock):
    model = stock(name)
    model.set_attn_implementation("eager")
    theirs = model(**IDS, output_attentions=True).attentions
    views = views_of_encoder(model, IDS)
    assert len(views) == len(theirs) == model.config.num_hidden_layers
    for view, A in zip(views, theirs, strict=True):
        torch.testing.assert_close(view.part(0, 17), A.double(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(view.part(3, 9), A[:, :, 3:9].double(), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_patched_layer_shows_its_mechanism(stock):
    model = patch(stock("bert"), "lln_diag", layers=[1])
    views = views_of_encoder(model, IDS, beside="lln")
    names = [view.name.removeprefix("layer ") for view in views]
    assert names == ["0 softmax", "1 lln_diag", "2 softmax", "0 lln", "1 lln", "2 lln"]
    view = views[1]
    torch.testing.assert_close(
        (view.part(0, 17).float() @ view.v), view.core(view.q, view.k, view.v), rtol=1e-4, atol=1e-5
    )
    found = analyze_views(views, ["entropy", "spectral_gap", "lognormal_fit"])
    assert all(set(layer["values"]) == {"entropy", "spectral_gap", "lognormal_fit"} for layer in found["layers"])


def test_a_model_without_the_interface_is_refused(stock):
    with pytest.raises(UnsupportedError, match="MPNetForMaskedLM does not use the attention interface"):
        views_of_encoder(stock("mpnet"), IDS)


@pytest.fixture
def folder(stock, tmp_path):
    """A folder of Transformers with an encoder and a tokenizer, and a text."""
    stock("bert_encoder").save_pretrained(tmp_path / "model")
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(99)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("w1 $A w2", special_tokens=[("w1", 1), ("w2", 2)])
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "text.txt").write_text(" ".join(f"w{i % 97}" for i in range(70)))
    return tmp_path


def test_the_command(folder, capfd):
    text = ["--text", str(folder / "text.txt"), "--tokens", "20", "--out", str(folder / "out")]
    names = ["--instrument", "entropy", "--instrument", "attention_map"]
    assert run_app(["analyze", "--hf", str(folder / "model"), *text, *names, "--beside", "lln_diag", "--json"]) == 0
    found = json.loads((folder / "out" / "analysis.json").read_text())
    assert found["length"] == 20 and found["tokens"][0] == "w1" and found["tokens"][-1] == "w2"
    assert [layer["name"] for layer in found["layers"]] == [f"layer {i} softmax" for i in range(3)]
    other = json.loads((folder / "out" / "lln_diag" / "analysis.json").read_text())
    assert [layer["name"] for layer in other["layers"]] == [f"layer {i} lln_diag" for i in range(3)]
    assert "--hf" in found["command"] and "--beside lln_diag" in found["command"]


def test_wrong_options_are_one_line(folder, capfd):
    model, text = str(folder / "model"), ["--text", str(folder / "text.txt")]
    wrong = [
        (["analyze", "--hf", model], "--hf needs a text: --text FILE"),
        (["analyze", model, *text, "--beside", "lln"], "--beside is 'lln': it needs --hf"),
        (["analyze", "--hf", model, *text, "--beside", "lnn"], "unknown attention 'lnn': did you mean 'lln'"),
        (["analyze", "--hf", model, *text], "the model 64 positions: set --tokens to at most 64"),
        (["analyze", "--hf", model, *text, "--tokens", "65"], "--tokens is 65: the model has 64 positions"),
        (["analyze", "--hf", model, "--text", str(folder / "none")], "cannot read"),
        (["analyze", "--hf", str(folder), *text], "has no config.json"),
        (["analyze", "--hf", model, *text, "--checkpoint", "best"], "--samples and --checkpoint belong to a run"),
    ]
    for args, said in wrong:
        capfd.readouterr()
        assert run_app(args) == 2, args
        error = capfd.readouterr().err.strip()
        assert said in error and "\n" not in error, error
    assert not (folder / "model" / "analysis").exists()
