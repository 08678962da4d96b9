"""The studies of the Long Range Arena: which systems run on which task, for how long."""

from collections.abc import Iterator

from linnet.studies.plan import Row, Study

# As a CPU can do them: models and sequences of the paper's size. ListOps has the paper's data, batch and highest rate,
# and a tenth of its steps; the other tasks have far fewer and smaller ones, and so a higher rate.
SHORT = ("train.lr=1e-3", "train.warmup_lr=4e-5", "train.min_lr=4e-9", "train.warmup=50", "train.log_every=50")
PICTURES = ("train.steps=1000", "train.batch=32", "train.eval_every=250", "train.eval_batches=60")
ARENA = {
    "lra/listops": ("train.steps=5000", "train.warmup=100", "train.eval_every=500"),
    "lra/image": (*SHORT, *PICTURES),
    "lra/pathfinder": (*SHORT, *PICTURES, "data.count=50000"),
    "lra/text": (*SHORT, "train.steps=1000", "train.batch=16", "train.eval_every=250", "train.eval_batches=60"),
    "lra/retrieval_small": (*SHORT, "train.steps=300", "train.batch=4", "train.eval_every=100"),
}
COMPARED = {  # name in the tables: system
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
}
EVERYWHERE = ("T2", "vanilla", "1+elu")  # on a CPU
ON_LISTOPS = (*EVERYWHERE, "T1", "lln_diag")
PRETRAINED = {"lra/listops": 2500, "lra/image": 500, "lra/text": 500}  # half of the steps: first so many of denoising


def _arena_rows() -> Iterator[Row]:
    """Each system on each task, ListOps first; on a CPU some of them, and T2 once more with pretraining."""
    for recipe, sets in ARENA.items():
        for name in ON_LISTOPS if recipe == "lra/listops" else EVERYWHERE:
            yield Row(name, COMPARED[name], (*sets, "train.threads=1"), 1, recipe, ("cpu",))
        if half := PRETRAINED.get(recipe):
            halves = ("pretrain=true", f"train.steps={half}", f"train.pretrain_steps={half}", "train.threads=1")
            yield Row("T2, pretrained", COMPARED["T2"], (*sets, *halves), 1, recipe, ("cpu",))
    for task in ("listops", "text", "retrieval", "pathfinder", "image"):
        for name, system in COMPARED.items():
            yield Row(name, system, (), 1, f"lra/{task}", ("paper",))


ARENA_STUDIES = {
    "transnormer-table6": Study(
        title="The Long Range Arena: the systems of TransNormer's Table 6",
        recipes={"cpu": "lra/listops", "paper": "lra/listops"},
        endings={"cpu": "_lra", "paper": "_lra"},
        cpu_sets=(),
        rows=tuple(_arena_rows()),
    ),
}
