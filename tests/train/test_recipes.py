"""Every recipe builds; those of the papers have the papers' settings."""

from math import prod

import pytest

from linnet.config import config_recipe_names, load_recipe_config
from linnet.data.tokenizer import Tokenizer
from linnet.models.loading import export_model
from linnet.models.presets import create_model
from linnet.screen import Screen
from linnet.tasks.lra import listops, pathfinder
from linnet.train.dry_run import dry_run

TEXT = "A line of real words , with a comma .\n\nAnother line : it says 17 things .\n" * 60


LRA = {  # what a recipe of LRA needs here besides its own data
    "lra/listops": ["data.count=20"],
    "lra/pathfinder": ["data.count=10"],
}


PICTURES = {"cifar10": "cifar-10-batches-bin", "dogs_vs_cats": "dogs-vs-cats-64"}  # what a recipe needs


def _pictures(folder):
    """A folder of two classes of images."""
    image = pytest.importorskip("PIL.Image", reason="needs Pillow")
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for i in range(10):
            image.new("RGB", (8, 8), (i, 0, 0)).save(folder / name / f"{i}.png")
    return str(folder)


@pytest.fixture
def data(tmp_path):
    """A folder of WikiText's layout, and a text file."""
    for split in ("train", "valid", "test"):
        (tmp_path / f"wiki.{split}.tokens").write_text(TEXT)
    (tmp_path / "my.txt").write_text(TEXT)
    return tmp_path


def _encoder(folder):
    """An exported masked model that reads bytes."""
    Tokenizer("bytes").save(folder / "tokenizer.json")
    model = create_model("transnormer_t2_roberta_small", vocab_size=Tokenizer("bytes").vocab_size)
    return export_model(model, folder / "encoder", folder / "tokenizer.json")


@pytest.mark.parametrize("name", config_recipe_names())
def test_every_recipe_builds(name, data, data_dir, tmp_path):
    config = load_recipe_config(name)
    if getattr(config.data, "tokenizer", None) == "gpt2":
        data_dir("gpt2-bpe")
    if name == "lra/retrieval":
        for split in ("train", "eval", "test"):
            (data / f"new_aan_pairs.{split}.tsv").write_text("1\ta\tb\tone text\tanother\n")
    elif name.startswith("lra/") and name not in LRA:
        data_dir({"text": "imdb", "image": "cifar10-gray", "retrieval_small": "aan-small"}[name[4:]])
    path = {"wikitext": str(data), "text": str(data / "my.txt"), "shards": str(data / "my.txt")}.get(
        getattr(config.data, "corpus", "none")
    )
    path = str(data) if name == "lra/retrieval" else path
    if getattr(config.data, "corpus", None) == "enwik8":
        data_dir("enwik8")
    if name in PICTURES:
        data_dir(PICTURES[name])
    if getattr(config.data, "source", None) == "folder":
        path = _pictures(tmp_path / "pictures")
    sets = [*([f"data.path={path}"] if path else []), *LRA.get(name, [])]
    if name == "finetune":
        data_dir("glue/RTE")
        sets.append(f"data.encoder={_encoder(tmp_path)}")
    plan = dry_run(load_recipe_config(name, sets), Screen(quiet=True))
    assert plan["parameters"] > 0
    assert plan["tokens"] > 0
    assert min(plan["samples"].values()) > 0
    mesh = {} if config.distributed is None else config.distributed.mesh
    assert plan["memory"]["ranks"] == prod(mesh.values())
    assert min(plan["memory"][name] for name in ("parameters", "gradients", "optimizer", "activations")) > 0


def test_the_causal_model_of_transnormer_is_that_of_table_13():
    config = load_recipe_config("transnormer_lm")
    train = config.train
    assert train.batch * train.accumulate * config.data.context == 65_536
    assert (train.steps, train.warmup, train.lr, train.warmup_lr) == (100_000, 8000, 5e-4, 1e-7)
    assert (train.schedule, train.betas, train.eps) == ("inverse_sqrt", (0.9, 0.98), 1e-8)
    assert (train.weight_decay, train.clip, train.precision) == (0.01, 0.0, "float32")
    assert (config.data.tokenizer, config.data.vocab_size) == ("word", None)


def test_the_masked_model_of_transnormer_is_that_of_table_13():
    config = load_recipe_config("transnormer_roberta")
    train = config.train
    assert (train.batch * train.accumulate, config.data.context) == (512, 512)
    assert (train.steps, train.warmup, train.lr) == (50_000, 3000, 5e-4)
    assert (train.schedule, train.power, train.min_lr) == ("polynomial", 1.0, 0.0)
    assert (train.betas, train.eps, train.weight_decay, train.clip) == ((0.9, 0.98), 1e-6, 0.01, 0.0)
    assert config.data.tokenizer == "gpt2"


def test_the_smoke_recipe_matches_its_description():
    train = load_recipe_config("smoke").train
    assert (train.steps, train.save_every) == (60, 5)


@pytest.mark.parametrize(
    ("name", "context", "batch", "lr", "warmup"),
    [
        ("text", 4000, 32, 1e-4, 80),
        ("listops", 2000, 32, 1e-4, 1000),
        ("retrieval", 4000, 16, 2e-4, 800),
        ("pathfinder", 1024, 128, 2e-4, 312),
        ("image", 1024, 256, 1e-4, 175),
    ],
)
def test_lra_is_set_up_as_in_the_paper(name, context, batch, lr, warmup):
    config = load_recipe_config(f"lra/{name}")
    train = config.train
    assert (config.task, config.data.context, config.data.rules) == (f"lra/{name}", context, "lra")
    assert (train.steps, train.batch, train.lr, train.warmup) == (50_000, batch, lr, warmup)
    assert train.schedule == "one_cycle"
    assert (train.warmup_lr, train.min_lr) == (pytest.approx(lr / 25), pytest.approx(lr / 25e4))
    assert (train.betas, train.peak_beta1, train.eps) == ((0.95, 0.999), 0.85, 1e-6)
    assert (train.weight_decay, train.clip, train.clip_value) == (0.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("name", "sets", "samples"),
    [
        ("lra/listops", [], (96_000, 2000, 2000)),
        ("lra/pathfinder", [], (160_000, 20_000, 20_000)),
        ("lra/pathfinder", ["data.count=5"], (3, 1, 1)),
    ],
)
def test_a_dry_run_generates_only_a_few_samples(monkeypatch, name, sets, samples):
    for module, maker in ((listops, "generate_listops"), (pathfinder, "write_pathfinder_files")):
        make = getattr(module, maker)
        monkeypatch.setattr(module, maker, lambda *given, make=make, **more: _few(given) and make(*given, **more))
    plan = dry_run(load_recipe_config(name, sets), Screen(quiet=True))
    assert tuple(plan["samples"].values()) == samples
    assert plan["config"]["data"].get("count") == (5 if sets else None)
    assert "path" not in plan["config"]["data"]


def _few(given: tuple[object, ...]) -> bool:
    assert max(number for number in given if isinstance(number, int)) <= 10
    return True
