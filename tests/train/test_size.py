"""The planned size of a run: updates, samples and tokens, with those of its pretraining."""

import pytest

from linnet.config import load_recipe_config
from linnet.train.size import size_in_samples, size_in_tokens, size_in_updates

SETS = ("data.context=100", "train.steps=10", "train.warmup=1", "train.batch=4", "train.accumulate=3")


@pytest.mark.parametrize(
    ("recipe", "more", "updates", "tokens"),
    [
        ("lra/text", (), 10, 12_000),
        ("lra/text", ("pretrain=true",), 20, 24_000),
        ("lra/text", ("pretrain=true", "train.pretrain_steps=5"), 15, 18_000),
        ("lra/retrieval_small", (), 10, 24_000),  # a sample is two documents
        ("lra/retrieval_small", ("data.objective=denoise",), 10, 12_000),  # one document is denoised at a time
        ("lra/retrieval_small", ("pretrain=true",), 20, 36_000),
    ],
)
def test_updates_samples_and_tokens(recipe, more, updates, tokens):
    config = load_recipe_config(recipe, (*SETS, *more))
    assert size_in_updates(config) == updates
    assert size_in_samples(config) == updates * 12
    assert size_in_tokens(config) == tokens
