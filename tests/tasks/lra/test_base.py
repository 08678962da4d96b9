"""The tasks of the Long Range Arena: batches, losses, metrics and whole runs."""

import json
import math
import re
import shutil
import signal

import numpy as np
import pytest
import torch
import typer
from torch import nn

from linnet.cli.train import print_outcome
from linnet.config import load_recipe_config
from linnet.data.lra.listops import END, SYMBOLS, evaluate_listops
from linnet.data.lra.listops_tsv import HEADER, NAMES
from linnet.data.lra.sequences import GRAIN
from linnet.errors import InputError
from linnet.instruments.base import instrument_views_of_model
from linnet.models.backbone import Model
from linnet.models.loading import load_model
from linnet.models.presets import preset, preset_config
from linnet.registry import STUDY, TASK
from linnet.screen import Screen
from linnet.studies.trained import Row, StudyRun
from linnet.train.check import check_config
from linnet.train.loop import Trainer
from linnet.train.run import evaluate_run, resume_run, start_run
from linnet.train.watch import watch_blocks

TASKS = ("listops", "text", "image", "pathfinder", "retrieval")
QUIET = Screen(quiet=True)
CYCLE = {  # as in the recipes
    "schedule": "one_cycle",
    "warmup": 2,
    "betas": [0.95, 0.999],
    "peak_beta1": 0.85,
    "clip": 0.0,
    "clip_value": 1.0,
}
each_task = pytest.mark.parametrize("name", TASKS)


