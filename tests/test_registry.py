"""A registry finds files by name, refuses a name taken twice, and suggests the nearest name."""

import subprocess
import sys

import pytest

from linnet.errors import InputError
from linnet.models.presets import list_models, preset
from linnet.registry import ATTENTION, STUDY, Registry


@pytest.fixture
def birds(tmp_path, monkeypatch):
    package = tmp_path / "aviary"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from linnet.registry import Registry\nBIRDS = Registry('bird', 'aviary', machinery=('base',))\n"
    )
    (package / "base.py").write_text("")
    (package / "finch.py").write_text("from aviary import BIRDS\n\n@BIRDS.add('finch')\nclass Finch:\n    pass\n")
    (package / "heavy.py").write_text("raise RuntimeError('imported')\n")
    (package / "sea").mkdir()
    (package / "sea" / "__init__.py").write_text("")
    (package / "sea" / "gull.py").write_text(
        "from aviary import BIRDS\n\n@BIRDS.add('sea/gull')\nclass Gull:\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from aviary import BIRDS

    yield BIRDS
    for name in [name for name in sys.modules if name.split(".")[0] == "aviary"]:
        del sys.modules[name]


def test_names_are_the_files_without_the_machinery_and_without_an_import(birds: Registry):
    assert birds.names() == ["finch", "heavy", "sea/gull"]
    assert "heavy" in birds
    assert "base" not in birds


def test_a_name_imports_its_file(birds: Registry):
    assert birds["finch"].__name__ == "Finch"
    assert birds["finch"] is birds["finch"]
    assert birds["sea/gull"].__name__ == "Gull"


def test_a_users_own_class_is_listed_and_found(birds: Registry):
    @birds.add("wren")
    class Wren:
        pass

    assert birds.names() == ["finch", "heavy", "sea/gull", "wren"]
    assert birds["wren"] is Wren


def test_a_name_is_taken_once(birds: Registry):
    birds.add("wren")(type("Wren", (), {}))
    with pytest.raises(ValueError, match=r"bird 'wren' is registered twice"):
        birds.add("wren")(type("Other", (), {}))


def test_an_unknown_name_offers_the_nearest(birds: Registry):
    with pytest.raises(InputError) as error:
        birds["fnich"]
    assert str(error.value) == "unknown bird 'fnich': did you mean 'finch'? one of finch, heavy, sea/gull"


def test_of_many_names_the_nearest_five_are_printed_and_the_command_that_lists_all():
    with pytest.raises(InputError) as error:
        preset("vanila_lm")
    line = str(error.value)
    assert line.startswith("unknown model 'vanila_lm': did you mean 'vanilla_lm'? near are ")
    assert line.endswith(f"; `linnet list models` prints all {len(list_models())}")
    near = line.split("near are ")[1].split(";")[0].split(", ")
    assert len(near) == 5 and set(near) <= set(list_models())
    assert len(line) < 250


def test_names_of_attention_are_known_without_torch():
    program = "import sys\nfrom linnet.registry import ATTENTION\nprint(*ATTENTION.names())\n"
    program += "sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ATTENTION.names()
    assert {"softmax", "elu", "norm", "diag", "lln", "lln_diag"} <= set(ATTENTION.names())


@pytest.mark.parametrize("name", ATTENTION.names())
def test_each_file_registers_the_name_it_carries(name):
    assert isinstance(ATTENTION[name], type)


def test_words_of_a_name_can_be_joined_otherwise_than_those_of_its_file(birds: Registry, tmp_path):
    (tmp_path / "aviary" / "grey_wren.py").write_text(
        "from aviary import GREY\n\n@GREY.add('grey-wren')\nclass Wren:\n    pass\n"
    )
    grey = Registry("bird", "aviary", machinery=("base", "heavy", "finch", "sea/gull"), joint="-")
    sys.modules["aviary"].GREY = grey
    assert grey.names() == ["grey-wren"]
    assert "grey_wren" not in grey
    assert grey["grey-wren"].name == "grey-wren"


@pytest.mark.parametrize("name", STUDY.names())
def test_each_study_is_in_the_file_of_its_name(name):
    assert STUDY[name].__module__ == f"linnet.studies.{name.replace('-', '_')}"


def test_a_missing_package_has_no_names():
    assert Registry("bird", "linnet.aviary").names() == []
