"""Shared by the storage tests: a small checkpoint, system calls that fail, and children that are killed."""

import errno
import itertools
import os
import signal

import pytest
import torch

from linnet.storage.checkpoint import FILES, MANIFEST, save_checkpoint

# Every call by which a writer can change the disk; `open` and `rename` of pathlib end in these too.
SYSTEM_CALLS = ("open", "write", "fsync", "close", "mkdir", "rename", "replace")


def save(folder, step, value=None):
    value = float(step) if value is None else value
    weight = torch.full((5, 3), value)
    model = {"embed": weight, "head": weight, "half": torch.arange(4, dtype=torch.bfloat16)}
    optimizer = {"embed.exp_avg": weight * 2, "step": torch.tensor(step), "empty": torch.zeros(0)}
    return save_checkpoint(folder, step, model, optimizer, {"step": step, "lr": 0.1, "seen": [1, None, "x"]})


def value(checkpoint):
    """The number that `save` put in, from a checkpoint whose parts agree with each other."""
    assert torch.equal(checkpoint.optimizer["embed.exp_avg"], checkpoint.model["embed"] * 2)
    assert checkpoint.state["step"] == checkpoint.step == int(checkpoint.optimizer["step"])
    return checkpoint.model["embed"][0, 0].item()


def no_warning(message):
    raise AssertionError(message)


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def temporaries(folder):
    return [path.name for path in folder.iterdir() if path.name.startswith(".linnet-")]


def in_child(function):
    """Run `function` in a forked child, for a minute at most; returns its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(60)
            function()
        finally:
            os._exit(0)
    return pid


def fail_at(monkeypatch, call, failure):
    """Replace the system calls so that the `call`-th one (from 0) does `failure()`; returns the counter."""
    count = itertools.count()

    def wrap(original):
        def wrapped(*args, **kwargs):
            if next(count) == call:
                failure()
            return original(*args, **kwargs)

        return wrapped

    for name in SYSTEM_CALLS:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))
    return count


def calls_of(action):
    """How many system calls `action` makes."""
    with pytest.MonkeyPatch.context() as patch:
        count = fail_at(patch, -1, lambda: None)
        action()
    return next(count)


def places(rng, count):
    """Random (file, byte) places in a checkpoint, each file among them equally often."""
    return ((name, rng.random()) for name in itertools.islice(itertools.cycle([*FILES, MANIFEST]), count))


def no_space():
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupt():
    raise KeyboardInterrupt


def kill():
    os.kill(os.getpid(), signal.SIGKILL)
