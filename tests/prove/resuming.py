"""Promise 2: resuming at every step, for every task and recipe; 2b: two runs with the same number of threads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from linnet.config import (
    RunConfig,
    config_recipe_names,
    config_recipe_path,
    dump_config,
    parse_config,
    read_config_toml,
)
from linnet.registry import TASK
from linnet.storage import checkpoint_steps
from linnet.train.run import start_run
from tests.prove.promise import Skip, Trials, promise
from tests.prove.runs import QUIET, go_on, last_bytes, small_run

TEXT = "A line of real words , with a comma .\n\nAnother line : it says 17 things .\n" * 60
NEEDS = {  # data sets in LINNET_DATA
    "lra/text": "imdb",
    "lra/image": "cifar10-gray",
    "lra/retrieval_small": "aan-small",
    "cifar10": "cifar-10-batches-bin",
    "dogs_vs_cats": "dogs-vs-cats-64",
    "enwik8": "enwik8",
    "finetune": "glue",
}
MODEL = {"width": 16, "heads": 2, "ffn_width": 16}
TRAIN = {"batch": 2, "accumulate": 1, "warmup": 2, "eval_every": 3, "eval_batches": 1, "save_every": 1}
TRAIN |= {"keep_last": 100, "threads": 1}


def recipe_in_small(name: str, folder: Path, steps: int) -> RunConfig:
    """A recipe with its own task, layers, schedule and data, and a model and batch of few numbers."""
    place = Path(os.environ.get("LINNET_DATA", "/nowhere")) / NEEDS.get(name, "")
    if name in NEEDS and not place.exists():
        raise Skip(f"{name} needs {NEEDS[name]} in LINNET_DATA")
    table = read_config_toml(config_recipe_path(name))
    table["train"] = {**table.get("train", {}), **TRAIN, "steps": steps}
    table["model"] = {**table.get("model", {}), **MODEL}
    data = table.setdefault("data", {})
    data |= {"lra/listops": {"count": 40}, "lra/pathfinder": {"count": 40}}.get(name, {})
    if table["task"] in ("causal_lm", "masked_lm"):
        path = {"wikitext": folder, "text": folder / "my.txt"}.get(data.get("corpus", "stdlib"))
        data |= {"context": 24, "tokenizer": "word" if data.get("tokenizer") == "word" else "bytes"}
        data |= {"path": str(path)} if path else {}
        data.pop("vocab_size", None)
    elif name in ("lra/text", "lra/retrieval", "lra/retrieval_small"):
        data["context"] = 64
    if name == "lra/retrieval":
        data["path"] = str(folder)
    if name == "lln_vit":
        data["path"] = _pictures(folder / "pictures")
    if name == "finetune":
        table |= {"model": {}, "data": {**data, "context": 64, "encoder": str(_encoder(folder / "encoder"))}}
    if "cache" in TASK[table["task"]].Data.model_fields:
        data = table["data"]
        data["cache"] = str(folder / "cache")
    return parse_config(table)


def _pictures(folder: Path) -> str:
    """A folder of two classes of pictures."""
    try:
        from PIL import Image
    except ImportError:
        raise Skip("lln_vit needs Pillow") from None
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(10):
            Image.new("RGB", (8, 8), (20 * i, 0, 0)).save(folder / name / f"{i}.png")
    return str(folder)


def _encoder(folder: Path) -> Path:
    """A pretrained encoder."""
    start_run(small_run(folder.parent, "masked_lm", steps=2), folder, QUIET)
    return folder


@promise(
    "2",
    "Resuming is bit-identical at every step, for every task and every recipe.",
    "Each task (with dropout and accumulation) and each recipe in small (own task, layers, schedule, pretraining) is "
    "trained once with all checkpoints kept, then resumed from each of them; ends are compared byte by byte. The same "
    "machine, torch, threads, backend and kernels are a condition, and a warning names one that has changed.",
)
def resume_at_every_step(trials: Trials) -> None:
    """Every split point of tasks, recipes, and of the pretraining inside a run."""
    folder = trials.folder
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text(TEXT)
    (folder / "my.txt").write_text(TEXT)
    for split in ("train", "eval", "test"):
        rows = "".join(f"{i % 2}\t{i}a\t{i}b\tone text {i}\tanother text {i}\n" for i in range(12))
        (folder / f"new_aan_pairs.{split}.tsv").write_text(rows)
    long = trials.number(24, 3)
    every = {"steps": long, "save_every": 1, "keep_last": 100, "eval_every": 5}
    for task in ("causal_lm", "masked_lm", "recall")[: 1 if trials.short else 3]:
        _resume_everywhere(trials, small_run(folder, task, **every), task)
    names = config_recipe_names()
    for name in ["smoke"] if trials.short else names:
        try:
            config = recipe_in_small(name, folder, trials.number(6, 3))
        except Skip as reason:
            trials.skipped.append(str(reason))
            continue
        _resume_everywhere(trials, config, name)
        if name == "lra/listops":
            first = config.train.model_copy(update={"pretrain_steps": 4})
            both = config.model_copy(update={"pretrain": True, "train": first})
            _resume_everywhere(trials, both, f"{name} with pretraining")


def _resume_everywhere(trials: Trials, config: RunConfig, name: str) -> None:
    whole = trials.folder / "whole"
    with trials.survives(f"{name} trains"):
        start_run(config, whole, QUIET)
    saved = checkpoint_steps(whole / "checkpoints") if whole.exists() else []
    for step in saved[:-1]:
        part = shutil.copytree(whole, trials.folder / "part")
        for other in saved:
            if other > step:
                shutil.rmtree(part / f"checkpoints/step-{other}")
        with trials.survives(f"{name} resumes at step {step}"):
            go_on(config, part)
            assert last_bytes(part) == last_bytes(whole), "the bytes differ"
        shutil.rmtree(part)
    if (whole / "pretrain").exists():
        for step in checkpoint_steps(whole / "pretrain/checkpoints")[:-1]:
            part = shutil.copytree(whole, trials.folder / "part")
            shutil.rmtree(part / "checkpoints")
            (part / "metrics.jsonl").unlink()
            for other in checkpoint_steps(part / "pretrain/checkpoints"):
                if other > step:
                    shutil.rmtree(part / f"pretrain/checkpoints/step-{other}")
            with trials.survives(f"{name} resumes at step {step} of its pretraining"):
                go_on(config, part)
                assert last_bytes(part) == last_bytes(whole), "the bytes differ"
            shutil.rmtree(part)
    shutil.rmtree(whole, ignore_errors=True)


@promise(
    "2b",
    "Two runs of one recipe are bit-identical on one machine, with one thread and with two.",
    "Each task twice with one thread and twice with two, in processes of their own. Runs with different numbers of "
    "threads are not promised to agree in the last bits.",
)
def two_runs_agree(trials: Trials) -> None:
    """Pairs of runs."""
    for task in ("causal_lm", "masked_lm", "recall")[: 1 if trials.short else 3]:
        for threads in (1, 2):
            for seed in range(trials.number(2, 1)):
                config = small_run(trials.folder, task, threads=threads).model_copy(update={"seed": seed})
                places = [trials.folder / f"{task}-{threads}-{seed}-{i}" for i in (0, 1)]
                recipe = trials.folder / f"{task}-{threads}-{seed}.toml"
                recipe.write_text(dump_config(config))
                for place in places:  # fresh processes: a fork of one that has used two threads would wait for ever
                    words = ["train", str(recipe), "--out", str(place), "--json"]
                    subprocess.run([sys.executable, "-m", "linnet", *words], check=True, capture_output=True)
                with trials.survives(f"{task}, {threads} threads, seed {seed}"):
                    assert last_bytes(places[0]) == last_bytes(places[1]), "the bytes differ"
