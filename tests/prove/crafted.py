"""Promise 4b: checkpoints that were changed after linnet wrote them, with right hashes."""

import contextlib
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

from linnet.models.loading import load_model
from linnet.storage import checkpoint_steps, read_checkpoint
from linnet.storage.verify import verify_folder
from linnet.train.run import resume_run, start_run
from tests.prove.crafting import (
    PLACE,
    STEP,
    header_changes,
    json_changes,
    kind_changes,
    manifest_changes,
    state_changes,
    tensor_changes,
)
from tests.prove.promise import Trials, promise
from tests.prove.runs import QUIET, last_bytes, small_run
from tests.train.test_run import Listening


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise in the block if it takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@promise(
    "4b",
    "A checkpoint with content that linnet did not write is refused in one line, even if its hashes are right.",
    "Types, shapes, names and numbers of weights and moments, values of the state, of the position, the settings and "
    "the metrics, ties, headers and manifests, repeated keys, huge and broken JSON, and pipes, devices, links, folders "
    "and holes as files; each is resumed and verified. What resumes ends with the usual bytes, or was warned about.",
)
def crafted_checkpoints_are_refused(trials: Trials) -> None:
    """Each change of one finished run that has two more steps to do."""
    folder = trials.folder
    every = {"steps": STEP, "save_every": STEP, "eval_every": 2, "accumulate": 1, "log_every": 2}
    start_run(small_run(folder, **every), folder / "begun", QUIET)
    config = folder / "begun/config.toml"
    config.write_text(config.read_text().replace(f"\nsteps = {STEP}\n", f"\nsteps = {STEP + 2}\n"))
    usual = shutil.copytree(folder / "begun", folder / "usual")
    resume_run(usual, QUIET)
    old = read_checkpoint(folder / "begun" / PLACE)
    for step in checkpoint_steps(folder / "begun/checkpoints")[:-1]:
        shutil.rmtree(folder / f"begun/checkpoints/step-{step}")
    size = (folder / "begun/metrics.jsonl").stat().st_size
    changes = [*tensor_changes(old.model, old.optimizer), *state_changes(old.state, size)]
    changes += [*json_changes(old.state), *manifest_changes(sorted(old.model)), *header_changes(), *kind_changes()]
    for what, change in changes[:: trials.number(1, 25)]:
        run = shutil.copytree(folder / "begun", folder / "run")
        change(run / PLACE)
        screen = Listening()

        def resume(run: Path = run, screen: Listening = screen) -> None:
            with _at_most(60):
                resume_run(run, screen)
                assert screen.warnings or last_bytes(run) == last_bytes(usual), "it resumes to other bytes"

        trials.one_line(resume, f"resume, {what}")
        shutil.rmtree(run)
        run = shutil.copytree(folder / "begun", folder / "run")
        change(run / PLACE)

        def verify(run: Path = run) -> None:
            with _at_most(60):
                verify_folder(run, load_model)

        trials.one_line(verify, f"verify, {what}")
        shutil.rmtree(run)
