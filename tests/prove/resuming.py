"""Promise 2: resuming at every step, for every task and recipe; 2b: two runs with the same number of threads."""

import os
import shutil
from pathlib import Path

from linnet.config import RunConfig, config_recipe_names, load_recipe_config, parse_config
from linnet.storage import checkpoint_steps
from linnet.train.run import start_run
from tests.prove.promise import Skip, Trials, promise
from tests.prove.runs import QUIET, child, go_on, last_bytes, small_run

TEXT = "A line of real words , with a comma .\n\nAnother line : it says 17 things .\n" * 60
NEEDS = {"text": "imdb", "image": "cifar10-gray", "retrieval_small": "aan-small"}  # in LINNET_DATA
SMALL = ["model.width=16", "model.heads=2", "model.ffn_width=16", "train.batch=2", "train.accumulate=1"]
SMALL += ["train.eval_every=3", "train.eval_batches=1", "train.save_every=1", "train.keep_last=100", "train.threads=1"]


def recipe_in_small(name: str, folder: Path, steps: int) -> RunConfig:
    """A recipe with its own task, layers, schedule and data, and a model and batch of few numbers."""
    config = load_recipe_config(name)
    sets = [*SMALL, f"train.steps={steps}", "train.warmup=2", f"data.cache={folder / 'cache'}"]
    if config.pretrain:
        sets.append("train.pretrain_steps=2")
    if name.startswith("lra/"):
        known = {"listops": "data.count=40", "pathfinder": "data.count=40"}.get(name[4:])
        if known is None and name != "lra/retrieval":
            place = Path(os.environ.get("LINNET_DATA", "/nowhere")) / NEEDS[name[4:]]
            if not place.exists():
                raise Skip(f"{name} needs {NEEDS[name[4:]]} in LINNET_DATA")
        if name == "lra/retrieval":
            for split in ("train", "eval", "test"):
                rows = "".join(f"{i % 2}\t{i}a\t{i}b\tone text {i}\tanother text {i}\n" for i in range(12))
                (folder / f"new_aan_pairs.{split}.tsv").write_text(rows)
            known = f"data.path={folder}"
        sets += [known] if known else []
        sets += ["data.context=64"] if name in ("lra/text", "lra/retrieval", "lra/retrieval_small") else []
    elif config.task == "recall":
        sets = [one for one in sets if not one.startswith("data.cache")]
    else:
        path = {"wikitext": str(folder), "text": str(folder / "my.txt")}.get(config.data.corpus)
        sets += ["data.context=24", *([f"data.path={path}"] if path else [])]
        sets += ["data.tokenizer=bytes"] if config.data.tokenizer in ("bpe", "gpt2") else []
        if config.data.tokenizer in ("bpe",) and config.data.vocab_size:
            table = config.model_dump(exclude_none=True)
            table["data"].pop("vocab_size")
            recipe = folder / "recipe.toml"
            from linnet.config import dump_config

            recipe.write_text(dump_config(parse_config(table)))
            return load_recipe_config(recipe, sets)
    return load_recipe_config(name, sets)


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
                for place in places:
                    os.waitpid(child(lambda config=config, place=place: go_on(config, place)), 0)
                with trials.survives(f"{task}, {threads} threads, seed {seed}"):
                    assert last_bytes(places[0]) == last_bytes(places[1]), "the bytes differ"
