"""A batch in groups of like lengths: the same loss, gradients and counts, with less padding."""

import json

import numpy as np
import pytest
import torch

from linnet.models.backbone import Model
from linnet.models.presets import model_config
from linnet.registry import TASK
from linnet.tasks.lra.lengths import by_length
from linnet.train.log import Screen
from linnet.train.run import start_run


@pytest.mark.parametrize("name", ["listops", "text", "retrieval"])
@pytest.mark.parametrize("objective", ["classify", "denoise"])
@pytest.mark.parametrize("rules", ["lra", "skyformer"])
def test_groups_change_nothing(config, name, objective, rules):
    found = []
    for groups in (1, 3, 50):  # more than there are samples, too
        task = TASK[f"lra/{name}"](config(name, groups=groups, objective=objective, rules=rules))
        torch.manual_seed(0)
        model = Model(model_config({**task.model_fields(), **task.config.model})).eval()
        batch = task.batch("train", np.arange(7), np.zeros(7, np.int64))
        loss, terms = task.loss(model, batch)
        loss.backward()
        slopes = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        with torch.no_grad():
            sums = task.measure(model, batch)
        found.append((float(loss.detach()), terms, slopes, sums))
    for loss, terms, slopes, sums in found[1:]:
        assert loss == pytest.approx(found[0][0], rel=1e-5)
        assert sums["loss"] == pytest.approx(loss, rel=1e-5)
        assert terms == found[0][1] == sums["terms"]
        torch.testing.assert_close(slopes, found[0][2], rtol=1e-4, atol=1e-4 * float(slopes.abs().max()))
        if objective == "classify":
            assert (sums["confusion"] == found[0][3]["confusion"]).all()


def test_groups_are_of_like_lengths():
    ends = [3, 9, 1, 5, 5, 2]
    real = torch.arange(9) < torch.tensor(ends)[:, None]
    ids = torch.arange(54).view(6, 9) * real
    groups = by_length({"ids": ids, "key_mask": real, "labels": torch.arange(6)}, 3)
    assert [group["labels"].tolist() for group in groups] == [[2, 5], [0, 3], [4, 1]]
    assert [group["ids"].shape for group in groups] == [(2, 2), (2, 5), (2, 9)]
    for group in groups:
        for row, label in enumerate(group["labels"]):
            assert group["ids"][row, : ends[label]].equal(ids[label, : ends[label]])
    whole = by_length({"ids": ids[:, :1], "labels": torch.arange(6)}, 3)
    assert len(whole) == 1  # nothing is padding


def test_the_log_counts_real_tokens(config, tmp_path):
    settings = config("listops", {"steps": 1}, groups=2)
    start_run(settings, tmp_path / "run", Screen(quiet=True))
    task = TASK["lra/listops"](settings)
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    tokens = [record["tokens"] for record in records if record["split"] == "train"]
    assert tokens == [int(task.train_batch(0)["key_mask"].sum())]
