"""How many floating-point operations each custom op counts for torch.utils.flop_counter.FlopCounterMode.

A product of matrices counts two operations per term, as in torch, and nothing else counts. Linear forms count the state
that keys write and queries read, 4 N D E per head, and 10 N D E in the backward pass, which makes the state again, or 8
if it was saved. The scores inside a chunk of a causal form are left out: the size of a chunk is the backend's own
choice. Blocks count whole, causal or not, as torch counts causal softmax; squared ReLU counts the strips it computes.
"""

import inspect
import sys
from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

Arguments = Mapping[str, Any]  # of an op by name, tensors as their shapes, except `spans`
Count = Callable[[Arguments], int]


def _linear(given: Arguments, times: int) -> int:
    return times * prod(given["q"]) * given["v"][-1]


def _linear_backward(given: Arguments, saved: str = "S1") -> int:
    return _linear(given, 10 if given.get(saved) is None else 8)


def _block(given: Arguments, keys: int, rounds: int = 1, backward: bool = False) -> int:
    *rows, D = given["q"]
    E = given["v"][-1]
    return 2 * rounds * prod(rows) * keys * (3 * D + 2 * E if backward else D + E)


def _forward_block(given: Arguments) -> int:
    return _block(given, min(given["block"], given["q"][2]))


def _backward_block(given: Arguments) -> int:
    return _block(given, min(given["block"], given["q"][2]), backward=True)


def _pieces(given: Arguments, backward: bool = False) -> int:
    """Each query sees the keys of its unit; a tensor without data does not tell how many, so the widest counts."""
    from torch._subclasses.fake_tensor import FakeTensor

    (B, H, _, D), E, spans = given["q"], given["v"][-1], given["spans"]
    if isinstance(spans, FakeTensor):
        return _block(given, given["widest"], backward=backward)
    keys = int(spans[..., 1].sum()) * (B // spans.shape[0]) * (H // spans.shape[1])  # of all units
    return 2 * keys * given["unit"] * (3 * D + 2 * E if backward else D + E)


def _lsh(given: Arguments, backward: bool) -> int:
    """Each token sees two chunks, its own and the one before it, in each round of hashes."""
    return _block(given, min(2 * given["chunk"], given["q"][1]), given["order"][1], backward)


def _relu(given: Arguments, backward: bool = False) -> int:
    from linnet.ops.squared_relu import STRIP

    B, N, D = given["q"]
    E = given["v"][-1]
    strips = [(t, min(t + STRIP, N)) for t in range(0, N, STRIP)]
    pairs = sum((end - t) * (end if given["causal"] else N) for t, end in strips)
    return 2 * B * pairs * (3 * D + 2 * E if backward else D + E)


def _chunked_relu(given: Arguments, backward: bool = False) -> int:
    """Scores inside chunks, and the linear part between them."""
    B, N, D = given["near_q"]
    E, C = given["v"][-1], (given["bias"][0] + 1) // 2
    return 2 * B * N * (C * (3 * D + 2 * E if backward else D + E) + (5 if backward else 2) * D * E)


COUNTS: dict[str, Count] = {
    **dict.fromkeys(
        ("linear_causal", "exp_attention", "cpu_linear", "cpu_exponential", "triton_linear", "triton_exponential"),
        lambda given: _linear(given, 4),
    ),
    "cpu_block": _forward_block,
    "cpu_block_backward": _backward_block,
    "cpu_exp_block": lambda given: _linear(given, 4) + _forward_block(given),
    "cpu_exp_block_backward": lambda given: _linear_backward(given, "S") + _backward_block(given),
    "cpu_pieces": _pieces,
    "cpu_pieces_backward": lambda given: _pieces(given, backward=True),
    "squared_relu": _relu,
    "squared_relu_backward": lambda given: _relu(given, backward=True),
    "chunked_relu": _chunked_relu,
    "chunked_relu_backward": lambda given: _chunked_relu(given, backward=True),
    "lsh_attention": lambda given: _lsh(given, backward=False),
    "lsh_attention_backward": lambda given: _lsh(given, backward=True),
}
COUNTS |= {
    f"{name}_backward": _linear_backward
    for name in COUNTS
    if not any(word in name for word in ("block", "lsh", "relu", "pieces"))
}


def count_flops(name: str, op: Any, function: Callable[..., Any]) -> None:
    """Let torch's counters count the op `name`, whose arguments are those of `function`; others count nothing.

    It is called when an op runs: importing torch's counter with linnet would import Triton too. A counter that is
    already counting has copied torch's formulas, so it gets its own.
    """
    torch_counter = sys.modules.get("torch.utils.flop_counter")
    if torch_counter is None or name not in COUNTS:
        return
    if op not in torch_counter.flop_registry:
        names = list(inspect.signature(function).parameters)

        def count(*args: Any, out_val: Any = None, **given: Any) -> int:
            given = {**dict(zip(names, args, strict=False)), **given}
            shapes = {key: x.shape for key, x in given.items() if isinstance(x, Tensor) and key != "spans"}
            return COUNTS[name]({**given, **shapes})

        torch_counter.register_flop_formula(op, get_raw=True)(count)
    for mode in _get_current_dispatch_mode_stack():
        counter = getattr(mode, "counter", None)
        if isinstance(counter, torch_counter.FlopCounterMode):
            counter.flop_registry.setdefault(op, torch_counter.flop_registry[op])
