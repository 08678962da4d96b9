"""Predicting the next token: the batches, the loss and the metrics."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from linnet.config import parse_config
from linnet.errors import InputError
from linnet.models.presets import preset
from linnet.registry import TASK
from linnet.tasks.text import fitting_text_vocabulary, make_text_tokenizer


class Guess(nn.Module):
    """A model that gives every token the same logits: those of `table`."""

    def __init__(self, table: torch.Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table.expand(*ids.shape, -1)


@pytest.fixture
def task(config):
    return TASK["causal_lm"](config("causal_lm"))


def test_each_token_is_predicted_from_those_before_it(task):
    ids, targets = (task.batch("train", np.arange(4), np.zeros(4, np.int64))[name] for name in ("ids", "targets"))
    stream = torch.from_numpy(task.streams["train"].tokens[: 4 * 16].astype(np.int64))
    assert torch.equal(targets.flatten(), stream)
    assert torch.equal(ids.flatten()[1:], stream[:-1])


def test_batches_go_through_every_sample_once_an_epoch(task):
    count = task.count("train")
    assert count % 3  # so that a batch crosses the end of an epoch
    batches = [task.train_batch(number)["targets"] for number in range(count)]
    rows = torch.cat(batches).tolist()
    everything = sorted(task.batch("train", np.arange(count), np.zeros(count, np.int64))["targets"].tolist())
    for epoch in range(3):
        assert sorted(rows[epoch * count : (epoch + 1) * count]) == everything
    assert rows[:count] != rows[count : 2 * count]
    assert torch.equal(task.train_batch(7)["targets"], batches[7])


def test_uniform_guesses_have_the_perplexity_of_the_vocabulary(task):
    model = Guess(torch.zeros(task.tokenizer.vocab_size))
    metrics = task.evaluate(model, "test")
    stream = task.streams["test"]
    nats = len(stream.tokens) * math.log(task.tokenizer.vocab_size)
    assert metrics["tokens"] == len(stream.tokens)
    assert metrics["perplexity"] == pytest.approx(task.tokenizer.vocab_size, rel=1e-5)
    assert metrics["word_perplexity"] == pytest.approx(math.exp(nats / stream.words), rel=1e-4)
    assert metrics["bits_per_byte"] == pytest.approx(nats / math.log(2) / stream.bytes, rel=1e-5)
    assert (metrics["context"], metrics["words"]) == (16, stream.words)
    assert model.training


def test_a_diverged_model_has_an_infinite_perplexity(task):
    tokens = len(task.streams["test"].tokens)
    assert task.metrics("test", {"loss": 709.0 * tokens, "terms": tokens})["perplexity"] == math.exp(709)
    metrics = task.metrics("test", {"loss": 710.0 * tokens, "terms": tokens})
    assert (metrics["loss"], metrics["perplexity"], metrics["word_perplexity"]) == (710, math.inf, math.inf)


def test_a_part_of_a_split_has_no_metric_by_word(task):
    metrics = task.evaluate(Guess(torch.zeros(261)), "train", batches=1)
    assert metrics["tokens"] == 3 * 16
    assert "word_perplexity" not in metrics


def test_an_evaluation_can_be_stopped(task):
    asked = []

    def stop() -> bool:
        asked.append(1)
        return len(asked) == 2

    assert task.evaluate(Guess(torch.zeros(261)), "test", stop=stop) is None


def test_an_unknown_split_offers_the_nearest(task):
    with pytest.raises(InputError, match="did you mean 'valid'"):
        task.evaluate(Guess(torch.zeros(261)), "validation")


@pytest.mark.parametrize(
    ("name", "overrides", "line"),
    [
        ("vanilla_roberta_small", {}, "model.output is 'masked_lm'"),
        ("vanilla_lm_small", {"vocab_size": 200}, "model.vocab_size is 200: the data have 261"),
        ("vanilla_lm_small", {"positions": "learned", "max_length": 8}, "model.max_length is 8: data.context is 16"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(task, name, overrides, line):
    with pytest.raises(InputError, match=line):
        task.check_model(preset(name, **overrides))


@pytest.mark.parametrize("kind", ["word", "bpe", "bytes"])
def test_the_tokenizer_of_the_run_is_used_again(config, kind, tmp_path):
    first = TASK["causal_lm"](config("causal_lm", tokenizer=kind))
    first.save(tmp_path)
    again = TASK["causal_lm"](config("causal_lm", tokenizer=kind), folder=tmp_path)
    assert again.fingerprint() == first.fingerprint()
    assert set(first.fingerprint()) == {"train", "valid", "test", "tokenizer"}


def test_the_size_of_a_bpe_follows_the_text(config):
    assert [fitting_text_vocabulary(10**n) for n in (0, 5, 6, 7, 8, 12)] == [512, 512, 2048, 8192, 16_384, 16_384]
    task = TASK["causal_lm"](config("causal_lm", tokenizer="bpe"))
    assert 300 < task.tokenizer.vocab_size <= 512
    data = config("causal_lm", tokenizer="bpe", vocab_size=300).data
    assert make_text_tokenizer(data, task.corpus, False).vocab_size == 300


def test_too_little_text_is_one_line(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    data = {"corpus": "text", "path": str(tmp_path / "a.txt"), "tokenizer": "bytes", "context": 2}
    with pytest.raises(InputError, match="split"):
        TASK["causal_lm"](parse_config({"data": data | {"cache": str(tmp_path)}}))
