"""Record and compare what the bits of a run depend on besides its configuration: versions, machine and data."""

import json
import os
import platform
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from linnet import __version__
from linnet.config import RunConfig, short_config_value
from linnet.data.corpora import SPLITS
from linnet.distributed.ranks import Ranks
from linnet.errors import InputError
from linnet.ops.backend import no_cpu_backend, no_triton_backend, requested_backend
from linnet.ops.cpu.build import built_cpu_kernels
from linnet.screen import Screen
from linnet.tasks.base import Task
from linnet.train.check import settings_to_check
from linnet.train.device import pick_device
from linnet.train.log import tensorboard_log


def check_environment(config: RunConfig) -> None:
    """Raise if the configuration needs something this machine lacks."""
    pick_device(config.train)
    if config.train.tensorboard:
        tensorboard_log()


def environment_versions() -> dict[str, str]:
    """The versions and the machine, which can change the last bits of a result."""
    return {
        "linnet": __version__,
        "torch": torch.__version__,
        "machine": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
    }


def describe_environment(config: RunConfig, task: Task, data: Mapping[str, str]) -> dict[str, Any]:
    """The content of environment.json: where a run was started, and on which data; `data` holds their hashes."""
    return {
        **environment_versions(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": str(pick_device(config.train)),
        "data": data,
        "samples": {split: task.count(split) for split in SPLITS},
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def environment_state(config: RunConfig, data: Mapping[str, str]) -> dict[str, Any]:
    """What a checkpoint stores besides weights and position, for `resume` to compare."""
    return {
        "versions": environment_versions(),
        "threads": torch.get_num_threads(),
        "device": pick_device(config.train).type,
        **_backend(pick_device(config.train).type),
        "data": data,
        "settings": settings_to_check(config),
    }


def compare_ranks(ranks: Ranks, config: RunConfig, data: Mapping[str, str]) -> None:
    """Raise on every rank if one has another configuration, other data or another version than rank 0."""
    tables = config.model_dump(mode="json", exclude={"data": set(config.data.paths())})
    own = {f"{section}.{key}": value for section in ("data", "train") for key, value in tables.pop(section).items()}
    own |= tables | {f"the data ({split})": digest for split, digest in data.items()}
    own |= {name: version for name, version in environment_versions().items() if name != "machine"}
    first, *others = map(json.loads, ranks.share(json.dumps(own)))
    for rank, other in enumerate(others, 1):
        for key in sorted({*first, *other}):
            if first.get(key) != other.get(key):
                ranks.settled = True
                values = f"{short_config_value(other.get(key))}, on rank 0 {short_config_value(first.get(key))}"
                raise InputError(f"the ranks differ: on rank {rank}, {key} is {values}")


def _backend(device: str) -> dict[str, str | None]:
    """The backend that the ops use on this device, and the SHA-256 of the compiled kernels if they are used."""
    name = requested_backend()[0]
    if name is None and device == "cuda":
        name = "torch" if no_triton_backend(device) else "triton"
    elif name is None:
        name = "torch" if no_cpu_backend() else "cpu"
    return {"backend": name, "kernels": built_cpu_kernels().digest if name == "cpu" else None}


def compare_environment(before: Mapping[str, Any], now: Mapping[str, Any], screen: Screen) -> None:
    """Warn if the bits of a resumed run may differ."""
    then = before.get("versions") or {}
    differing = [f"{k} {then.get(k)} then, {v} now" for k, v in now["versions"].items() if then.get(k) != v]
    recorded = [k for k in ("threads", "device", "backend") if k != "backend" or k in before]  # 0.1 had no backend
    differing += [f"{k} {before.get(k)} then, {now[k]} now" for k in recorded if before.get(k) != now[k]]
    if before.get("backend") == now["backend"] and before.get("kernels") != now["kernels"]:
        differing.append("the kernels have been compiled differently")
    if differing:
        screen.warn(f"the last bits may differ from an uninterrupted run: {'; '.join(differing)}")