class Guess(nn.Module):
    """A model that always gives the same logits, those of `table`."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, ids: torch.Tensor, key_mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.table.expand(len(ids), -1)


def batch_of(task, split="train", count=4):
    return task.batch(split, np.arange(count), np.zeros(count, np.int64))


def weights(folder, step):
    return (folder / "checkpoints" / f"step-{step}" / "model.safetensors").read_bytes()


@each_task
def test_a_batch(config, name):
    task = TASK[f"lra/{name}"](config(name))
    batch = batch_of(task)
    ids, labels = batch["ids"], batch["labels"]
    assert ids.dtype == labels.dtype == torch.int64
    assert ids.shape[0] == len(labels) == 4
    assert ids.shape[1:-1] == ((2,) if name == "retrieval" else ())
    assert ids.shape[-1] <= task.config.data.context
    assert int(ids.max()) < task.tokens
    assert set(labels.tolist()) <= set(range(task.classes))
    if name in ("image", "pathfinder"):
        assert "key_mask" not in batch  # black pixels are pixels
        assert bool((ids == 0).any())
    else:
        assert torch.equal(batch["key_mask"], ids != 0)


@each_task
def test_the_model_has_the_sizes_of_the_benchmark(config, name):
    context = 4000 if name in ("text", "retrieval") else config(name).data.context
    task = TASK[f"lra/{name}"](config(name, context=context))
    counts = {"text": 369_878, "listops": 209_118, "retrieval": 394_454, "pathfinder": 173_270, "image": 157_918}
    model = Model(preset_config({**task.model_fields(), "preset": "transnormer_t2_lra"}))
    task.check_model(model.config)
    assert sum(parameter.numel() for parameter in model.parameters()) == counts[name]


@pytest.mark.parametrize(
    ("name", "words"),
    [("listops", "[MAX 4 ]"), ("text", "a\\xc3"), ("image", "0 255"), ("retrieval", "a\\xc3"), ("pathfinder", "0 255")],
)
def test_tokens_as_a_reader_sees_them(config, name, words):
    task = TASK[f"lra/{name}"](config(name))
    ids = {"listops": [SYMBOLS.index(part) + 1 for part in ("[MAX", "4", "]")], "a": [98, 0xC3 + 1], "0": [0, 255]}
    found, between = task.words(ids[words[0] if words[0] in ids else name])
    assert between.join(found) == words
    assert task.words([task.tokens])[0] == ["?"]  # a gap


@pytest.mark.parametrize("name", ["retrieval", "text"])
def test_blocks_for_the_instruments_have_one_row_a_document(config, name):
    task = TASK[f"lra/{name}"](config(name))
    ids = watch_blocks(task, 3)
    assert ids.dim() == 2
    assert int(ids.min()) > 0  # no padding
    assert "".join(task.words(ids[0].tolist())[0]).startswith(("a ", "paper", "other paper"))


def test_short_trees_of_files_need_no_long_context(config, tmp_path):
    for name in NAMES.values():
        (tmp_path / name).write_text(f"{HEADER}\n( ( ( [MAX 2 ) 9 ) ] )\t9\n")
    task = TASK["lra/listops"](config("listops", path=str(tmp_path), count=None, context=64))
    assert batch_of(task, count=1)["labels"].tolist() == [9]
    with pytest.raises(InputError, match=r"line 2: the tree has 4 tokens"):
        TASK["lra/listops"](config("listops", path=str(tmp_path), count=None, context=3))


def test_brackets_are_kept_and_values_are_right(config):
    batch = batch_of(TASK["lra/listops"](config("listops")))
    for ids, mask, label in zip(batch["ids"], batch["key_mask"], batch["labels"], strict=True):
        tokens = ids[mask].numpy().astype(np.uint8)
        assert (tokens == END).sum() > 10
        assert evaluate_listops(tokens, np.array([0, len(tokens)])).tolist() == [int(label)]


def test_the_older_rules_drop_brackets_and_take_black_for_padding(config):
    new, old = (TASK["lra/listops"](config("listops", rules=rules)) for rules in ("lra", "skyformer"))
    one, other = batch_of(new), batch_of(old)
    for ids, mask, ids_old, mask_old in zip(*(x[k] for x in (one, other) for k in ("ids", "key_mask")), strict=True):
        kept = ids[mask]
        assert torch.equal(ids_old[mask_old], kept[kept != END])
    pictures = TASK["lra/image"](config("image", rules="skyformer"))
    batch = batch_of(pictures)
    assert torch.equal(batch["key_mask"], batch["ids"] != 0)
    assert pictures.model_fields()["mean_over"] == "max_length"
    assert new.fingerprint() != old.fingerprint()


@each_task
def test_uniform_guesses(config, name):
    task = TASK[f"lra/{name}"](config(name))
    metrics = task.evaluate(Guess(torch.zeros(task.classes)), "test")
    assert metrics["loss"] == pytest.approx(math.log(task.classes))
    confusion = np.array(metrics["confusion"])
    assert confusion[:, 1:].sum() == 0  # the first class is always the answer
    assert confusion.sum() == metrics["samples"] == task.count("test")
    assert metrics["accuracy"] == pytest.approx(confusion[0, 0] / confusion.sum())
    assert "confusion" not in task.evaluate(Guess(torch.zeros(task.classes)), "train", batches=1)


def test_a_part_of_a_split_that_is_sorted_by_class_holds_every_class(config):
    task = TASK["lra/text"](config("text"))
    labels = task.splits["valid"].labels
    assert set(labels[:8]) != {0, 1}  # the first 8 are all of one class
    counted = task.evaluate(Guess(torch.zeros(2)), "valid", batches=2)
    assert counted["samples"] == 8
    assert 0 < counted["accuracy"] < 1
    chosen = task.sample("valid", 8)
    assert len(set(chosen.tolist())) == 8
    other = TASK["lra/text"](config("text", seed=1))
    assert np.array_equal(other.sample("valid", 8), chosen)  # the same for every seed


@pytest.mark.parametrize("objective", ["classify", "denoise"])
@pytest.mark.parametrize(("name", "rules"), [*((name, "lra") for name in TASKS), ("image", "skyformer")])
def test_parts_of_a_batch_have_its_loss_and_gradients(config, name, rules, objective):
    task = TASK[f"lra/{name}"](config(name, rules=rules, objective=objective))
    torch.manual_seed(0)
    model = Model(preset_config({**task.model_fields(), "preset": "transnormer_t2_lra_small"})).eval()
    batch = batch_of(task, count=11)
    found = []
    for parts in ([batch], task.parts(batch)):
        model.zero_grad()
        losses = [task.loss(model, part) for part in parts]
        sum(loss for loss, _ in losses).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append((sum(loss.item() for loss, _ in losses), sum(terms for _, terms in losses), gradients))
        tokens = sum(part["ids"].numel() for part in parts)
    (loss, terms, gradients), (loss_of_parts, terms_of_parts, gradients_of_parts) = found
    assert terms == terms_of_parts
    assert loss_of_parts == pytest.approx(loss, rel=1e-5)
    for one, other in zip(gradients, gradients_of_parts, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4 * float(one.abs().max()) + 1e-7)
    assert tokens <= batch["ids"].numel()
    assert all(width % GRAIN == 0 or width == task.data.context for width in (part["ids"].shape[-1] for part in parts))
    if name in ("listops", "text"):
        assert tokens < 0.9 * batch["ids"].numel()


def test_the_log_counts_real_tokens(config, tmp_path):
    settings = config("listops", {"steps": 1})
    start_run(settings, tmp_path / "run", QUIET)
    task = TASK["lra/listops"](settings)
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    tokens = [record["tokens"] for record in records if record["split"] == "train"]
    assert tokens == [int(task.train_batch(0)["key_mask"].sum())]


def test_loading_is_a_small_part_of_a_step(config, tmp_path):
    settings = config("listops", {"steps": 3, "batch": 32, "eval_every": 0, "log_every": 1})
    settings = settings.model_copy(update={"model": {"preset": "transnormer_t2_lra"}})
    start_run(settings, tmp_path / "run", QUIET)
    timings = map(json.loads, (tmp_path / "run" / "timings.jsonl").read_text().splitlines())
    times = [(entry["loading"], entry["seconds"]) for entry in timings if entry["split"] == "train"]
    assert len(times) == 3
    assert all(0 < loading < seconds for loading, seconds in times)
    assert sum(loading for loading, _ in times) < 0.03 * sum(seconds for _, seconds in times)


@pytest.mark.parametrize("name", ["listops", "text", "image", "pathfinder"])
def test_which_tasks_are_validated_on_their_test_split(config, name):
    task = TASK[f"lra/{name}"](config(name))
    same = np.array_equal(task.splits["valid"].tokens, task.splits["test"].tokens)
    assert same == task.validates_on_test == (name == "text")


def test_a_split_used_twice_is_evaluated_once(config, tmp_path):
    study_run = StudyRun(Row("T2", "transnormer_t2"), 0, config("text"))
    found = STUDY["transnormer-table6"]().record("cpu", study_run, start_run(study_run.config, tmp_path / "run", QUIET))
    assert found["valid"] == evaluate_run(tmp_path / "run", "valid", QUIET, "best")
    assert found["test"] == evaluate_run(tmp_path / "run", "test", QUIET, "best")
    assert 0 < found["loading"] < 1


def test_the_best_checkpoint_has_the_highest_accuracy(config):
    rank = TASK["lra/text"].rank
    assert rank({"loss": 0.9, "accuracy": 0.8}) < rank({"loss": 0.1, "accuracy": 0.7})
    assert rank({"loss": 0.1}) < rank({"loss": 0.2})  # of a run that denoises


@each_task
def test_only_real_tokens_are_masked_and_masks_change_each_epoch(config, name):
    task = TASK[f"lra/{name}"](config(name, objective="denoise"))
    samples = np.arange(6)
    first, again, later = (task.batch("train", samples, np.full(6, epoch)) for epoch in (0, 0, 1))
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not torch.equal(first["select"], later["select"])
    plain, real = task.splits["train"].rows(samples, task.data.context)
    assert np.array_equal(plain.ravel()[first["select"]], first["labels"])
    assert real.ravel()[first["select"]].all()
    assert len(first["select"]) / real.sum() == pytest.approx(0.15, abs=0.06)
    changed = first["ids"].numpy() != plain
    assert set(np.flatnonzero(changed)) <= set(first["select"].tolist())
    assert (first["ids"].numpy()[changed] == task.tokens).mean() > 0.6


@pytest.mark.parametrize(("name", "rules"), [*((name, "lra") for name in TASKS), ("listops", "skyformer")])
def test_a_run_that_was_stopped_ends_in_the_same_bits(config, name, rules, tmp_path):
    settings = config(name, rules=rules, train=CYCLE)
    start_run(settings, tmp_path / "whole", QUIET)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "checkpoints" / "step-6")
    resume_run(tmp_path / "part", QUIET)
    assert weights(tmp_path / "whole", 6) == weights(tmp_path / "part", 6)
    assert (tmp_path / "whole/metrics.jsonl").read_bytes() == (tmp_path / "part/metrics.jsonl").read_bytes()
    metrics = evaluate_run(tmp_path / "part", "test", QUIET, "best")
    assert metrics["samples"] == sum(map(sum, metrics["confusion"]))


@each_task
def test_attention_is_measured_along_training_and_after(config, name, tmp_path):
    settings = config(name, train={"steps": 2, "instruments": ["entropy"], "instrument_every": 2})
    outcome = start_run(settings, tmp_path / "run", QUIET)
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    found = [record for record in records if record["split"] == "instruments"]
    assert [(len(record["layers"]), list(record["values"])) for record in found] == [(2, ["entropy"])]
    blocks = watch_blocks(TASK[f"lra/{name}"](settings), 3)
    assert blocks.dim() == 2
    assert 1 <= len(blocks) <= 3
    assert len(instrument_views_of_model(load_model(outcome.folder), blocks)) == 2


def test_a_separable_task_is_learned(config, tmp_path):
    outcome = start_run(config("text", train={"steps": 40, "lr": 3e-3, "eval_every": 40}), tmp_path / "run", QUIET)
    assert outcome.valid["accuracy"] == 1.0


@pytest.mark.parametrize("name", ["image", "retrieval"])
def test_pretraining_is_a_run_of_its_own_whose_weights_are_taken_over(config, name, tmp_path):
    settings = config(name, pretrain=True, train={"steps": 2, "pretrain_steps": 3, "lr": 1e-9})
    outcome = start_run(settings, tmp_path / "run", QUIET)
    assert (outcome.step, outcome.signal) == (2, 0)
    before, after = load_model(tmp_path / "run" / "pretrain"), load_model(tmp_path / "run")
    assert (before.config.output, after.config.output) == ("masked_lm", TASK[f"lra/{name}"].output)
    assert before.config.vocab_size == after.config.vocab_size
    assert torch.allclose(before.embedding.weight, after.embedding.weight, atol=1e-6)  # the rate is almost 0
    other = start_run(config(name, train={"steps": 2, "lr": 1e-9}), tmp_path / "plain", QUIET)
    plain = load_model(other.folder)
    rows = min(len(plain.embedding.weight), len(after.embedding.weight))
    assert not torch.allclose(plain.embedding.weight[:rows], after.embedding.weight[:rows], atol=1e-4)
    metrics = [json.loads(line) for line in (tmp_path / "run/pretrain/metrics.jsonl").read_text().splitlines()]
    assert metrics[-1]["perplexity"] > 1


def test_pretraining_resumes_after_a_stop(config, tmp_path):
    settings = config("text", pretrain=True, train={"steps": 2, "pretrain_steps": 4, "save_every": 1})
    start_run(settings, tmp_path / "whole", QUIET)
    start_run(settings, tmp_path / "part", QUIET)
    for step in (2, 1):
        for path in (tmp_path / "part" / "checkpoints" / f"step-{step}").glob("*"):
            path.unlink()
        (tmp_path / "part" / "checkpoints" / f"step-{step}").rmdir()
    newest = tmp_path / "part" / "pretrain" / "checkpoints" / "step-4"
    for path in newest.glob("*"):
        path.unlink()
    newest.rmdir()
    resume_run(tmp_path / "part", QUIET)
    assert weights(tmp_path / "part", 2) == weights(tmp_path / "whole", 2)


def test_the_record_of_a_study_holds_the_pretraining_too(config, tmp_path):
    settings = config("text", pretrain=True, train={"steps": 2, "pretrain_steps": 4})
    outcome = start_run(settings, tmp_path / "run", QUIET)
    found = STUDY["transnormer-table6"]().record("cpu", StudyRun(Row("T2, pretrained", None), 0, settings), outcome)
    steps = {name: [e["step"] for e in found[name] if e["split"] == "train"] for name in ("curve", "pretraining")}
    assert steps == {"curve": [2], "pretraining": [2, 4]}
    assert found["tokens"] == found["curve"][0]["tokens"] + found["pretraining"][-2]["tokens"]
    assert found["checkpoint"] == "best"
    plain = start_run(config("text", train={"steps": 2}), tmp_path / "plain", QUIET)
    study_run = StudyRun(Row("T2", None), 0, settings)
    assert "pretraining" not in STUDY["transnormer-table6"]().record("cpu", study_run, plain)


def test_a_stop_in_pretraining_is_reported_and_resumes(config, tmp_path, monkeypatch, capsys):
    settings = config("text", pretrain=True, train={"steps": 2, "pretrain_steps": 4})
    start_run(settings, tmp_path / "whole", QUIET)
    update = Trainer._update

    def interrupted(self):
        if self.at.step == 2:
            signal.raise_signal(signal.SIGINT)
        return update(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_update", interrupted)
        outcome = start_run(settings, tmp_path / "part", QUIET)
    assert (outcome.signal, outcome.pretraining, outcome.step) == (signal.SIGINT, True, 2)  # not the third
    with pytest.raises(typer.Exit):
        print_outcome(outcome, json=False)
    assert f"step 2 of 4 of pretraining and saved: linnet resume {tmp_path / 'part'}\n" in capsys.readouterr().out
    text = (tmp_path / "part" / "config.toml").read_text()
    for key, other in (("pretrain_steps", "steps is 5, not 4"), ("seed", "seed is 5, not 0")):
        changed = re.sub(rf"^{key} = \d$", f"{key} = 5", text, flags=re.MULTILINE)
        (tmp_path / "part" / "config.toml").write_text(changed)
        with pytest.raises(InputError, match=f"pretrain was started with other settings, now {other}: put it back"):
            resume_run(tmp_path / "part", QUIET)
    (tmp_path / "part" / "config.toml").write_text(text)
    assert not resume_run(tmp_path / "part", QUIET).pretraining
    assert weights(tmp_path / "part", 2) == weights(tmp_path / "whole", 2)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("listops", {"context": 1000}, "data.context is 1000: trees have up to 1,999 tokens"),
        ("listops", {"path": "nowhere", "count": None}, "basic_train.tsv does not exist: `linnet data listops"),
        ("listops", {"path": "nowhere", "count": 9}, "data.count is 9: it applies only to generated data"),
        ("text", {"count": 9}, "data.count is 9: it applies only to generated data, and these are read"),
        ("image", {"context": 1000}, "data.context is 1000: an image has 1,024 pixels"),
        ("pathfinder", {"context": 1000}, "data.context is 1000: an image has 1,024 pixels"),
        ("pathfinder", {"path": "nowhere"}, "nowhere has neither pathfinder.json nor imgs: Pathfinder32 is"),
        ("retrieval", {"path": None}, "data.path is not set: LRA Retrieval needs new_aan_pairs"),
    ],
)
def test_bad_data_is_one_line(config, name, data, message):
    with pytest.raises(InputError) as error:
        TASK[f"lra/{name}"](config(name, **data))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("preset_name", "fields", "line"),
    [
        ("vanilla_roberta_small", {}, "model.output is 'masked_lm': the task lra/text needs 'classifier'"),
        ("vanilla_lra", {"vocab_size": 100}, "model.vocab_size is 100: the data have 257 different tokens"),
        ("vanilla_lra", {"max_length": 60}, "model.max_length is 60: data.context is 64"),
        ("vanilla_lra", {"classes": 3}, "model.classes is 3: the task lra/text has 2"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(config, preset_name, fields, line):
    with pytest.raises(InputError, match=line):
        TASK["lra/text"](config("text")).check_model(preset(preset_name, **fields))


def test_pretraining_is_of_lra_only():
    with pytest.raises(InputError, match=r"only the tasks lra/\.\.\. that classify allow it, not causal_lm"):
        check_config(load_recipe_config("smoke", ["pretrain=true"]))


def test_steps_of_pretraining_need_pretraining():
    with pytest.raises(InputError, match=r"train\.pretrain_steps is 9: it needs pretrain = true"):
        check_config(load_recipe_config("lra/text", ["train.pretrain_steps=9"]))
