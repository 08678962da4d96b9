"""A failure on one rank ends all ranks with one line and leaves nothing half-written, as does the loss of a rank."""

import os
import resource
import signal
import subprocess
import sys
import time

import pytest

from linnet.storage import read_checkpoint
from tests.prove.ranks import launch_ranks, ranks_of, run_over_ranks, said, wait_for_records

NAN = "step 3: the loss is nan, first in the weight embedding.weight; this step was not saved"


@pytest.fixture(scope="module")
def failures(settings, launch, tmp_path_factory):
    """How runs on two ranks ended, by name, and their folders."""
    top = tmp_path_factory.mktemp("failures")
    other = top / "other.txt"
    other.write_text("another text, for one rank only. " * 200)
    wrong = {
        "ddp nan": ("ddp", {"disturb": (1, "nan", 2)}),
        "fsdp nan": ("fsdp", {"disturb": (1, "nan", 2)}),
        "fsdp nan 0": ("fsdp", {"disturb": (0, "nan", 2)}),
        "fsdp full": ("fsdp", {"disturb": (1, "full", 3000)}),
        "fsdp full 0": ("fsdp", {"disturb": (0, "full", 30_000)}),
        "setting": ("fsdp", {"other": {"1": [["train", "lr", 0.5]]}}),
        "data": ("ddp", {"other": {"1": [["data", "path", str(other)]]}}),
    }
    jobs = [{"folder": top / name, "config": settings("causal_lm", how), **job} for name, (how, job) in wrong.items()]
    cut, softmax = settings("causal_lm", "ddp", mesh={"sequence": 2}), {"layers": ["norm", "softmax"]}
    misfits = {
        "strategy": settings("causal_lm"),
        "batch": settings("causal_lm", "ddp", batch=7),
        "mesh": settings("causal_lm", "fsdp", mesh={"shard": 2, "sequence": 2}),
        "context": {**cut, "data": {**cut["data"], "context": 33}},
        "mechanism": {**cut, "model": {**cut["model"], **softmax}},
        "task": settings("lra/listops", "ddp", mesh={"sequence": 2}),
        "compile": {**cut, "train": {**cut["train"], "compile": True}},
        "instruments": {**cut, "train": {**cut["train"], "instruments": ["entropy"]}},
    }
    jobs += [{"folder": top / name, "config": config} for name, config in misfits.items()]
    return top, dict(zip([*wrong, *misfits], launch(2, jobs), strict=True))


@pytest.mark.parametrize(
    ("name", "line", "code", "steps"),
    [
        ("ddp nan", NAN, 1, ["step-2"]),
        ("fsdp nan", NAN, 1, ["step-2"]),
        ("fsdp nan 0", NAN, 1, ["step-2"]),
        ("fsdp full", "cannot write {}/checkpoints/step-2: File too large", 1, []),
        ("fsdp full 0", "cannot write {}/checkpoints/step-2: File too large", 1, []),
        ("setting", "the ranks differ: on rank 1, train.lr is 0.5, on rank 0 0.01", 2, None),
        ("data", "the ranks differ: on rank 1, the data (test) is ", 2, None),
        ("strategy", "torchrun started 2 ranks: set distributed.strategy=ddp or fsdp", 2, None),
        ("batch", "train.batch is 7: it must be a multiple of the number of ranks, 2", 2, None),
        ("mesh", "distributed.mesh is shard 2 x sequence 2: torchrun started 2 ranks", 2, None),
        ("context", "data.context is 33: it must be a multiple of distributed.mesh.sequence, 2", 2, None),
        ("mechanism", "softmax: its sequence cannot be cut over ranks", 2, None),
        ("task", "distributed.mesh.sequence is 2: sequences of the task lra/listops cannot be cut", 2, None),
        ("compile", "train.compile is true: what ranks exchange of a sequence breaks its graphs", 2, None),
        ("instruments", "train.instruments needs whole sequences", 2, None),
    ],
)
def test_a_failure_on_one_rank_ends_all_with_its_line(failures, name, line, code, steps):
    """All ranks go on to the next run: none of them is left waiting."""
    folder, end = failures[0] / name, failures[1][name]
    assert (end["line"].startswith(line.format(folder)), end["code"]) == (True, code), end
    assert (sorted(path.name for path in (folder / "checkpoints").glob("*")) if folder.exists() else None) == steps
    assert not list(folder.rglob(".linnet-*"))


def check_end(launched, folder, code):
    """All ranks are gone within 30 seconds, and there is one line of linnet and no traceback of a rank; returns it."""
    start, ranks = time.monotonic(), ranks_of(launched)
    while any(os.path.exists(f"/proc/{rank}") for rank in ranks):  # torchrun collects them
        assert time.monotonic() < start + 30, said(folder)
        time.sleep(0.05)
    assert launched.wait(60) == code, said(folder)
    (line,) = [line for line in said(folder).splitlines() if line.startswith("linnet: ")]
    assert said(folder).count("Traceback") == 1  # that of torchrun
    assert not list(folder.rglob(".linnet-*.tmp"))
    return line


@pytest.mark.parametrize("killed", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_loss_of_a_rank_is_one_line(tmp_path, killed):
    """A rank cannot say that it was killed, so the others do."""
    config, folder = run_over_ranks(tmp_path, ("ddp", "fsdp")[killed], 1000), tmp_path / "run"
    launched = launch_ranks(config, folder, 2)
    ranks = wait_for_records(launched, folder, 3, [])
    os.kill(ranks[killed], signal.SIGKILL)
    line = check_end(launched, folder, 1)
    assert line.startswith(
        "linnet: a rank is lost: another one has ended or does not answer; `linnet resume` continues"
    )
    assert read_checkpoint(folder / "checkpoints/step-2").step == 2


def test_ranks_that_do_not_fit_end_with_one_line(tmp_path):
    """By the command itself: rank 0 alone says it, all exit with code 2, and no folder is made."""
    folder = tmp_path / "run"
    launched = launch_ranks(run_over_ranks(tmp_path, "fsdp", mesh={"replicate": 4, "sequence": 2}), folder, 2)
    assert launched.wait(60) == 1
    (line,) = [line for line in said(folder).splitlines() if line.startswith("linnet: ")]
    assert line.startswith("linnet: distributed.mesh is replicate 4 x sequence 2: torchrun started 2 ranks")
    assert "exitcode  : 2" in said(folder)
    assert not folder.exists()


def test_a_full_disk_where_only_rank_0_writes_is_one_line(tmp_path):
    """Rank 0 writes in the background, where no other rank listens: it ends alone, and the others say nothing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))  # the optimizer's state is larger
    try:
        launched = launch_ranks(run_over_ranks(tmp_path, "ddp", 1000), tmp_path / "run", 2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    wait_for_records(launched, tmp_path / "run", 1, [])
    line = check_end(launched, tmp_path / "run", 1)
    assert line == f"linnet: rank 0: cannot write {tmp_path}/run/checkpoints/step-2: File too large"
    assert not list((tmp_path / "run/checkpoints").iterdir())


def test_a_rank_ends_at_once_and_shows_what_it_printed():
    """Even if a thread goes on, as those of a group do that a model still holds."""
    wait = "import threading, time; threading.Thread(target=time.sleep, args=(60,)).start()"
    end = "print('printed'); from linnet.distributed.ranks import Ranks; Ranks(world=2).end(3)"
    done = subprocess.run(
        [sys.executable, "-c", f"{wait}\n{end}"], capture_output=True, text=True, timeout=50, check=False
    )
    assert (done.returncode, done.stdout) == (3, "printed\n")
