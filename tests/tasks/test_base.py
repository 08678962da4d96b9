"""Every task declares its [data] table, known before torch is imported, and the checkpoint that is scored."""

import subprocess
import sys

import pytest

from linnet.config import DataSettings, config_data_class, load_recipe_config, parse_config
from linnet.errors import InputError
from linnet.registry import TASK


@pytest.mark.parametrize("name", TASK.names())
def test_a_task_declares_its_data_table_and_its_checkpoint(name):
    task = TASK[name]
    assert issubclass(task.Data, DataSettings)
    assert config_data_class(name) is task.Data
    assert task.Data().context >= 3
    best = name.startswith(("lra/", "glue/")) or name in ("classify", "image")
    assert task.scored == ("best" if best else "last")
    meant = "did you mean 'context'" if "context" in task.Data.model_fields else "one of color"  # images have none
    with pytest.raises(InputError, match=f"unknown key of data 'contxt': {meant}"):
        parse_config({"task": name, "data": {"contxt": 8}})


@pytest.mark.parametrize("name", TASK.names())
def test_the_paths_of_a_task_are_text_as_they_stand(name):
    paths = TASK[name].Data.paths()
    assert set(paths) <= {"path", "valid_path", "test_path", "tokenizer_path", "encoder", "cache"}
    data = load_recipe_config(
        "smoke", ["task=causal_lm", f"task={name}", "data={}", *(f"data.{path}=2024" for path in paths)]
    )
    assert all(getattr(data.data, path) == "2024" for path in paths)


def test_a_table_is_known_before_torch_is_imported():
    program = """
import sys
from linnet.config import parse_config
from linnet.registry import TASK
for name in TASK.names():
    parse_config({"task": name})
sys.exit("torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
