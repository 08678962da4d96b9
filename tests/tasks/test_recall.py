"""The task recall: its batches, its loss and its metrics."""

import numpy as np
import pytest
import torch
from torch import nn

from linnet.config import parse_config
from linnet.errors import InputError
from linnet.models.presets import preset
from linnet.registry import TASK

DATA = {"context": 24, "vocab_size": 33, "pairs": [2, 6]}


def make(seed: int = 0, **train: int):
    return TASK["recall"](parse_config({"task": "recall", "seed": seed, "data": DATA, "train": {"batch": 5, **train}}))


class Oracle(nn.Module):
    """Reads the pairs and answers `right` of every ten queries correctly, the others with the blank."""

    def __init__(self, right: int) -> None:
        super().__init__()
        self.right, self.asked = right, 0

    def forward(self, ids: torch.Tensor, select: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(len(select), 33)
        for row, place in enumerate(select.tolist()):
            sample, at = ids[place // ids.shape[1]].tolist(), place % ids.shape[1]
            value = sample[sample.index(sample[at]) + 1]
            logits[row, value if self.asked % 10 < self.right else 0] = 100.0
            self.asked += 1
        return logits


def test_a_batch_selects_the_questions():
    batch = make().batch("train", np.arange(40), np.zeros(40, np.int64))
    ids, select = batch["ids"], batch["select"]
    assert ids.shape == (40, 24)
    assert len(select) == len(batch["targets"]) == len(batch["pairs"])
    assert set(batch["pairs"].tolist()) == {2, 6}
    assert (ids.flatten()[select] <= 16).all()  # keys
    assert (batch["targets"] > 16).all()  # values


@pytest.mark.parametrize("right", [0, 3, 10])
def test_accuracy_is_the_share_of_right_answers(right):
    task = make()
    metrics = task.evaluate(Oracle(right), "test")
    assert metrics["accuracy"] == pytest.approx(right / 10, abs=1e-3)
    parts = [metrics[f"accuracy_{P}_pairs"] for P in (2, 6)]
    assert min(parts) <= metrics["accuracy"] <= max(parts)
    assert metrics["tokens"] == task.batch("test", np.arange(1000), np.zeros(1000, np.int64))["targets"].numel()
    assert (metrics["split"], metrics["context"]) == ("test", 24)
    assert metrics["loss"] == pytest.approx(10 * (10 - right), abs=0.1)


def test_only_answers_carry_loss():
    """The model's output for any other token does not matter."""
    task, model = make(), Oracle(10)
    batch = task.train_batch(0)
    loss, terms = task.loss(model, batch)
    assert terms == len(batch["select"]) < batch["ids"].numel()
    assert float(loss) == pytest.approx(0, abs=1e-3)


def test_training_reads_new_samples_for_any_length_of_run():
    short, long = make(steps=10), make(steps=1000)
    rows = [row.tobytes() for number in range(10) for row in short.train_batch(number)["ids"].numpy()]
    assert len(set(rows)) == 50
    assert all(torch.equal(short.train_batch(n)["ids"], long.train_batch(n)["ids"]) for n in range(10))
    assert short.count("train") == 50


def test_the_fingerprint_is_that_of_seed_and_data():
    assert make().fingerprint() == make().fingerprint()
    assert len({*make(0).fingerprint().values(), *make(1).fingerprint().values()}) == 6


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"vocab_size": 32}, "model.vocab_size is 32: the data have 33"),
        ({"positions": "learned", "max_length": 23}, "model.max_length is 23: data.context is 24"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(overrides, line):
    with pytest.raises(InputError, match=line):
        make().check_model(preset("vanilla_lm_small", **overrides))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"pairs": [9]}, r"data\.pairs is \[9\]: 9 pairs with one query each need data\.context = 27, but it is 24"),
        ({"vocab_size": 12}, r"is \[2, 6\]: 6 keys and 6 values need data\.vocab_size = 13, but it is 12"),
        ({"pairs": [6, 2]}, r"data\.pairs is \[6, 2\]: the numbers must increase"),
        ({"pairs": [2, 2]}, "the numbers must increase"),
        ({"pairs": []}, r"data\.pairs is \[\]: it must be a list such as \[4, 8, 16, 32\]"),
        ({"pairs": 4}, r"data\.pairs is 4: it must be a list"),
        ({"pairs": [0]}, r"data\.pairs\.0 is 0"),
        ({"context": 2}, r"data\.context is 2"),
        ({"corpus": "text"}, "unknown key of data 'corpus': one of context, pairs, vocab_size"),
    ],
)
def test_bad_data_are_one_line(data, line):
    with pytest.raises(InputError, match=line) as error:
        parse_config({"task": "recall", "data": {**DATA, **data}})
    assert "\n" not in str(error.value)


def test_text_has_no_pairs():
    with pytest.raises(InputError, match="unknown key of data 'pairs'"):
        parse_config({"task": "causal_lm", "data": {"pairs": [4]}})
