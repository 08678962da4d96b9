"""Triton's kernels: equal to the reference under its interpreter, compiled for two GPUs, chosen where they can run."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from linnet.errors import UnsupportedError
from linnet.ops import backend, exp_attention, linear_attention

FOLDER = Path(__file__).parent
SHARED = {80: 163 * 1024, 90: 227 * 1024}  # bytes that a block may have of a multiprocessor's memory
OPS = [linear_attention, exp_attention]
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")


PARTS = ["test_linear_attention", "test_exp_attention", "not test_linear_attention and not test_exp_attention"]


@needs_triton
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", PARTS)
def test_under_the_interpreter(part: str) -> None:
    """In a separate process, because Triton must be imported with the interpreter on."""
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", part]
    file = str(FOLDER / "interpreted_triton.py")
    done = subprocess.run([*command, file], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.fixture
def compile_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """A function that compiles without the cache of earlier runs."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # what it is now; unset, Triton warns
    return compile_call


def compile_call(
    target: int, op: str, dtype: torch.dtype, D: int, E: int, causal: bool, packed: bool, back: bool
) -> int:
    """Compile the kernels that one call launches, without a GPU; returns their number."""
    from linnet.ops.triton.exponential import exponential
    from linnet.ops.triton.linear import linear
    from tests.ops.offline import launched

    q, k, v = (torch.zeros(1, 2, 300, width, dtype=dtype, requires_grad=True) for width in (D, D, E))
    real = torch.ones(1, 300, dtype=torch.bool) if packed else None
    run = torch.zeros(1, 300, dtype=torch.int64) if packed else None

    def call() -> None:
        if op == "linear":
            o = linear(q, k, v, real, run, None, None, causal, True)[0]
        else:
            o = exponential(q, k, v, real, run, None, None, None, causal)[0]
        if back:
            torch.autograd.grad(o.sum(), (q, k, v))

    made = 0
    for name, kernel in launched(call).compile(target):
        assert kernel.asm["cubin"], name
        assert kernel.metadata.shared <= SHARED[target], f"{name} wants {kernel.metadata.shared} bytes"
        made += 1
    return made


@needs_triton
@pytest.mark.parametrize("target,op", [(80, "linear"), (90, "exponential")])
def test_compiles_for_a_gpu(target: int, op: str, compile_all) -> None:
    assert compile_all(target, op, torch.bfloat16, 64, 64, causal=True, packed=False, back=False) == 3


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("target", SHARED)
@pytest.mark.parametrize("op", ["linear", "exponential"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("D,E,causal,packed", [
    (64, 64, True, False), (128, 128, True, True), (256, 256, False, True), (8, 200, False, False),
])  # fmt: skip
def test_compiles_at_every_width(target, op, dtype, D, E, causal, packed, compile_all) -> None:
    """Forward and backward."""
    assert compile_all(target, op, dtype, D, E, causal, packed, back=True) >= 7


@pytest.mark.parametrize("op", OPS)
def test_an_impossible_choice_is_one_line(op, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 2, 5, 8)
    installed = importlib.util.find_spec("triton") is not None
    cases = [(x.double(), "float64"), (x[..., :4], "widths are 4 and 4"), (x.to("meta"), "meta")]
    cases.append((x, "TRITON_INTERPRET=1" if installed else "cannot be imported"))
    for tensor, message in cases:
        with pytest.raises(UnsupportedError, match=message) as error:
            op(tensor, tensor, tensor, backend="triton")
        assert "\n" not in str(error.value)
    monkeypatch.setenv("LINNET_BACKEND", "triton")
    with pytest.raises(UnsupportedError, match=f"LINNET_BACKEND 'triton' cannot run this {op.__name__}"):
        op(x, x, x)
    with pytest.raises(UnsupportedError, match="log_decay"):
        linear_attention(x, x, x, log_decay=torch.zeros(2))


def test_it_is_the_choice_for_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for reason, on_gpu in (("", "triton"), ("triton cannot be imported", "torch")):
        monkeypatch.setattr(backend, "no_triton_backend", lambda device, reason=reason: reason)
        assert backend.choose_backend("exp_attention", backend.NAMES, None, "tensors are on cuda", "", "cuda") == on_gpu
        assert (
            backend.choose_backend("exp_attention", backend.NAMES, None, "tensors are bfloat16", "", "cpu") == "torch"
        )
    assert (
        backend.choose_backend("exp_attention", backend.NAMES, None, "tensors are on cuda", "a width", "cuda")
        == "torch"
    )


def test_triton_is_imported_for_nobody_else() -> None:
    program = """
import sys, torch
from linnet.ops import exp_attention, linear_attention
x = torch.randn(1, 2, 5, 8)
linear_attention(x, x, x), exp_attention(x, x, x)
sys.exit("linnet.ops.triton" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
