"""Promise 1b: the kill of any rank of a run that torchrun has started."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from linnet.config import RunConfig, dump_config, parse_config
from linnet.storage import checkpoint_steps
from tests.prove.promise import Trials, promise
from tests.prove.runs import ROOT, last_bytes, small_run

PLACES = (("fsdp", 2, {}), ("ddp", 4, {"replicate": 2, "sequence": 2}), ("ddp", 2, {}), ("fsdp", 4, {}))
EACH = 5  # kills of one run
PATIENCE = 240.0  # seconds that a run may need until the next kill or its end


def run_over_ranks(folder: Path, strategy: str, steps: int = 8, mesh: dict[str, int] | None = None) -> RunConfig:
    """A small run with dropout, a record of every update and a checkpoint of every second one."""
    run = small_run(folder, steps=steps, batch=4, log_every=1)
    config = run.model_dump(mode="json", exclude_none=True)
    return parse_config({**config, "distributed": {"strategy": strategy, "mesh": mesh or {}}})


def launch_ranks(config: RunConfig, folder: Path, world: int, restarts: int = 0) -> subprocess.Popen[bytes]:
    """Start a run with torchrun; what it prints goes to a file beside its folder."""
    recipe = folder.with_suffix(".toml")
    recipe.write_text(dump_config(config))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command = [*launcher, "--max-restarts", str(restarts), "-m", "linnet", "train", str(recipe), "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with folder.with_suffix(".log").open("wb") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)


def ranks_of(launched: subprocess.Popen[bytes]) -> list[int]:
    """The processes of the ranks, in the order in which they were started."""
    children = Path(f"/proc/{launched.pid}/task/{launched.pid}/children")
    return sorted(map(int, children.read_text().split())) if children.exists() else []


def records_of(folder: Path) -> int:
    """The number of records that a run has written."""
    metrics = folder / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def wait_for_records(launched: subprocess.Popen[bytes], folder: Path, wanted: int, before: list[int]) -> list[int]:
    """The processes of the ranks, none of which is in `before`, once they have written so many records."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and launched.poll() is None:
        found = ranks_of(launched)
        if found and not set(found) & set(before) and records_of(folder) >= wanted:
            return found
        time.sleep(0.002)
    raise TimeoutError(f"{folder.name}: {wanted} records were not written: {said(folder)[-300:]}")


def said(folder: Path) -> str:
    """The output of torchrun and the ranks."""
    return folder.with_suffix(".log").read_text(errors="replace")


def end_launch(launched: subprocess.Popen[bytes]) -> None:
    """End torchrun, which ends its ranks, if a trial has failed in the middle."""
    if launched.poll() is None:
        launched.terminate()
        launched.wait(60)


@promise(
    "1b",
    "If torchrun restarts the ranks after the kill of any one of them, training continues to the same bits.",
    "SIGKILL of a random rank of 2 and 4, with copies (ddp), parts (fsdp) and cut sequences, at random updates of "
    "small runs and now and then while they start; torchrun restarts them until the run ends. Weights, optimizer state "
    "and metrics are compared with those of an uninterrupted launch; no traceback is printed, and nothing of killed "
    "processes is left.",
)
def kill_ranks(trials: Trials) -> None:
    """50 kills; the short form kills one of two ranks once."""
    rng, usual, steps = random.Random(0), {}, trials.number(36, 8)
    left = trials.number(50, 1)
    for number in range(left):
        strategy, world, mesh = PLACES[number % len(PLACES)]
        config, folder = run_over_ranks(trials.folder, strategy, steps, mesh), trials.folder / "killed"
        if (strategy, world) not in usual:
            whole = trials.folder / f"whole-{strategy}-{world}"
            assert launch_ranks(config, whole, world).wait(PATIENCE) == 0, said(whole)[-600:]
            usual[strategy, world] = last_bytes(whole)
        kills = min(EACH, left)
        launched = launch_ranks(config, folder, world, kills)
        try:
            died = _kill_in_turn(launched, folder, kills, rng)
            same = launched.wait(PATIENCE) == 0 and last_bytes(folder) == usual[strategy, world]
        finally:
            end_launch(launched)
        same = same and not list(folder.rglob(".linnet-*")) and "Traceback" not in said(folder)
        for _ in range(died):
            what = f"{strategy} on {world} ranks: not the same bits, or something is left"
            trials.check(same, f"{what}: {said(folder)[-300:]}")
        left -= died
        shutil.rmtree(folder)
        if left <= 0:
            break
    trials.measured["Kills of ranks"] = trials.count


def _kill_in_turn(launched: subprocess.Popen[bytes], folder: Path, kills: int, rng: random.Random) -> int:
    """Kill one rank after each restart, at a later update each time; returns how many were killed."""
    before: list[int] = []
    for number in range(kills):
        starting = number == 1
        done = max(checkpoint_steps(folder / "checkpoints"), default=0)
        wanted = 0 if starting else rng.randint(done + 1, max(done + 1, 6 * (number + 1)))
        before = wait_for_records(launched, folder, wanted, before)
        time.sleep(rng.uniform(0, 3) if starting else rng.uniform(0, 0.05))
        os.kill(rng.choice(before), signal.SIGKILL)
    return kills
