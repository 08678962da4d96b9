"""The configuration of a new run: the places of its data are kept."""

import shutil

from linnet.config import load_recipe_config
from linnet.train.fresh import absolute_fresh_config
from linnet.train.run import resume_run, start_run
from tests.train.test_run import QUIET, edit


def test_a_relative_path_leads_there_from_anywhere(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copy(config().data.path, "my.txt")
    data = config().data.model_copy(update={"path": "my.txt"})
    start_run(config(steps=2, save_every=1).model_copy(update={"data": data}), "run", QUIET)
    monkeypatch.chdir("/")
    assert resume_run(tmp_path / "run", QUIET).step == 2


def test_the_default_places_of_data_are_kept(config, tmp_path, monkeypatch):
    """A run on LINNET_DATA resumes without it, and also if it names another corpus."""
    for name, text in (("train", "a b c d\n" * 90), ("valid", "b c\n" * 30), ("test", "c d\n" * 30)):
        for root in ("one", "other"):
            folder = tmp_path / root / "wikitext-2"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"wiki.{name}.tokens").write_text(text if root == "one" else text.upper())
    data = config().data.model_copy(update={"corpus": "wikitext", "path": None})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LINNET_DATA", "one")
    start_run(config(steps=2).model_copy(update={"data": data}), tmp_path / "run", QUIET)
    assert load_recipe_config(tmp_path / "run/config.toml").data.path == f"{tmp_path}/one/wikitext-2"
    edit(tmp_path / "run", "steps = 2", "steps = 3")
    monkeypatch.setenv("LINNET_DATA", f"{tmp_path}/other")
    assert resume_run(tmp_path / "run", QUIET).step == 3
    monkeypatch.delenv("LINNET_DATA")
    edit(tmp_path / "run", "steps = 3", "steps = 4")
    assert resume_run(tmp_path / "run", QUIET).step == 4


def test_the_default_place_of_the_gpt2_tokenizer_is_kept(config, monkeypatch):
    monkeypatch.setenv("LINNET_DATA", "/somewhere")
    data = config().data.model_copy(update={"tokenizer": "gpt2"})
    assert (
        absolute_fresh_config(config().model_copy(update={"data": data})).data.tokenizer_path == "/somewhere/gpt2-bpe"
    )
    assert absolute_fresh_config(config()).data.tokenizer_path is None
