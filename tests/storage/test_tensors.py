"""Tensors on disk: the bytes are those of the safetensors library, and no second copy is held in memory."""

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load, save

from linnet.errors import LinnetError
from linnet.storage.checkpoint import save_checkpoint
from linnet.storage.tensors import TYPES, pack_tensors, unpack_tensors


def packed(tensors):
    parts, tied = pack_tensors(tensors)
    return bytearray(b"".join(parts)), tied


def test_the_bytes_are_those_of_the_safetensors_library():
    types = [getattr(torch, name) for name in TYPES.values()]
    tensors = {f'{dtype}.ü\n"{n}': torch.arange(n).to(dtype) for dtype in types for n in (5, 0, 3)}
    tensors |= {"scalar": torch.tensor(3.5), "deep": torch.randn(2, 3, 4), "turned": torch.randn(4, 3).mT}
    data, tied = packed(tensors)
    assert tied == {}
    assert data == save({name: tensor.contiguous() for name, tensor in tensors.items()})
    back, theirs = unpack_tensors(data, {}), load(bytes(data))
    assert sorted(back) == sorted(theirs) == sorted(tensors)
    for name, tensor in tensors.items():
        assert back[name].dtype == tensor.dtype
        assert back[name].shape == tensor.shape
        assert back[name].tolist() == tensor.tolist()
    assert packed({})[0] == save({})


def header(table, data=b""):
    text = json.dumps(table).encode() if not isinstance(table, bytes) else table
    return bytearray(len(text).to_bytes(8, "little") + text + data)


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "data",
    [
        header({"a": {**ONE, "dtype": "F3"}}, b"0000"),
        header({"a": {**ONE, "shape": [-1]}}, b"0000"),
        header({"a": {**ONE, "shape": [True]}}, b"0000"),
        header({"a": {**ONE, "shape": [2**40, 2**40]}}, b"0000"),
        header({"a": {**ONE, "data_offsets": [0, 8]}}, b"00000000"),
        header({"a": {**ONE, "data_offsets": [0]}}, b"0000"),
        header({"a": {**ONE, "more": 1}}, b"0000"),
        header({"a": ONE, "b": ONE}, b"0000"),  # two that share their bytes
        header({"a": ONE}, b"00000000"),
        header({"a": ONE}),
        header(b'{"a": %s, "a": %s}' % ((json.dumps(ONE).encode(),) * 2), b"0000"),
        header(b"[" * 100_000),
        header([]),
        bytearray(b"\xff" * 8 + b"{}"),
    ],
)
def test_a_header_that_lies_is_one_line(data):
    with pytest.raises(LinnetError, match=r"^these are not tensors that linnet wrote: ") as error:
        unpack_tensors(data, {})
    assert "\n" not in str(error.value)


def test_a_tie_does_not_replace_what_is_stored():
    data, _ = packed({"a": torch.ones(1), "b": torch.zeros(1)})
    with pytest.raises(LinnetError, match="b is stored and tied"):
        unpack_tensors(data, {"b": "a"})


def test_a_type_that_is_not_stored_is_one_line():
    with pytest.raises(LinnetError, match=r"^x is of type torch\.complex128: linnet stores "):
        pack_tensors({"x": torch.zeros(1, dtype=torch.complex128)})


MEASURE = """
import resource, sys, torch
from linnet.storage.checkpoint import read_checkpoint, save_checkpoint
size, action, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
weights = {f"w{i}": torch.ones(size // 16) for i in range(4)} if action == "save" else {}  # size bytes
save_checkpoint(path + "/warm", 1, {"w": torch.ones(3)}, {"w": torch.ones(3)}, {})
before = peak()
if action == "save":
    save_checkpoint(path, 1, weights, weights, {})
else:
    read_checkpoint(path + "/step-1", optimizer=action == "all")
print((peak() - before) / size)
"""


@pytest.mark.parametrize(("action", "copies"), [("save", 0.0), ("model", 1.0), ("all", 2.0)])
def test_memory(tmp_path, action, copies):
    """Saving copies nothing; reading holds each wanted file once, and skips the optimizer if it is not wanted."""
    size = 1 << 26
    if action != "save":
        weights = {f"w{i}": torch.ones(size // 16) for i in range(4)}
        save_checkpoint(tmp_path, 1, weights, weights, {})
    command = [sys.executable, "-c", MEASURE, str(size), action, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < copies + 0.15
