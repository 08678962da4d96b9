"""Ranks that cannot meet, or do not fit their mesh, batch or model, end with one line."""

import os
import socket
import subprocess
import sys
import time

import pytest

from linnet.config import parse_config
from linnet.distributed import ranks
from linnet.distributed.spread import check_spread
from linnet.errors import InputError
from linnet.models.backbone import build_backbone_on_meta
from linnet.models.presets import preset_config


@pytest.mark.parametrize("agent", ["True", "False"])
def test_ranks_that_cannot_meet_give_up_with_one_line(monkeypatch, agent):
    """Nobody listens where they should meet, or rank 0 listens there and nobody comes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    told = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for name, value in {**told, "TORCHELASTIC_USE_AGENT_STORE": agent}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(ranks, "MEETING", 1.0)
    start = time.monotonic()
    with pytest.raises(InputError, match=r"^rank 0 of 2 did not meet the others within 1 seconds: [^\n]+$"):
        ranks.Ranks(rank=0, world=2, launched=True).join()
    assert time.monotonic() - start < 10


@pytest.mark.slow  # it waits 25 seconds, and a busy machine starts its processes too late for its limit
def test_a_missing_rendezvous_is_one_line_within_30_seconds(tmp_path):
    told = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    alone = {**os.environ, **told, "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    command = [sys.executable, "-m", "linnet", "train", "smoke", "--set", "distributed.strategy=ddp"]
    before = time.monotonic()
    done = subprocess.run(command, env=alone, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("linnet: rank 0 of 2 did not meet the others")) == (2, 1)
    assert done.stderr.count("\n") == 1  # and nothing of torch
    assert time.monotonic() - before < 60  # 25 seconds of waiting, and the start of Python
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("table", "world", "batch", "line"),
    [
        (None, 2, 8, "torchrun started 2 ranks: set distributed.strategy=ddp or fsdp"),
        ({}, 3, 8, "train.batch is 8: it must be a multiple of the number of ranks, 3"),
        ({"mesh": {"replicate": 4}}, 2, 8, "distributed.mesh is replicate 4: torchrun started 2 ranks"),
        ({"mesh": {"replicate": 4}}, 1, 8, "distributed.mesh is replicate 4: without torchrun there is one rank"),
        ({"strategy": "fsdp"}, 2, 8, "blocks.0.mixer_norm.gain is a single number, which cannot be cut"),
    ],
)
def test_ranks_that_do_not_fit_are_refused_in_one_line(settings, table, world, batch, line):
    config = parse_config(settings() | ({} if table is None else {"distributed": table}))
    model = build_backbone_on_meta(preset_config({"preset": "flash_lm_small", "vocab_size": 9}))
    with pytest.raises(InputError) as raised:
        check_spread(model, config.distributed, world, batch)
    assert line in str(raised.value)


def test_only_a_sharded_model_has_parts(settings):
    with pytest.raises(InputError, match=r"distributed: mesh.shard is 2: only strategy 'fsdp' cuts a model"):
        parse_config(settings() | {"distributed": {"mesh": {"shard": 2}}})


def test_torchrun_starts_only_training(tmp_path):
    told = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RUN_ID": "none"}
    command = [sys.executable, "-m", "linnet", "list", "tasks"]
    done = subprocess.run(command, env=told, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("linnet: torchrun starts only train, resume, finetune")
