"""Jobs for ranks that torchrun starts: each trains or resumes a tiny run, or tries to, and reports how it ended.

Run as `torchrun ... -m tests.distributed.jobs JOBS.json`. All jobs of a launch share its processes, because starting
them takes longer than any job. Rank 0 adds a line of JSON per job to JOBS.out, and all ranks must end alike.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from linnet.config import parse_config
from linnet.distributed.ranks import launched_ranks
from linnet.errors import LinnetError
from linnet.screen import Screen
from linnet.tasks.causal_lm import CausalLM
from linnet.train.loop import Trainer
from linnet.train.run import Outcome, resume_run, start_run

UPDATE, BATCH = Trainer._update, CausalLM.train_batch


def disturb(job: dict[str, Any]) -> None:
    """Prepare what goes wrong on one rank in this job: a signal, a NaN, or files that cannot grow."""
    rank, what, step = job.get("disturb", (None, "", 0))
    here = rank == launched_ranks().rank
    Trainer._update, CausalLM.train_batch = UPDATE, BATCH

    def signalled(trainer: Trainer) -> Any:
        if trainer.at.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return UPDATE(trainer)

    def spoiled(trainer: Trainer) -> Any:
        if trainer.at.step == step:
            with torch.no_grad():
                next(trainer.model.parameters()).fill_(float("nan"))
        return UPDATE(trainer)

    if here and what in ("signal", "nan"):
        Trainer._update = signalled if what == "signal" else spoiled
    size = step if here and what == "full" else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def do(job: dict[str, Any]) -> Outcome:
    """Start a run, or go on with the one in the folder."""
    ranks, screen = launched_ranks(), Screen(quiet=True, silent=True)
    if "config" not in job:
        return resume_run(job["folder"], screen)
    config = job["config"]
    for table, key, value in job.get("other", {}).get(str(ranks.rank), ()):
        config = {**config, table: {**config[table], key: value}}
    return start_run(parse_config(config), job["folder"], screen)


def main() -> None:
    """Do the jobs of the file."""
    ranks, path = launched_ranks(), Path(sys.argv[1])
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for job in json.loads(path.read_text()):
        disturb(job)
        try:
            done = do(job)
            ended = {"step": done.step, "signal": done.signal}
        except LinnetError as error:
            line, code = ranks.fail(str(error), error.exit_code)
            assert bool(line) == ranks.first, f"rank {ranks.rank} says {line!r}"
            ended = {"line": line, "code": code}
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        ranks.settled = ranks.updating = False
        ended.pop("line", None) if not ranks.first else None
        ends = [json.loads(text) for text in ranks.share(json.dumps(ended))]
        assert all({**end, "line": 0} == {**ends[0], "line": 0} for end in ends), ends
        if ranks.first:
            with path.with_suffix(".out").open("a") as out:
                out.write(json.dumps(ended) + "\n")
    ranks.leave()
    ranks.end(0)


main()
