"""Every recipe builds; those of the papers have the papers' settings."""

import pytest

from linnet.config import load_recipe, recipe_names
from linnet.train.log import Screen
from linnet.train.run import dry_run

TEXT = "A line of real words , with a comma .\n\nAnother line : it says 17 things .\n" * 60


@pytest.fixture
def data(tmp_path):
    """A folder of WikiText's layout, and a text file."""
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text(TEXT)
    (tmp_path / "my.txt").write_text(TEXT)
    return tmp_path


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_builds(name, data, data_dir, tmp_path):
    config = load_recipe(name)
    if getattr(config.data, "tokenizer", None) == "gpt2":
        data_dir("gpt2-bpe")
    path = {"wikitext": str(data), "text": str(data / "my.txt")}.get(getattr(config.data, "corpus", "none"))
    sets = [f"data.path={path}"] if path else []
    plan = dry_run(load_recipe(name, sets), Screen(quiet=True))
    assert plan["parameters"] > 0
    assert plan["tokens"] > 0
    assert min(plan["samples"].values()) > 0


def test_the_causal_model_of_transnormer_is_that_of_table_13():
    config = load_recipe("transnormer_lm")
    train = config.train
    assert train.batch * train.accumulate * config.data.context == 65_536
    assert (train.steps, train.warmup, train.lr, train.warmup_lr) == (100_000, 8000, 5e-4, 1e-7)
    assert (train.schedule, train.betas, train.eps) == ("inverse_sqrt", (0.9, 0.98), 1e-8)
    assert (train.weight_decay, train.clip, train.precision) == (0.01, 0.0, "float32")
    assert (config.data.tokenizer, config.data.vocab_size) == ("word", None)


def test_the_masked_model_of_transnormer_is_that_of_table_13():
    config = load_recipe("transnormer_roberta")
    train = config.train
    assert (train.batch * train.accumulate, config.data.context) == (512, 512)
    assert (train.steps, train.warmup, train.lr) == (50_000, 3000, 5e-4)
    assert (train.schedule, train.power, train.min_lr) == ("polynomial", 1.0, 0.0)
    assert (train.betas, train.eps, train.weight_decay, train.clip) == ((0.9, 0.98), 1e-6, 0.01, 0.0)
    assert config.data.tokenizer == "gpt2"


def test_the_smoke_run_is_what_it_is_said_to_be():
    train = load_recipe("smoke").train
    assert (train.steps, train.save_every) == (60, 5)
