"""Small real data of each task of the Long Range Arena, and the configuration of a tiny run on it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from linnet.config import RunConfig, parse_config
from linnet.data.lra.pathfinder_files import write_pathfinder_files

TASKS = ("listops", "text", "image", "pathfinder", "retrieval")
CONTEXT = {"listops": 2000, "text": 64, "image": 1024, "pathfinder": 1024, "retrieval": 64}


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("lra-cache")


@pytest.fixture(scope="session")
def places(tmp_path_factory) -> dict[str, Path | None]:
    """The path of each task's data; ListOps is generated."""
    root = tmp_path_factory.mktemp("lra")
    for split in ("train", "test"):
        for kind, word in (("pos", "good"), ("neg", "bad")):
            (root / "text" / split / kind).mkdir(parents=True)
            for i in range(8):
                (root / "text" / split / kind / f"{i}.txt").write_text(f"a {word} film " * (1 + i))
    (root / "image").mkdir()
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (40, 1024), dtype=np.uint8), np.arange(40) % 10
    x[:, :100] = 0
    np.savez(root / "image" / "cifar10_gray.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    write_pathfinder_files(root / "pathfinder", 30, 0, 1)
    (root / "retrieval").mkdir()
    pairs = "".join(f"{i % 2}.0\ta\tb\tpaper {i}\tother paper {i % 2} {'x' * i}\n" for i in range(20))
    for name in ("train", "eval", "test"):
        (root / "retrieval" / f"new_aan_pairs.{name}.tsv").write_text(pairs)
    return {**{name: root / name for name in TASKS}, "listops": None}


@pytest.fixture
def config(places, cache) -> Callable[..., RunConfig]:
    """`config("text", rules="skyformer")`: a run on that task; `train`, `pretrain` and `seed` may be given too."""

    def make(task: str, train: dict | None = None, pretrain: bool = False, seed: int = 0, **data: object) -> RunConfig:
        path = {"path": str(places[task])} if places[task] is not None else {"count": 60}
        usual = {"steps": 6, "batch": 4, "lr": 1e-2, "schedule": "constant", "threads": 1}
        every = {"eval_every": 3, "eval_batches": 2, "save_every": 2, "log_every": 2}
        return parse_config(
            {
                "task": f"lra/{task}",
                "seed": seed,
                "pretrain": pretrain,
                "data": {"context": CONTEXT[task], "cache": str(cache), **path, **data},
                "model": {"preset": "transnormer_t2_lra_small"},
                "train": {**usual, **every, **(train or {})},
            }
        )

    return make
