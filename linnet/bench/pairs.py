"""linnet's mechanisms against other libraries' implementations of the same ones: time of forward and backward.

A library's core o = f(q, k, v) is compared with linnet's core, a module with projections x -> y with linnet's mixer.
Both have random parameters of the same sizes, and take turns.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from linnet.attention.base import create_attention, create_mixer
from linnet.bench.timing import time_calls
from linnet.testing.peers import MissingPeerError, Peer

B, H, N, D = 4, 8, 2048, 64
SIZE = 128  # features, projected length and landmarks, on both sides
ROUNDS, CHUNK = 2, 64  # hash rounds, and tokens per chunk


@dataclass(frozen=True)
class Pair:
    """A mechanism of linnet with its options, and the other library's object for (heads, head_dim)."""

    mechanism: str
    peer: Peer
    whole: bool  # modules with projections; otherwise cores
    options: Mapping[str, Any] = field(default_factory=dict)


def _performer(heads: int, head_dim: int, causal: bool) -> nn.Module:
    from performer_pytorch import FastAttention

    return FastAttention(dim_heads=head_dim, nb_features=SIZE, causal=causal)


def _linformer(heads: int, head_dim: int) -> nn.Module:
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(dim=heads * head_dim, seq_len=N, k=SIZE, heads=heads)


def _nystrom(heads: int, head_dim: int) -> nn.Module:
    """Without the convolution of the values, which linnet does not have either."""
    from nystrom_attention import NystromAttention

    width = heads * head_dim
    return NystromAttention(dim=width, dim_head=head_dim, heads=heads, num_landmarks=SIZE, residual=False)


def _reformer(heads: int, head_dim: int) -> nn.Module:
    """With the same rounds and chunks as linnet."""
    from reformer_pytorch import LSHSelfAttention

    return LSHSelfAttention(dim=heads * head_dim, heads=heads, bucket_size=CHUNK, n_hashes=ROUNDS)


PAIRS = (
    Pair("linformer", Peer("linformer", "linformer", False, _linformer), True, {"k": SIZE, "max_length": N}),
    Pair("nystromformer", Peer("nystrom", "nystrom-attention", False, _nystrom), True, {"landmarks": SIZE}),
    Pair(
        "reformer",
        Peer("reformer", "reformer-pytorch", False, _reformer),
        True,
        {"rounds": ROUNDS, "chunk": CHUNK},
    ),
    *(
        Pair(
            "performer",
            Peer("performer", "performer-pytorch", causal, partial(_performer, causal=causal)),
            False,
            {"features": SIZE},
        )
        for causal in (False, True)
    ),
)


def measure_bench_pairs(
    pairs: Sequence[Pair] = PAIRS,
    tokens: int = N,
    rounds: int = 5,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, Any]:
    """Measure forward and backward of each pair, as JSON; `speedup` is their time divided by linnet's."""
    rows: list[dict[str, Any]] = []
    skipped: list[dict[str, str]] = []
    for done, pair in enumerate(pairs):
        progress(done, len(pairs))
        causal = pair.peer.causal
        row: dict[str, Any] = {"attention": pair.mechanism, "form": "causal" if causal else "bidirectional"}
        try:
            theirs = pair.peer.load(H, D)
        except MissingPeerError as error:
            skipped.append({**row, "package": pair.peer.package, "reason": str(error)})
            continue
        torch.manual_seed(0)
        ours: nn.Module
        if pair.whole:
            ours = create_mixer(pair.mechanism, width=H * D, heads=H, causal=causal, **pair.options)
        else:
            ours = create_attention(pair.mechanism, heads=H, head_dim=D, causal=causal, **pair.options)
        shape = (B, tokens, H * D) if pair.whole else (B, H, tokens, D)
        inputs = [torch.randn(shape, requires_grad=True) for _ in range(1 if pair.whole else 3)]
        calls = {name: partial(_work, module, inputs) for name, module in (("ours", ours), ("theirs", theirs))}
        times = time_calls(calls, rounds)
        row |= {"package": pair.peer.package, "version": str(pair.peer.version), "with projections": pair.whole}
        seconds = {name: float(f"{timing.seconds:.4g}") for name, timing in times.items()}
        busy = max(timing.others or 0.0 for timing in times.values())
        rows.append({**row, **seconds, "speedup": round(seconds["theirs"] / seconds["ours"], 2), "others": busy})
    progress(len(pairs), len(pairs))
    settings = {"batch": B, "heads": H, "head_dim": D, "tokens": tokens, "size": SIZE, "rounds": rounds}
    return {"settings": {**settings, "threads": torch.get_num_threads()}, "rows": rows, "skipped": skipped}


def _work(module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Run forward and backward, and drop all gradients."""
    o = module(*inputs)
    o.backward(torch.ones_like(o))
    for x in inputs:
        x.grad = None
    module.zero_grad(set_to_none=True)
