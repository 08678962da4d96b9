"""The studies of the Long Range Arena: which systems run on which task, for how long."""

from collections.abc import Iterator

from linnet.models.presets import list_models
from linnet.train.plan import Row, Study

# As a CPU can do them: sequences and models of the paper's size, but fewer steps and smaller batches.
ARENA = {
    "lra/listops": ("train.steps=5000", "train.warmup=100", "train.eval_every=500"),
    "lra/text": ("train.steps=1000", "train.batch=16", "train.warmup=20", "train.eval_every=250"),
    "lra/image": ("train.steps=1000", "train.batch=32", "train.warmup=20", "train.eval_every=250"),
    "lra/pathfinder": ("train.steps=1000", "train.batch=32", "train.warmup=20", "train.eval_every=250"),
    "lra/retrieval_small": ("train.steps=500", "train.batch=8", "train.warmup=20", "train.eval_every=100"),
}
COMPARED = {  # name in the tables: system; those that are there
    name: system
    for name, system in {
        "T2": "transnormer_t2",
        "vanilla": "vanilla",
        "T1": "transnormer_t1",
        "1+elu": "elu",
        "lln_diag": "lln_diag",
        "lln": "lln",
        "Performer": "performer",
        "cosFormer": "cosformer",
        "Linformer": "linformer",
        "Reformer": "reformer",
        "Nystromformer": "nystromformer",
        "Informer": "informer",
        "BigBird": "bigbird",
        "kernelized": "kernelized",
        "Skyformer": "skyformer",
        "Transformer-LS": "long_short",
        "FLASH": "flash",
        "FLASH-quad": "flash_quad",
    }.items()
    if f"{system}_lra" in list_models()
}
ON_CPU = ("T2", "vanilla", "T1", "1+elu", "lln_diag")


def _arena_rows() -> Iterator[Row]:
    """Each system on each task, ListOps first; on a CPU some systems, with three seeds of the first two on ListOps."""
    for recipe, sets in ARENA.items():
        for name, system in COMPARED.items():
            if name in ON_CPU:
                seeds = 3 if recipe == "lra/listops" and name in ON_CPU[:2] else 1
                yield Row(name, system, (*sets, "train.threads=1"), seeds, recipe, ("cpu",))
    for task in ("listops", "text", "retrieval", "pathfinder", "image"):
        for name, system in COMPARED.items():
            yield Row(name, system, (), 1, f"lra/{task}", ("paper",))


def _pretraining_rows() -> Iterator[Row]:
    """ListOps with the whole budget for the task itself, and with half of it for denoising before."""
    half = ("pretrain=true", "train.steps=2500", "train.pretrain_steps=2500")
    for name in ("T2", "vanilla"):
        usual = (*ARENA["lra/listops"], "train.threads=1")
        yield Row(name, COMPARED[name], usual, 1, "lra/listops", ("cpu",))
        yield Row(f"{name}, pretrained", COMPARED[name], (*usual, *half), 1, "lra/listops", ("cpu",))


ARENA_STUDIES = {
    "transnormer-table6": Study(
        title="The Long Range Arena: the systems of TransNormer's Table 6",
        recipes={"cpu": "lra/listops", "paper": "lra/listops"},
        endings={"cpu": "_lra", "paper": "_lra"},
        cpu_sets=(),
        rows=tuple(_arena_rows()),
        shared="arena",
    ),
    "lra-pretraining": Study(
        title="The Long Range Arena: denoising the task's own sequences first",
        recipes={"cpu": "lra/listops"},
        endings={"cpu": "_lra"},
        cpu_sets=(),
        rows=tuple(_pretraining_rows()),
        shared="arena",
    ),
}
