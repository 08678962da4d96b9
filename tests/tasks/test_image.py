"""The task of images: batches, mixtures, metrics, a run that learns and resumes to the same bits, and bad input."""

import json

import numpy as np
import pytest
import torch

from linnet.cli.app import run_app
from linnet.config import load_recipe_config
from linnet.errors import InputError
from linnet.registry import TASK
from linnet.tasks.base import EVALUATION

QUICK = ("train.steps=6", "train.warmup=1", "train.batch=8", "train.eval_every=3", "train.save_every=2", "data.crop=1")


def task(*sets):
    config = load_recipe_config("digits", sets)
    return TASK["image"](config)


def sets(*texts):
    return [part for text in texts for part in ("--set", text)]


def refused(capfd, *texts, recipe="digits"):
    """The one line of a command that is refused with exit code 2."""
    assert run_app(["train", recipe, *sets(*texts), "--dry-run"]) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


def test_batches_are_pixels_and_labels():
    found = task()
    batch = found.batch("valid", np.array([5, 0]), np.full(2, EVALUATION))
    assert batch["pixels"].shape == (2, 1, 8, 8)
    assert batch["pixels"].dtype == torch.uint8
    assert found.batch_tokens(batch) == 2 * 16
    own = found.set.splits["valid"]
    assert batch["labels"].tolist() == own.labels[[5, 0]].tolist()


def test_training_pictures_change_with_the_epoch_and_are_repeatable():
    found, again = task(), task()
    samples = np.arange(40)
    first, same, next_epoch = (
        t.batch("train", samples, np.full(40, epoch))["pixels"] for t, epoch in ((found, 0), (again, 0), (found, 1))
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, next_epoch)
    alone = found.batch("train", samples[7:8], np.zeros(1, np.int64))["pixels"]
    assert torch.equal(alone[0], first[7])  # whatever else is in the batch
    plain = found.batch("train", samples, np.full(40, EVALUATION))["pixels"]
    assert torch.equal(plain, torch.from_numpy(found.set.splits["train"].pixels[:40]))


def test_a_mixture_is_of_pictures_and_of_losses():
    found = task("data.mixup=0.5", "data.crop=0")
    samples, epochs = np.arange(20), np.zeros(20, np.int64)
    batch = found.batch("train", samples, epochs)
    train = found.set.splits["train"]
    share = batch["shares"].numpy()
    assert share.min() > 0 and share.max() < 0.5
    # Which partner it was, recovered from the mixture:
    own = train.pixels[samples] / 255
    rest = (batch["pixels"].numpy() - own * (1 - share)[:, None, None, None]) / share[:, None, None, None] * 255
    close = np.abs(rest[:, None] - train.pixels[None]).max(axis=(2, 3, 4)).argmin(axis=1)
    np.testing.assert_allclose(rest, train.pixels[close], atol=0.2)
    assert batch["partners"].tolist() == train.labels[close].tolist()
    logits = torch.randn(20, 10)
    loss, terms = found.loss(lambda pixels: logits, batch)
    table = torch.nn.functional.one_hot
    targets = table(batch["labels"], 10) * (1 - batch["shares"])[:, None]
    targets = targets + table(batch["partners"], 10) * batch["shares"][:, None]
    assert terms == 20
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits, targets, reduction="sum"))


def test_metrics_of_a_whole_split():
    found = task()
    labels = torch.from_numpy(found.set.splits["valid"].labels)
    right = torch.nn.functional.one_hot(labels, 10).float() * 20

    class Oracle(torch.nn.Module):
        at = 0

        def forward(self, pixels):
            self.at += len(pixels)
            return right[self.at - len(pixels) : self.at]

    metrics = found.evaluate(Oracle(), "valid")
    assert metrics["accuracy"] == 1.0
    assert np.trace(metrics["confusion"]) == metrics["samples"] == 269
    assert metrics["classes"] == list("0123456789")
    part = found.evaluate(Oracle(), "valid", batches=1)
    assert "confusion" not in part


