"""Records of the Long Range Arena with numbers that are easy to check, for Tables 6 and 7 and Figure 1."""

import pytest

TRAIN = {"steps": 100, "batch": 4, "accumulate": 1, "pretrain_steps": 0, "lr": 1e-3}


def lra_record(row, task, accuracy, seed=0, **train):
    return {
        "row": row,
        "seed": seed,
        "command": "linnet reproduce transnormer-table6 --scale cpu",
        "scale": "cpu",
        "config": {"task": task, "pretrain": False, "train": {**TRAIN, **train}, "data": {"context": 9}},
        "environment": {"linnet": "1", "torch": "2"},
        "curve": [
            {"split": "train", "step": 50},
            *({"split": "valid", "step": step, "accuracy": accuracy * step / 100} for step in (50, 100)),
        ],
        "valid": {"accuracy": accuracy},
        "test": {"accuracy": accuracy, "loss": 1.0, "samples": 2500},
    }


@pytest.fixture
def record():
    """Makes a record of Table 6."""
    return lra_record


@pytest.fixture
def scores():
    return [
        lra_record("T2", "lra/text", 0.5),
        lra_record("T2", "lra/text", 0.6, seed=1),
        lra_record("T2", "lra/listops", 0.4),
        lra_record("vanilla", "lra/text", 0.3),
        lra_record("vanilla", "lra/listops", 0.2),
    ]


@pytest.fixture
def speeds():
    environment = {"linnet": "1", "torch": "2", "machine": "m", "cores": 2, "threads": 1}

    def at(tokens, train):
        rows = [
            {"row": "vanilla", "training": 1.0, "inference": 2.0, "memory": 4_000_000},
            {"row": "T2", "training": train, "inference": 2 * train, "memory": 1_000_000},
        ]
        about = {"batch": 4, "others": 0.25, "environment": environment}
        return {"tokens": tokens, "rows": rows, **about, "command": "linnet reproduce transnormer-table7"}

    return [at(2048, 5.0), at(1024, 3.0)]
