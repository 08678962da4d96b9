"""`bench decode`: a state that is declared longer equals the state after a longer text."""

import pytest
import torch

import linnet
from linnet.bench.decode import (
    CACHE,
    START,
    D,
    decode_bench,
    decode_core,
    decode_inputs,
    grow_decode_state,
    prepare_decode,
)
from linnet.bench.measure import Effort, measure_bench
from linnet.errors import UnsupportedError

RECURRENT = [name for name in linnet.list_attention() if linnet.describe_attention(name)["recurrent"]]


@pytest.mark.parametrize("name", RECURRENT)
def test_a_grown_state_has_the_shape_of_a_real_one(name):
    core = decode_core(name, 3 * START)
    q, k, v = decode_inputs(core, 2, 3 * START)
    with torch.no_grad():
        _, short = core.prefill(q[:, :, :START], k[:, :, :START], v[:, :, :START])
        _, real = core.prefill(q, k, v)
    made = grow_decode_state(core, short, 3 * START)
    assert [(x.shape, x.dtype) for x in made] == [(x.shape, x.dtype) for x in real]
    for kind, x, y in zip(core.state_types, made, real, strict=False):
        assert kind != "count" or torch.equal(x, y)


def test_every_recurrent_mechanism_steps_as_a_core_and_as_a_model():
    bench = decode_bench(quick=True)
    result = measure_bench(bench, Effort(rounds=1, least=0.0, limit=60.0, yardstick=16))
    assert not {row["case"]: row["reason"] for row in result["rows"] if "reason" in row}
    cases = {(row["table"], row["case"]) for row in result["rows"]}
    assert {("core", name) for name in [*RECURRENT, CACHE]} | {("model", name) for name in RECURRENT} <= cases
    state = {(row["case"], row["tokens"]): row["state"] for row in result["rows"] if row["table"] == "core"}
    assert state["norm", 128] == state["norm", 256] < state["softmax", 128] < state["softmax", 256]


def test_the_cache_in_place_is_softmax():
    job = {"table": "core", "case": CACHE, "batch": 2, "tokens": 128}
    call = prepare_decode(job)
    q, k, v, keys, values = call.step.args
    o = call.step()
    assert torch.equal(keys[:, :, -1:], k)
    wanted = torch.softmax(q @ keys.mT * D**-0.5, dim=-1) @ values
    assert torch.allclose(o, wanted, atol=1e-5)


def test_bad_sizes_are_one_line():
    with pytest.raises(UnsupportedError, match="its state would be 8 GiB"):
        prepare_decode({"table": "core", "case": "softmax", "batch": 32, "tokens": 65536})
    with pytest.raises(UnsupportedError, match="context is 100: it must be a multiple of 128"):
        decode_bench(lengths=[100])