def test_a_run_learns(tmp_path, capfd):
    out = tmp_path / "run"
    texts = ("train.steps=80", "train.eval_every=80", "train.save_every=80", "model.layers=['diag','norm']")
    assert run_app(["train", "digits", *sets(*texts), "--out", str(out), "--json"]) == 0
    capfd.readouterr()
    assert run_app(["evaluate", str(out), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["accuracy"] > 0.4  # a guess has 0.1
    assert run_app(["evaluate", str(out)]) == 0
    assert "confusion matrix (rows: true class" in capfd.readouterr().out


def test_a_resumed_run_ends_in_the_same_bits(tmp_path, capfd):
    """Stopped at a checkpoint that is not an evaluation, with crops and mixtures."""
    common = (*QUICK, "data.mixup=0.3", "model.layers=['norm']")
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    assert run_app(["train", "digits", *sets(*common), "--out", str(whole), "--json"]) == 0
    assert run_app(["train", "digits", *sets(*common), "--out", str(parted), "--json"]) == 0
    import shutil

    for step in (4, 6):
        shutil.rmtree(parted / f"checkpoints/step-{step}", ignore_errors=True)
    kept = sorted(path.name for path in (parted / "checkpoints").iterdir())
    assert kept and "step-6" not in kept
    assert run_app(["resume", str(parted), "--json"]) == 0
    for file in ("checkpoints/step-6/model.safetensors", "checkpoints/step-6/optimizer.safetensors", "metrics.jsonl"):
        assert (whole / file).read_bytes() == (parted / file).read_bytes(), file


def test_other_pictures_do_not_resume(tmp_path, capfd):
    out = tmp_path / "run"
    assert run_app(["train", "digits", *sets(*QUICK, "model.layers=['norm']"), "--out", str(out), "--json"]) == 0
    config = (out / "config.toml").read_text()
    (out / "config.toml").write_text(config.replace("variant = 0", "variant = 1"))
    capfd.readouterr()
    assert run_app(["evaluate", str(out)]) == 2
    assert "data.variant is 1, but the run was started with 0" in capfd.readouterr().err


def test_bad_settings_are_one_line(capfd):
    for texts, line in (
        (["data.patch=3"], "data: patch is 3: it must divide the side of an image, 8 pixels"),
        (["data.size=16"], "data: size is 16: the images of digits have 8 pixels"),
        (["data.color=rgb"], "data: color is 'rgb': only the images of a folder are converted"),
        (["data.crop=8"], "data: crop is 8: an image has 8 pixels"),
        (["data.mixup=0.7"], "data.mixup is 0.7: "),
        (["data.source=mnist"], "data.source is 'mnist': "),
        (["data.path=x"], "data.path is 'x': the digits are part of linnet"),
        (["model.window=3"], "model: window is 3: it must divide the 4 patches of a side"),
        (["model.preset=vanilla_lra_small"], "model: max_length is 4096: an image has 16 tokens"),
        (["model.classes=7"], "model.classes is 7: the data have 10"),
        (["model.patch=4"], "model.patch is 4: the data have 2"),
    ):
        assert line in refused(capfd, *texts), texts
    assert "data.path is missing: data.source=folder needs a folder" in refused(capfd, "data.source=folder")


def test_a_dry_run_prints_its_plan(capfd):
    assert run_app(["train", "digits", "--dry-run"]) == 0
    assert "trains on 25,600 samples of up to 16 tokens" in capfd.readouterr().out


def test_missing_pictures_are_one_line(capfd, monkeypatch):
    monkeypatch.delenv("LINNET_DATA", raising=False)
    for recipe, said in (("cifar10", "cifar-10-binary.tar.gz"), ("dogs_vs_cats", "cat.tar and dog.tar")):
        line = refused(capfd, recipe=recipe)
        assert "neither data.path nor LINNET_DATA is set" in line
        assert said in line


def test_a_folder_decides_channels_and_classes(tmp_path, capfd):
    images = pytest.importorskip("PIL.Image", reason="needs Pillow")
    for k, name in enumerate("abc"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(12):
            images.new("L", (16, 16), 60 * k + i).save(tmp_path / "pictures" / name / f"{i}.png")
    (tmp_path / "pictures/a/notes.txt").write_text("")
    texts = ("data.source=folder", f"data.path={tmp_path / 'pictures'}", "data.size=16", "data.patch=4", *QUICK)
    out = tmp_path / "run"
    assert run_app(["train", "digits", *sets(*texts, "model.layers=['norm']"), "--out", str(out)]) == 0
    assert "1 files are not images" in capfd.readouterr().err
    import linnet

    model = linnet.load_model(out)
    assert (model.config.channels, model.config.classes, model.config.image_size) == (1, 3, 16)
    large = linnet.load_model(out, image_size=32)
    assert large(torch.zeros(1, 1, 32, 32, dtype=torch.uint8)).shape == (1, 3)


def test_the_set_of_one_split_too_small_is_one_line(tmp_path):
    images = pytest.importorskip("PIL.Image", reason="needs Pillow")
    for name in "ab":
        (tmp_path / name).mkdir()
        images.new("L", (8, 8)).save(tmp_path / name / "1.png")
    config = load_recipe_config("digits", ("data.source=folder", f"data.path={tmp_path}", "data.size=8", "data.crop=0"))
    with pytest.raises(InputError, match="leaves no image for the valid split: it has too few"):
        TASK["image"](config)
