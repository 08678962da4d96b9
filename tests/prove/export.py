"""Promise 19: saving, loading and saving again gives the same bytes."""

import random
import shutil

import torch

from linnet.models.loading import export_model, load_model
from linnet.storage import read_checkpoint, save_checkpoint
from linnet.train.run import start_run
from tests.prove.generation import recurrent_names, writing_model
from tests.prove.promise import Trials, promise
from tests.prove.runs import QUIET, small_run

KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64)


@promise(
    "19",
    "What is saved, loaded and saved again has the same bytes, and a loaded model gives the same logits.",
    "Random checkpoints of all types and shapes, with ties; exports of random models; checkpoints of real runs.",
)
def round_trips(trials: Trials) -> None:
    """Checkpoints, exports, runs."""
    rng, folder = random.Random(0), trials.folder
    for i in range(trials.number(300, 10)):
        torch.manual_seed(i)
        tensors = {}
        for name in range(rng.randint(0, 6)):
            shape = [rng.randint(0, 5) for _ in range(rng.randint(0, 3))]
            tensors[f"t{name}"] = (10 * torch.randn(shape)).to(rng.choice(KINDS))
        if tensors:
            tensors["tied"] = tensors["t0"]
        with trials.survives(f"checkpoint {i}"):
            first = save_checkpoint(folder / "a", i, tensors, tensors, {"note": rng.choice(("x", None, 3, [1.5]))})
            read = read_checkpoint(first)
            second = save_checkpoint(folder / "b", i, read.model, read.optimizer, read.state)
            assert {p.name: p.read_bytes() for p in first.iterdir()} == {
                p.name: p.read_bytes() for p in second.iterdir()
            }
            assert all(torch.equal(read.model[name], tensor) for name, tensor in tensors.items())
    names = recurrent_names()
    for i in range(trials.number(100, 4)):
        model = writing_model([rng.choice(names) for _ in range(2)], i)
        ids = torch.randint(40, (2, 12))
        with trials.survives(f"export {i}"), torch.no_grad():
            first = export_model(model, folder / "first")
            loaded = load_model(first)
            second = export_model(loaded, folder / "second")
            assert torch.equal(model(ids), loaded(ids)), "other logits"
            assert {p.name: p.read_bytes() for p in first.iterdir()} == {
                p.name: p.read_bytes() for p in second.iterdir()
            }
        for name in ("first", "second"):
            shutil.rmtree(folder / name, ignore_errors=True)
    for task in ("causal_lm", "masked_lm", "recall"):
        start_run(small_run(folder, task, steps=2), folder / task, QUIET)
        with trials.survives(f"the checkpoint of a run of {task}"):
            read = read_checkpoint(folder / task / "checkpoints/step-2")
            again = save_checkpoint(folder / "again", 2, read.model, read.optimizer, read.state)
            assert (again / "manifest.json").read_bytes() == (read.path / "manifest.json").read_bytes()
