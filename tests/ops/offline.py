"""Compiles, without a GPU, exactly the kernels that a call would launch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime.jit import JITFunction

TYPES = {
    torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.int64: "*i64", torch.bool: "*i1",
}  # fmt: skip


class Launches:
    """The recorded launches, ready to compile; the hash of the source and the options identify a launch."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[ASTSource, dict[str, int]]] = {}

    def record(self, kernel: JITFunction, args: tuple[Any, ...], options: dict[str, int]) -> None:
        """Stands in for a launch."""
        constants: dict[tuple[int, ...], Any] = {}
        attributes: dict[tuple[int, ...], Any] = {}
        signature = {
            parameter.name: _type((j,), value, parameter.is_constexpr, constants, attributes)
            for j, (parameter, value) in enumerate(zip(kernel.params, args, strict=True))
        }
        source = ASTSource(kernel, signature, constants, attributes)
        self.found.setdefault(f"{source.hash()} {options}", (source, options))

    def compile(self, capability: int) -> Iterator[tuple[str, CompiledKernel]]:
        """The name of each kernel and its compiled form."""
        for source, options in self.found.values():
            yield source.name, triton.compile(source, GPUTarget("cuda", capability, 32), options)


def _type(path: tuple[int, ...], value: Any, constant: bool, constants: dict, attributes: dict) -> Any:
    """The type of an argument as Triton sees it: None and 1 are constants, and what 16 divides is known to be so."""
    if isinstance(value, tuple) and not constant:
        return tuple(_type((*path, j), x, False, constants, attributes) for j, x in enumerate(value))
    if constant or value is None or (isinstance(value, int) and value == 1):
        constants[path] = value
        return "constexpr"
    if isinstance(value, Tensor) or value % 16 == 0:
        attributes[path] = [["tt.divisibility", 16]]
    return TYPES[value.dtype] if isinstance(value, Tensor) else "i32"


@contextmanager
def launches() -> Iterator[Launches]:
    """Record kernels inside this block instead of launching them; results stay uninitialized."""
    run, seen = JITFunction.run, Launches()
    JITFunction.run = lambda kernel, *args, grid, warmup, **options: seen.record(kernel, args, options)
    try:
        yield seen
    finally:
        JITFunction.run = run


def launched(call: Callable[[], object]) -> Launches:
    """The kernels of one call."""
    with launches() as seen:
        call()
    return seen
