"""Many machines: the commands of the pages fit torchrun and their recipes, and two agents of torchrun train one run."""

import re
import shlex
import socket
import subprocess
import sys
from math import prod

import pytest
from torch.distributed.run import get_args_parser

from linnet.config import dump_config, load_recipe_config
from linnet.screen import Screen
from linnet.storage import read_run_metrics
from linnet.train.run import start_run
from tests.distributed.conftest import ROOT, environment
from tests.prove.ranks import run_over_ranks

PAGES = ("docs/distributed.md", "docs/long_sequences.md")
TORCHRUN = re.compile(r"^(?:srun )?torchrun (-(?:.*\\\n)*.*)", re.MULTILINE)
COMMANDS = [
    (page, command.replace("\\\n", " ")) for page in PAGES for command in TORCHRUN.findall((ROOT / page).read_text())
]


def test_the_pages_have_commands_for_one_machine_and_for_many():
    assert len(COMMANDS) >= 5
    assert sum("--nnodes 4" in command for _, command in COMMANDS) == 2  # one by hand, one by SLURM


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_torchrun_takes_the_commands_of_the_pages(page, command):
    """Its own parser reads them; a recipe that they name is made for as many ranks as they start."""
    given = get_args_parser().parse_args(shlex.split(command))
    if not given.module:
        assert (ROOT / given.training_script).is_file()
        return
    assert (given.training_script, given.training_script_args[0]) == ("linnet", "train")
    config = load_recipe_config(ROOT / given.training_script_args[1])
    assert config.distributed is not None
    machines = int(given.nnodes.rpartition(":")[2])
    assert prod(config.distributed.mesh.values()) == machines * int(given.nproc_per_node)
    if machines > 1:
        assert given.rdzv_backend == "c10d" and given.rdzv_endpoint.endswith(":29500") and given.rdzv_id


def test_two_agents_that_meet_train_one_run(tmp_path):
    """As on two machines: each agent starts one rank, and both ranks share every sequence."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    config = run_over_ranks(tmp_path, "fsdp", 4, {"sequence": 2})
    config = config.model_copy(update={"model": {**config.model, "dropout": 0.0}})
    (tmp_path / "run.toml").write_text(dump_config(config))
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "one", "--local-addr", "127.0.0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *meeting]
    command += ["-m", "linnet", "train", str(tmp_path / "run.toml"), "--out", str(tmp_path / "run")]
    agents = [
        subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    said = [agent.communicate(timeout=240)[0].decode() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sum("finished: 4 steps" in text for text in said) == 1  # rank 0 alone speaks
    start_run(config.model_copy(update={"distributed": None}), tmp_path / "one", Screen(quiet=True))
    found, wanted = (
        [record["loss"] for record in read_run_metrics(tmp_path / name / "metrics.jsonl")] for name in ("run", "one")
    )
    assert found == pytest.approx(wanted, rel=2e-5)
