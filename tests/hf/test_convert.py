"""Conversion: errors fall in both stages, a killed conversion ends in the same bits, and bad input writes nothing."""

import json

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from linnet.cli.app import run_app
from linnet.errors import InputError
from linnet.hf import load
from linnet.hf.convert import Conversion, ConversionSettings
from linnet.hf.pieces import TextPieces
from linnet.storage import RunLock, checkpoint_steps, read_checkpoint, save_checkpoint

PIECES = TextPieces(torch.randint(3, 99, (3000,), generator=torch.Generator().manual_seed(1)), [1], [2], "text")
QUICK = {"lengths": (8, 16), "batch_tokens": 128, "save_every": 5, "tune_lr": 1e-3}


def settings(**more) -> ConversionSettings:
    return ConversionSettings(**({"attention": "hedgehog", "transfer_steps": 12, "tune_steps": 6} | QUICK | more))


def build(stock):
    torch.manual_seed(0)
    return stock("bert_encoder")


def test_each_stage_lowers_the_error_of_every_layer(stock):
    conversion = Conversion(build(stock), settings(transfer_steps=30, tune_steps=0), PIECES)
    assert list(conversion.errors) == ["as it is", "scales chosen"]
    conversion.run()
    first, last = conversion.errors["scales chosen"], conversion.errors["after transfer"]
    assert all(after < 0.8 * before for before, after in zip(first, last, strict=True))
    original = build(stock).state_dict()
    for name, weight in conversion.model.state_dict().items():
        assert ".linnet." in name or torch.equal(weight, original[name]), "transfer must train the mechanism alone"


@pytest.mark.parametrize("tune", ["all", "attention"])
def test_tuning_moves_towards_the_hidden_states_of_the_original(tune, stock):
    conversion = Conversion(build(stock), settings(transfer_steps=5, tune_steps=25, tune=tune), PIECES)
    conversion.run()
    losses = [entry["loss"] for entry in conversion.curve if entry["stage"] == "tuning"]
    assert sum(losses[-4:]) < 0.95 * sum(losses[:4])
    original = build(stock).state_dict()
    changed = {
        name
        for name, weight in conversion.model.state_dict().items()
        if not torch.equal(weight, original.get(name, weight + 1))
    }
    assert not any("embeddings" in name for name in changed)
    assert any("intermediate" in name for name in changed) == (tune == "all")


def test_a_killed_conversion_ends_in_the_same_bits(stock, tmp_path):
    whole = Conversion(build(stock), settings(), PIECES)
    whole.run()

    class Killed(Exception):
        pass

    def kill_at(last):
        def kill(step, total):
            if step == last:
                raise Killed

        return kill

    for last in (8, 14):  # once in each stage
        with pytest.raises(Killed):
            Conversion(build(stock), settings(), PIECES).run(kill_at(last), tmp_path)
    again = Conversion(build(stock), settings(), PIECES)
    again.run(None, tmp_path)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, again.model.state_dict()[name]), name
    assert [entry["loss"] for entry in whole.curve] == [entry["loss"] for entry in again.curve]
    assert whole.errors == again.errors
    with pytest.raises(InputError, match="belongs to another conversion"):
        Conversion(build(stock), settings(seed=1), PIECES).run(None, tmp_path)


def _craft(folder, **changes):
    """Write the newest checkpoint again with other content and right hashes."""
    step = checkpoint_steps(folder)[-1]
    old = read_checkpoint(folder / f"step-{step}")
    parts = {"model": dict(old.model), "optimizer": dict(old.optimizer), "state": dict(old.state)}
    for name, change in changes.items():
        change(parts[name])
    save_checkpoint(folder, step, **parts)


