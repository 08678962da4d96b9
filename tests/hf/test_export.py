"""`linnet export --hf`: a folder that the Auto classes load, with the same answers, and its card."""

import json
import resource
import signal

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from linnet.cli.app import run_app as linnet
from linnet.data.tokenizer import Tokenizer
from linnet.errors import InputError, UnsupportedError
from linnet.hf.card import write_model_card
from linnet.hf.export import export_to_hf, wrap_for_export
from linnet.models.loading import load_model
from linnet.models.presets import create_model


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two steps, and a folder exported from it."""
    folder = tmp_path_factory.mktemp("hf")
    (folder / "text.txt").write_text("To be, or not to be, that is the question.\n" * 60)
    (folder / "tiny.toml").write_text(
        f'[data]\ncorpus = "text"\npath = "{folder}/text.txt"\ntokenizer = "bpe"\nvocab_size = 280\ncontext = 16\n'
        f'cache = "{folder}/cache"\n[model]\npreset = "lln_diag_lm_small"\nwidth = 16\nheads = 2\nffn_width = 24\n'
        "[train]\nsteps = 2\nbatch = 2\neval_every = 2\neval_batches = 1\nsave_every = 2\nthreads = 1\n"
    )
    assert linnet(["train", str(folder / "tiny.toml"), "--out", str(folder / "run"), "--json"]) == 0
    assert linnet(["export", str(folder / "run"), "--hf", "--out", str(folder / "out"), "--license", "mit"]) == 0
    return folder


def test_the_exported_folder_gives_the_same_text(trained):
    model = AutoModelForCausalLM.from_pretrained(trained / "out")
    own, tokenizer = load_model(trained / "run"), AutoTokenizer.from_pretrained(trained / "out")
    batch = tokenizer(["To be, or", "question"], padding=True, return_tensors="pt")
    assert (
        batch["input_ids"][0].tolist()[-3:]
        == Tokenizer.load(trained / "run" / "tokenizer.json").encode("To be, or")[-3:]
    )
    assert torch.equal(model(**batch).logits, own(batch["input_ids"], batch["attention_mask"].bool()))
    theirs = model.generate(**batch, max_new_tokens=8, do_sample=False)
    assert torch.equal(
        theirs, own.generate(batch["input_ids"], 8, temperature=0, key_mask=batch["attention_mask"].bool())
    )


def test_the_card_says_what_was_trained(trained):
    card = (trained / "out" / "README.md").read_text()
    for said in (
        "license: mit",
        "lln_diag",
        "text.txt",
        "2 of 2 steps",
        "| perplexity |",
        "pipeline_tag: text-generation",
    ):
        assert said in card
    assert str(trained) not in card, "a path of the author's machine"


def test_the_same_checkpoint_gives_the_same_bytes(trained, tmp_path):
    assert linnet(["export", str(trained / "run"), "--hf", "--out", str(tmp_path / "again"), "--license", "mit"]) == 0
    for path in (trained / "out").iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_wrong_input_is_one_line_and_writes_nothing(trained, tmp_path, capfd):
    run, out = str(trained / "run"), tmp_path / "new"
    wrong = [
        (["export", run, "--hf", "--out", str(trained / "out")], "exists: a model is exported to a new folder"),
        (["export", run, "--out", str(out), "--license", "mit"], "--license is 'mit': it goes into the model card"),
        (
            ["export", run, "--hf", "--out", str(out), "--license", "a b"],
            "--license is 'a b': it must be an identifier",
        ),
    ]
    for command, said in wrong:
        capfd.readouterr()
        assert linnet(command) == 2
        error = capfd.readouterr().err.strip()
        assert said in error and "\n" not in error
    assert not list(tmp_path.iterdir())


def test_a_model_that_transformers_has_no_class_for_is_refused(tmp_path):
    model = create_model("transnormer_t2_lra_small", output="two_tower")
    with pytest.raises(UnsupportedError, match="the output of this model is two_tower"):
        export_to_hf(model, tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_classifier_keeps_its_labels():
    model = create_model("transnormer_t2_lra_small", classes=7).eval()
    wrapped = wrap_for_export(model)
    ids = torch.randint(0, 16, (2, 9))
    assert wrapped.config.num_labels == 7 and torch.equal(wrapped(ids).logits, model(ids))
    assert json.loads(wrapped.config.to_json_string())["id2label"].keys() == {str(i) for i in range(7)}


def test_a_card_without_evaluation_or_license():
    config = {
        "task": "causal_lm",
        "seed": 0,
        "data": {"corpus": "stdlib"},
        "model": {"output": "causal_lm", "layers": ["lln"], "width": 8, "heads": 2},
        "train": {"steps": 9, "batch": 2, "accumulate": 1, "lr": 0.1},
    }
    card = write_model_card(config, 3, [{"step": 4, "split": "valid", "loss": 1.0}], 99, None)
    assert "had not been evaluated" in card and "No license has been chosen" in card and "license:" not in card
    with pytest.raises(InputError, match="--license is 'x y'"):
        write_model_card(config, 3, [], 99, "x y")


def test_a_full_disk_is_one_line_and_leaves_nothing(trained, tmp_path, capsys):
    """The libraries below Transformers raise errors of their own for it."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    largest = max(path.stat().st_size for path in (trained / "out").iterdir())
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for limit in (0, 1, 500, 2000, 5000, largest // 2, largest - 1):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            code = linnet(["export", str(trained / "run"), "--hf", "--out", str(tmp_path / "out")])
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            said = capsys.readouterr().err
            assert (code, said) == (1, f"linnet: cannot write {tmp_path}/out: File too large\n"), limit
            assert not list(tmp_path.iterdir())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, before)
