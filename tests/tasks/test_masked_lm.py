"""Predicting masked tokens: dynamic masks in training, fixed ones in evaluation, loss on masked tokens only."""

import math

import numpy as np
import pytest
import torch

from linnet.models.presets import create_model
from linnet.registry import TASK


@pytest.fixture
def task(config):
    return TASK["masked_lm"](config("masked_lm"))


def test_a_batch_is_the_text_with_gaps(task):
    samples = np.arange(30)
    batch = task.batch("train", samples, np.zeros_like(samples))
    text = torch.from_numpy(task.blocks["train"].tokens(samples)[0])
    ids, select = batch["ids"], batch["select"]
    untouched = torch.ones(text.numel(), dtype=torch.bool)
    untouched[select] = False
    assert torch.equal(ids.flatten()[untouched], text.flatten()[untouched])
    assert torch.equal(batch["targets"], text.flatten()[select])
    assert len(select) / text.numel() == pytest.approx(0.15, abs=0.03)
    masked = (ids.flatten()[select] == task.tokenizer.mask).float().mean()
    assert masked == pytest.approx(0.8, abs=0.12)
    assert "key_mask" not in batch


def test_a_recipe_chooses_the_share_of_masked_tokens(config):
    usual = config("masked_lm")
    more = usual.model_copy(update={"data": usual.data.model_copy(update={"mask_rate": 0.4})})
    samples = np.arange(30)
    batch = TASK["masked_lm"](more).batch("train", samples, np.zeros_like(samples))
    assert len(batch["select"]) / batch["ids"].numel() == pytest.approx(0.4, abs=0.03)


def test_masks_change_with_the_epoch_and_are_a_function_of_it(task):
    samples = np.array([4, 2])
    first, again, other = (task.batch("train", samples, np.array([e, e])) for e in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["ids"], other["ids"])
    alone = task.batch("train", samples[1:], np.array([0]))
    assert torch.equal(alone["ids"][0], first["ids"][1])


def test_evaluation_is_the_same_each_time_and_counts_masked_tokens(task):
    model = create_model(
        "vanilla_roberta_small", vocab_size=261, layers=["softmax"], width=16, heads=2, ffn_width=16, dropout=0.5
    )
    first, again = task.evaluate(model, "valid"), task.evaluate(model, "valid")
    assert first == again
    assert first["perplexity"] == pytest.approx(math.exp(first["loss"]))
    assert first["tokens"] / len(task.streams["valid"].tokens) == pytest.approx(0.15, abs=0.05)
    assert model.training


def test_padding_of_the_last_block_is_masked_and_never_guessed(task):
    last = task.count("test") - 1
    assert len(task.streams["test"].tokens) % 16  # the last block is padded
    batch = task.batch("test", np.array([last]), np.array([0]))
    real = batch["key_mask"].flatten()
    assert int(real.sum()) == len(task.streams["test"].tokens) % 16
    assert bool(real[batch["select"]].all())


def test_words_get_a_mask(config):
    task = TASK["masked_lm"](config("masked_lm", tokenizer="word"))
    assert task.tokenizer.mask == task.tokenizer.vocab_size - 1
