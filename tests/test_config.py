"""Recipes: defaults, overrides, a dump that round-trips, and one-line errors."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from linnet.cli.app import run_app
from linnet.config import (
    TrainConfig,
    config_recipe_names,
    config_recipe_path,
    dump_config,
    load_recipe_config,
    parse_config,
)
from linnet.errors import InputError
from linnet.models.presets import list_models, preset_config
from linnet.tasks.lra.base import LraData
from linnet.tasks.recall import RecallData
from linnet.tasks.text import TextData
from linnet.train.check import check_config

RECIPES = Path(__file__).parent.parent / "recipes"


def test_default_then_recipe_then_set(tmp_path):
    recipe = tmp_path / "my.toml"
    recipe.write_text("seed = 3\n[train]\nsteps = 7\nbatch = 2\n")
    config = load_recipe_config(recipe, ["train.batch=5", "data.path=my text.txt", 'model.layers=["diag", "norm"]'])
    assert (config.task, config.seed) == ("causal_lm", 3)
    assert (config.train.steps, config.train.batch, config.train.lr) == (7, 5, 1e-3)
    assert config.data.path == "my text.txt"
    assert config.model == {"layers": ["diag", "norm"]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("data.path=2 files", "2 files"),
        ('data.path="7"', "7"),
        ("data.path=2024", "2024"),
        ("data.path=2024-01-01", "2024-01-01"),
        ("data.path=true", "true"),
        ("data.path=a=b", "a=b"),
        ("data.path=x\ny = 3", "x\ny = 3"),
        ("data.path=1\ny = 3", "1\ny = 3"),
    ],
)
def test_a_value_that_is_not_toml_is_a_string(text, value):
    assert load_recipe_config("smoke", [text]).data.path == value


def test_every_path_is_taken_literally():
    data = load_recipe_config(
        "smoke", ["data.path=1", "data.tokenizer_path=[2]", "data.cache=3.0", "data.context=64"]
    ).data
    assert (data.path, data.tokenizer_path, data.cache, data.context) == ("1", "[2]", "3.0", 64)


def test_another_preset_brings_its_own_layers_and_options(tmp_path):
    recipe = tmp_path / "my.toml"
    model = '[model]\npreset = "transnormer_t1_lm_small"\nlayers = ["diag", "norm"]\nwidth = 8\n'
    recipe.write_text(f'{model}[model.options.norm]\nphi = "elu"\n')
    assert set(load_recipe_config(recipe, ["model.width=16"]).model) == {"preset", "layers", "width", "options"}
    other = ["model.preset=vanilla_lm_small"]
    assert load_recipe_config(recipe, other).model == {"preset": "vanilla_lm_small", "width": 8}
    for sets in (["model.layers=[]", *other], [*other, "model.layers=[]"]):  # what --set gives stays, in any order
        assert load_recipe_config(recipe, sets).model == {"preset": "vanilla_lm_small", "width": 8, "layers": []}


@pytest.mark.parametrize("preset", [name for name in list_models() if name.endswith("lm_small")])
def test_the_smoke_run_takes_every_causal_preset(preset):
    table = load_recipe_config("smoke", [f"model.preset={preset}"]).model
    assert preset_config(table).layers == preset_config({"preset": preset}).layers
    assert preset_config(table).width == 96


def test_recipes_by_name_and_by_path():
    assert "smoke" in config_recipe_names()
    assert config_recipe_names() == sorted(str(path.relative_to(RECIPES))[:-5] for path in RECIPES.rglob("*.toml"))
    assert (
        load_recipe_config("smoke")
        == load_recipe_config(config_recipe_path("smoke"))
        == load_recipe_config(str(RECIPES / "smoke.toml"))
    )


@pytest.mark.parametrize("name", config_recipe_names())
def test_a_dump_is_a_recipe_that_gives_the_same(name, tmp_path):
    data = load_recipe_config(name).data
    own = isinstance(data, TextData) and data.corpus != "stdlib"
    needed = {"finetune": ["data.encoder=x"], "lln_vit": ["data.path=x"]}.get(name, ["data.path=x"] if own else [])
    config = load_recipe_config(name, needed)
    check_config(config)
    (tmp_path / "config.toml").write_text(dump_config(config))
    assert load_recipe_config(tmp_path / "config.toml") == config


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[train]\nlr = \n", "line 2"),
        ("tsk = 'causal_lm'", "linnet: unknown key 'tsk': did you mean 'task'?"),
        ("[train]\nstep = 3", "'step': did you mean 'steps'?"),
        ("[data]\ncontxt = 3", "'contxt': did you mean 'context'?"),
        ("train = 3", "train is 3: it must be a table"),
        ("[train]\nepochs = 3", "unknown key of train 'epochs': did you mean 'train.steps'? "),
        ("[model]\npreset = 'vanilla_lm_small'\nattention = 'lln'", "did you mean 'model.layers'? "),
        ("steps = 3", "unknown key 'steps': did you mean 'train.steps'? "),
        ("width = 3", "unknown key 'width': did you mean 'model.width'? "),
        ("context = 3", "unknown key 'context': did you mean 'data.context'? "),
        ("epochs = 3", "unknown key 'epochs': did you mean 'train.steps'? "),
        ("[train]\nsteps = '10'", "train.steps is '10'"),
        ("[train]\nsteps = 10.0", "train.steps is 10.0"),
        ("[train]\nsteps = true", "train.steps is True"),
        ("[train]\nsteps = 0", "train.steps is 0"),
        ("[train]\nsteps = 1979-05-27", "train.steps is datetime.date"),
        ("[train]\nlr = nan", "train.lr is nan"),
        ("[train]\nlr = inf", "train.lr is inf"),
        ("[train]\nlr = -1e-3", "train.lr is -0.001"),
        ("[train]\nclip = inf", "train.clip is inf"),
        ("[train]\nbetas = [0.9]", "train.betas is [0.9]: it must be a list such as [0.9, 0.98]"),
        ("[train]\nbetas = [0.9, 0.9, 0.9]", "train.betas is [0.9, 0.9, 0.9]: it must be a list such as [0.9, 0.98]"),
        ("[train]\nbetas = 0.9", "train.betas is 0.9: it must be a list such as [0.9, 0.98]"),
        ("[train]\nbetas = [true, 0.9]", "train.betas.0 is True"),
        ("[train]\nbetas = [0.9, 1.0]", "train.betas.1 is 1.0"),
        ("[train]\nbetas = [0.9, 'x']", "train.betas.1 is 'x'"),
        ("[train]\nschedule = 'linear'", "'cosine'"),
        ("[train]\nsteps = 5\nwarmup = 6", "warmup is 6: it must not exceed steps, 5"),
        ("[train]\nlr = 1e-4\nmin_lr = 1e-3", "min_lr is 0.001: it must not exceed lr"),
        ("[data]\ncorpus = 'wiki'", "'wikitext'"),
        ("[data]\ncontext = 0", "data.context is 0"),
        ("seed = -1", "linnet: seed is -1: "),
        ("task = 3", "linnet: task is 3: "),
        ("[data]\npath = ''", "linnet: data.path is empty\n"),
        ("[data]\ncache = ''", "linnet: data.cache is empty\n"),
        ("task = 'causallm'", "'causallm': did you mean 'causal_lm'?"),
        ("[model]\npreset = 'transnormer_t3_lm'", "did you mean 'transnormer_t"),
        ("[model]\npreset = 7", "model.preset is 7"),
        ("[model]\npreset = 'vanilla_lm_small'\nwidht = 3", "'widht': did you mean 'width'?"),
        ("[model]\npreset = 'vanilla_lm_small'\nlayers = ['nrm']", "did you mean 'norm'?"),
        ("[model]\npreset = 'vanilla_lm_small'\nwidth = 1000000000000", "model.width is 1000000000000: "),
        ("[data]\ncorpus = 'text'", "data.path is missing"),
        ("[data]\ntokenizer = 'bytes'\nvocab_size = 300", "data.vocab_size is 300"),
        ("a = " + "[" * 5000, "nested too deeply"),
        ("seed = 0x" + "F" * 9000, "seed is a very large int"),
        ("seed = " + "9" * 9000, "not valid TOML"),
        ("task = '" + "x" * 9000 + "'", "unknown task"),
    ],
    ids=lambda text: text[:40],
)
def test_a_mistake_is_one_line(text, named, tmp_path, capfd):
    path = tmp_path / "r.toml"
    path.write_text(text)
    assert run_app(["train", str(path), "--dry-run"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("linnet: ")
    assert err.count("\n") == 1
    assert named in err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nothing/at_all.toml"], "nothing/at_all.toml"),
        (["smok"], "did you mean 'smoke'?"),
        (["smoke", "--set", "train.steps"], "train.steps=100"),
        (["smoke", "--set", ".steps=3"], "train.steps=100"),
        (["smoke", "--set", "seed.x=3"], "seed is not a table"),
        (["smoke", "--set", "train.steps=many"], "train.steps is 'many'"),
        (["smoke", "--set", "train.stepz=3"], "did you mean 'steps'?"),
        (["smoke", "--set", "steps=5"], "unknown key 'steps': did you mean 'train.steps'? "),
        (["smoke", "--set", "train.steps=5", "--set", "train.warmup=6"], "warmup is 6: it must not exceed steps, 5"),
        (["smoke", "--set", "data.path="], "linnet: data.path is empty\n"),
        (["smoke", "--set", "model.layers=diag"], 'it must be a list such as ["diag", "norm"]'),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(arguments, named, capfd):
    assert run_app(["train", *arguments, "--dry-run"]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert named in err


def test_a_warm_up_of_the_recipe_is_cut_to_fewer_steps_with_a_warning(tmp_path):
    recipe, said = tmp_path / "my.toml", []
    recipe.write_text("[train]\nsteps = 100\nwarmup = 10\n")
    assert load_recipe_config(recipe, ["train.steps=10"], said.append).train.warmup == 10
    assert said == []
    assert load_recipe_config(recipe, ["train.steps=4"], said.append).train.warmup == 4
    assert said == [f"train.warmup is 10 in {recipe}: it is cut to train.steps, 4"]
    with pytest.raises(InputError, match="warmup is 10: it must not exceed steps, 4"):
        load_recipe_config(recipe, ["train.steps=4", "train.warmup=10"])
    recipe.write_text("[train]\nsteps = 4\nwarmup = 10\n")
    with pytest.raises(InputError, match="warmup is 10: it must not exceed steps, 4"):
        load_recipe_config(recipe)


def test_text_in_another_encoding_is_named_by_line(tmp_path):
    (tmp_path / "r.toml").write_bytes("seed = 1\n# ä\n".encode("latin-1"))
    with pytest.raises(InputError, match="line 2: the file is not UTF-8"):
        load_recipe_config(tmp_path / "r.toml")


PLACES = [("data", key) for key in TextData.model_fields] + [("train", key) for key in TrainConfig.model_fields]
NEVER_VALID = st.one_of(
    st.just(float("nan")),
    st.just(float("inf")),
    st.just(-1),
    st.just(-1e30),
    st.integers(min_value=10**10),
    st.lists(st.integers(), min_size=3, max_size=5),
    st.dictionaries(st.text(max_size=5), st.integers(), min_size=1, max_size=2),
    st.dates(),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=NEVER_VALID)
def test_a_bad_value_is_one_line_that_names_the_key(place, value, tmp_path, capfd):
    section, key = place
    (tmp_path / "r.toml").write_text(tomli_w.dumps({section: {key: value}}))
    assert run_app(["train", str(tmp_path / "r.toml")]) == 2
    out, err = capfd.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{section}.{key}" in err
    assert len(err) < 500


def line_of(use, *arguments: object) -> str:
    """The error message of a call, or an empty string."""
    try:
        use(*arguments)
    except InputError as error:
        return str(error)
    return ""


WORDS = ["task", "seed", "data", "model", "train", "steps", "preset", "path", "lr", "__class__", "", "a.b"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200)
@given(value=ANYTHING)
def test_any_table_is_a_configuration_or_one_line(value):
    table = value if isinstance(value, dict) else {"data": value}
    assert "\n" not in line_of(lambda: check_config(parse_config(table)))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_file_is_a_recipe_or_one_line(content, tmp_path):
    (tmp_path / "r.toml").write_bytes(content)
    line = line_of(load_recipe_config, tmp_path / "r.toml")
    assert line == "" or "r.toml" in line or "unknown key" in line


def test_a_mistake_is_reported_before_torch_is_imported(tmp_path):
    program = """
