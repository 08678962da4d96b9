"""Two and four real ranks train the curve of one process, stop and resume on another number, and fail in one line."""

import json
import signal
import tomllib
from math import prod
from pathlib import Path

import pytest
import tomli_w
import torch

from linnet.config import parse_config
from linnet.models.loading import load_model
from linnet.screen import Screen
from linnet.storage import read_run_metrics
from linnet.train.run import resume_run, start_run
from tests.prove.runs import last_bytes

QUIET = Screen(quiet=True)
TASKS = ("causal_lm", "masked_lm", "lra/listops", "classify")
PLACES = [f"{strategy}{world}/{task}" for world in (2, 4) for strategy in ("ddp", "fsdp") for task in TASKS]
MESHES = {  # two-dimensional, or over the tokens alone
    "copies of parts/causal_lm": ("fsdp", {"replicate": 2, "shard": 2}),
    "slices of copies/causal_lm": ("ddp", {"replicate": 2, "sequence": 2}),
    "slices of copies/masked_lm": ("ddp", {"sequence": 2}),
    "slices and parts/masked_lm": ("fsdp", {"shard": 2, "sequence": 2}),
    "slices alone/causal_lm": ("fsdp", {"sequence": 4}),
}
HALF = {
    "copies": ("causal_lm", "ddp", {}),
    "parts": ("masked_lm", "fsdp", {}),
    "slices": ("masked_lm", "fsdp", {"sequence": 2}),
}
BEFORE = {"pretrain": True, "pretrain_steps": 3, "save_every": 1}
TOLERANCE = 2e-5  # of a loss or a metric, relative
ROUNDING = 1e-2  # of a loss in bfloat16, relative
NOISE = 5e-3  # of a gradient norm, relative to the largest, and of a weight: as between micro-batches of other sizes


def of(task: str, encoder: Path) -> dict[str, str]:
    return {"encoder": str(encoder)} if task == "classify" else {}


def use(folder: Path, **distributed) -> None:
    """Write other settings of [distributed] into the configuration of a run."""
    table = tomllib.loads((folder / "config.toml").read_text())
    (folder / "config.toml").write_text(tomli_w.dumps({**table, "distributed": distributed}))


@pytest.fixture(scope="module")
def runs(settings, launch, tmp_path_factory) -> Path:
    """Every run of these tests: `one/TASK`, `ddp2/TASK`, `fsdp4/TASK`, ..., and runs that changed their ranks."""
    top = tmp_path_factory.mktemp("runs")
    encoder = top / "one" / "masked_lm"
    for task in ("masked_lm", *TASKS):
        if not (top / "one" / task).exists():
            start_run(parse_config(settings(task, **of(task, encoder))), top / "one" / task, QUIET)
    start_run(parse_config(settings("lra/listops", **BEFORE)), top / "one" / "pretrained", QUIET)
    for task in ("causal_lm", "masked_lm"):
        start_run(parse_config(settings(task, precision="bfloat16")), top / "one/bfloat16" / task, QUIET)

    def jobs(world: int) -> list[dict]:
        return [
            {"folder": top / place, "config": settings(task, place.split(str(world))[0], **of(task, encoder))}
            for place in PLACES
            for where, _, task in [place.partition("/")]
            if where.endswith(str(world))
        ]

    def meshes(world: int) -> list[dict]:
        return [
            {"folder": top / place, "config": settings(place.partition("/")[2], strategy, mesh=mesh)}
            for place, (strategy, mesh) in MESHES.items()
            if prod(mesh.values()) == world
        ]

    stopped = [
        {"folder": top / name, "config": settings("causal_lm", name[:-1]), "disturb": (1, "signal", 3)}
        for name in ("ddp-", "fsdp-", "fsdp=")
    ]
    before = settings("lra/listops", "ddp", mesh={"replicate": 2}, **BEFORE)
    stopped += [{"folder": top / "pretrained", "config": before, "disturb": (1, "signal", 2)}]
    half = [
        {"folder": top / f"bfloat16 {name}", "config": settings(task, strategy, mesh=mesh, precision="bfloat16")}
        for name, (task, strategy, mesh) in HALF.items()
    ]
    ends = launch(2, [*jobs(2), *meshes(2), *half, *stopped])
    assert [end["signal"] for end in ends] == [0] * 12 + [signal.SIGTERM] * 4
    assert [end["step"] for end in ends] == [6, 6, 3, 6] * 2 + [6] * 4 + [3] * 3 + [2]
    use(top / "pretrained", strategy="fsdp")
    use(top / "ddp-", strategy="fsdp", mesh={"shard": 2, "sequence": 2}, activation_checkpointing=True)
    use(top / "fsdp-", strategy="ddp")
    again = {"folder": top / "ddp4 again", "config": settings("causal_lm", "ddp"), "disturb": (3, "signal", 3)}
    resumed = [{"folder": top / name} for name in ("ddp4 again", "ddp-", "fsdp-", "pretrained")]
    ends = launch(4, [*jobs(4), *meshes(4), again, *resumed])
    assert [end["step"] for end in ends] == [6, 6, 3, 6] * 2 + [6] * 4 + [3] + [6] * 3 + [3]
    assert resume_run(top / "fsdp=", QUIET).step == 6
    return top