@pytest.mark.parametrize(
    ("part", "change", "line"),
    [
        ("model", lambda m: m.popitem(), "its step or its weights differ"),
        ("model", lambda m: m.update({min(m): m[min(m)][..., :1]}), "its step or its weights differ"),
        ("model", lambda m: m.update({min(m): m[min(m)].double()}), "its step or its weights differ"),
        ("model", lambda m: m.update({"x": torch.zeros(1)}), "its step or its weights differ"),
        ("optimizer", lambda o: o.popitem(), "its moments differ"),
        ("optimizer", lambda o: o.update({"0.exp_avg": torch.zeros(2)}), "its moments differ"),
        ("optimizer", lambda o: o.update({"x": torch.zeros(2)}), "it has unknown moments"),
        ("state", lambda s: s.pop("curve"), "curve: Input should be a valid list"),
        ("state", lambda s: s.update(step=3), "the curve has 5 updates, not 3"),
        ("state", lambda s: s.update(step=3, curve=s["curve"][:3]), "its step or its weights differ"),
        ("state", lambda s: s.update(errors={"x": [1.0]}), "errors has 'x'"),
    ],
)
def test_a_crafted_checkpoint_is_not_continued(stock, tmp_path, part, change, line):
    class Stopped(Exception):
        pass

    def stop(step, total):
        if step == 6:
            raise Stopped

    with pytest.raises(Stopped):
        Conversion(build(stock), settings(), PIECES).run(stop, tmp_path)
    _craft(tmp_path, **{part: change})
    with pytest.raises(InputError, match="does not fit this conversion") as error:
        Conversion(build(stock), settings(), PIECES).run(None, tmp_path)
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.fixture
def folder(stock, tmp_path):
    """A folder of Transformers with an encoder and its tokenizer, and a text."""
    build(stock).save_pretrained(tmp_path / "model")
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(99)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    words = torch.randint(99, (1500,), generator=torch.Generator().manual_seed(2)).tolist()
    (tmp_path / "text.txt").write_text(" ".join(f"w{i}" for i in words))
    return tmp_path


def command(folder, *more, attention="lln_diag", out="out"):
    files = ["--text", str(folder / "text.txt"), "--out", str(folder / out)]
    return ["convert", str(folder / "model"), "--attention", attention, *files, *more]


SETS = (
    "--set",
    "transfer_steps=4",
    "--set",
    "lengths=[8, 16]",
    "--set",
    "batch_tokens=64",
    "--set",
    "options.mix=scale",
)


def test_the_command_writes_a_folder_that_load_restores(folder, capfd):
    assert run_app([*command(folder, *SETS), "--json"]) == 0
    record = json.loads(capfd.readouterr().out)
    assert [entry["step"] for entry in record["curve"]] == [1, 2, 3, 4]
    out = folder / "out"
    assert {path.name for path in out.iterdir()} == {
        *("config.json", "model.safetensors", "tokenizer.json", "conversion.json", "README.md"),
    }
    model = load(out)
    assert model.config.linnet == {"attention": "lln_diag", "options": {"mix": "scale"}, "layers": [0, 1, 2]}
    assert model(torch.tensor([[5, 6, 7]])).last_hidden_state.isfinite().all()
    assert "| after transfer |" in (out / "README.md").read_text()
    assert run_app(command(folder, *SETS)) == 2, "the folder is taken"


def test_one_process_converts_and_leftovers_go(folder, capfd):
    work, left = folder / "out/checkpoints", ".linnet-step-5-999999999-0123abcd.tmp"
    (work / left).mkdir(parents=True)
    with RunLock(work):
        assert run_app(command(folder, *SETS)) == 1
    assert "is using it" in capfd.readouterr().err
    assert (work / left).exists()
    assert run_app([*command(folder, *SETS, "--set", "save_every=1"), "--json"]) == 0
    assert not list(folder.rglob(".linnet-*"))
    assert not (folder / "out/checkpoints").exists()


def test_bad_input_is_one_line_with_exit_code_2(folder, capfd):
    (folder / "short.txt").write_text("w1 w2 w3")
    short = [
        "convert",
        str(folder / "model"),
        "--attention",
        "lln",
        "--text",
        str(folder / "short.txt"),
        "--out",
        str(folder / "out"),
    ]
    wrong = [
        (short, "the text has 3 tokens: a batch needs at least 2048"),
        (command(folder, attention="lnn"), "unknown attention 'lnn': did you mean 'lln'"),
        (command(folder, "--set", "steps=3"), "unknown key of convert 'steps'"),
        (
            command(folder, "--set", "batch_tokens=64", "--set", "lengths=[64]", "--set", "options.blok=3"),
            "unknown key of lln_diag 'blok'",
        ),
        (
            command(folder, "--set", "batch_tokens=512", "--set", "lengths=[128]"),
            "lengths contains 128: the model has 64 positions",
        ),
        (command(folder, "--set", "attention=lln"), "--set attention: the option --attention names it"),
        (["convert", str(folder), *command(folder)[2:]], "has no config.json"),
    ]
    for args, said in wrong:
        capfd.readouterr()
        assert run_app(args) == 2, args
        error = capfd.readouterr().err.strip()
        assert said in error and "\n" not in error, error
    assert not (folder / "out").exists()