import sys
from linnet.cli.app import run_app as run
for sets in ("train.lr=nan", "model.preset=vanila_lm", "task=causal", "data.tokenizer=7"):
    assert run(["train", "smoke", "--set", sets]) == 2
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("section", [TextData, RecallData, LraData, TrainConfig])
def test_the_document_has_every_key_and_its_default(section):
    page = {RecallData: "recall.md", LraData: "lra.md"}.get(section, "training.md")
    text = (RECIPES.parent / "docs" / page).read_text()
    for key, field in section.model_fields.items():
        default = tomli_w.dumps({"x": field.default}, multiline_strings=False) if field.default is not None else ""
        shown = f"`{' '.join(default.split()[2:])}`" if default else "none"
        shown = shown.replace("[ ", "[").replace(", ]", "]")
        assert f"| `{key}` | {shown} |" in text


def test_only_a_regular_file_of_some_size_is_a_recipe(tmp_path):
    """A device has no end, and a pipe may never have a beginning."""
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe.toml")
    for name in ("endless", "pipe"):
        with pytest.raises(InputError, match=rf"^cannot read .*/{name}.toml: it is not a regular file$"):
            load_recipe_config(tmp_path / f"{name}.toml")
    with (tmp_path / "large.toml").open("wb") as file:
        file.truncate(1 << 25)
    with pytest.raises(InputError, match=r"large.toml: it has 33,554,432 bytes, and at most 16,777,216 are read$"):
        load_recipe_config(tmp_path / "large.toml")