def numbers(value: object) -> list[float]:
    if isinstance(value, dict):
        return [x for key in sorted(value) for x in numbers(value[key])]
    if isinstance(value, list):
        return [x for each in value for x in numbers(each)]
    return [float(value)] if isinstance(value, int | float) else []


def check_same(folder: Path, one: Path) -> None:
    """The records, the evaluations and the weights of two runs agree."""
    found, wanted = (read_run_metrics(path / "metrics.jsonl") for path in (folder, one))
    assert [(r["step"], r["split"]) for r in found] == [(r["step"], r["split"]) for r in wanted]
    for a, b in zip(found, wanted, strict=True):
        for key, value in a.items():
            expected, tolerance = numbers(b[key]), NOISE if "grad" in key else TOLERANCE
            scale = max(map(abs, expected), default=0.0)  # the norm of all gradients, beside those of the layers
            assert numbers(value) == pytest.approx(expected, rel=tolerance, abs=tolerance * scale), (key, a["step"])
    ours, theirs = load_model(folder).state_dict(), load_model(one).state_dict()
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        assert float((weight - theirs[name]).abs().max()) <= NOISE, name


@pytest.mark.parametrize("place", [*PLACES, *MESHES])
def test_many_ranks_train_the_curve_of_one(runs, place):
    check_same(runs / place, runs / "one" / place.partition("/")[2])


@pytest.mark.parametrize("name", ["ddp-", "fsdp-", "fsdp="])
def test_a_run_goes_on_with_other_ranks_and_another_strategy(runs, name):
    """Two ranks, stopped by a signal to one of them, are resumed by four, with sequences cut too, or by one."""
    check_same(runs / name, runs / "one" / "causal_lm")


def test_four_ranks_resume_to_the_same_bits(runs):
    """The rounding of a sum over more than two ranks depends on its order, which a new start must not change."""
    assert last_bytes(runs / "ddp4 again") == last_bytes(runs / "ddp4/causal_lm")


def test_ranks_pretrain_and_go_on_as_others(runs):
    """Two ranks, stopped while they pretrain, are resumed by four, whose strategy both parts follow."""
    for part in ("", "pretrain"):
        check_same(runs / "pretrained" / part, runs / "one/pretrained" / part)
    assert (runs / "pretrained/pretrain/checkpoints/step-3/model-00003.safetensors").exists()


@pytest.mark.slow  # the compiler takes a minute or more
def test_compiled_ranks_train_the_curve_of_one(settings, launch, tmp_path):
    start_run(parse_config(settings("causal_lm")), tmp_path / "one", QUIET)
    compiled = {name: settings("causal_lm", name, compile=True) for name in ("ddp", "fsdp")}
    ends = launch(2, [{"folder": tmp_path / name, "config": config} for name, config in compiled.items()])
    assert [end["step"] for end in ends] == [6, 6]
    for name in compiled:
        check_same(tmp_path / name, tmp_path / "one")


@pytest.mark.parametrize("name", HALF)
def test_ranks_compute_in_bfloat16_and_keep_weights_in_float32(runs, name):
    """The losses are those of one process in bfloat16, except for rounding, and not those in float32."""
    task = HALF[name][0]
    losses = [
        [record["loss"] for record in read_run_metrics(folder / "metrics.jsonl")]
        for folder in (runs / f"bfloat16 {name}", runs / "one/bfloat16" / task, runs / "one" / task)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=ROUNDING)
    assert losses[0] != pytest.approx(losses[2], rel=TOLERANCE)
    assert {weight.dtype for weight in load_model(runs / f"bfloat16 {name}").parameters()} == {torch.float32}


def test_copies_are_saved_as_by_one_process(runs):
    files = {path.name for path in (runs / "ddp2/causal_lm/checkpoints/step-6").iterdir()}
    assert files == {"model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"}


def test_parts_are_saved_by_their_ranks(runs):
    path = runs / "fsdp4/causal_lm/checkpoints/step-6"
    names = {f"{part}-{rank:05}.safetensors" for part in ("model", "optimizer") for rank in range(4)}
    assert {file.name for file in path.iterdir()} == names | {"state.json", "manifest.json"}
    shards = json.loads((path / "manifest.json").read_text())["shards"]
    rows = [shard["tensors"]["embedding.weight"]["rows"] for name, shard in shards.items() if name.startswith("model")]
    assert [stop for _, stop in rows[:-1]] == [start for start, _ in rows[1:]]
