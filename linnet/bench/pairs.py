"""linnet's mechanisms against public implementations of the same ones: time of forward and backward.

A library's core o = f(q, k, v) is compared with linnet's core, a module with projections x -> y with linnet's mixer.
Both have random parameters of the same sizes, and take turns. Where no library is on PyPI, or to see what the formula
costs as its authors wrote it, a plain form of `linnet.bench.released` is the other side.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from linnet.attention.base import create_attention, create_mixer
from linnet.attention.flash_quad import GatedMixer, GatedUnit
from linnet.attention.linformer import LinformerAttention
from linnet.attention.long_short import LongShortAttention
from linnet.bench import forms, released
from linnet.bench.machine import measure_machine_limits
from linnet.bench.timing import time_calls
from linnet.figures.table import Table
from linnet.testing.peers import MissingPeerError, Peer

B, H, D = 1, 8, 64
LENGTHS = (1024, 4096)
ROUNDS = 3
SIZE = 128  # features, projected length and landmarks, on both sides
HASHES, CHUNK = 2, 64  # rounds of hashing, and tokens per chunk
KEY = ("attention", "form", "tokens", "library", "with projections")  # of a row
PRODUCT = 1024  # rows and columns of the matrices of that product
PLAIN = "plain torch"  # the library of a form as released
GATED = ("flash", "flash_quad")  # their cores are parts of a mixer
FORMAT = "linnet-bench-peers-3"


@dataclass(frozen=True)
class Pair:
    """A mechanism of linnet with its options for a number of tokens, and the other side."""

    mechanism: str
    peer: Peer
    whole: bool  # modules with projections; otherwise cores
    options: Callable[[int], Mapping[str, Any]] = field(default=lambda tokens: {})

    @property
    def library(self) -> str:
        """The other side, as the tables name it."""
        return PLAIN if self.peer.name == PLAIN else f"{self.peer.package} {self.peer.version}"


def bench_pair_ours(pair: Pair, tokens: int) -> nn.Module:
    """linnet's side of a pair."""
    causal, options = pair.peer.causal, pair.options(tokens)
    if pair.whole or pair.mechanism in GATED:
        mixer = create_mixer(pair.mechanism, width=H * D, heads=H, causal=causal, **options)
        return mixer if pair.whole else mixer.core
    return create_attention(pair.mechanism, heads=H, head_dim=D, causal=causal, **options)


def bench_pair_inputs(pair: Pair, tokens: int) -> list[Tensor]:
    """What both sides of a pair get."""
    if pair.whole:
        return [torch.randn(B, tokens, H * D, requires_grad=True)]
    if pair.mechanism in GATED:  # Z, as query and as key, and V
        z, v = (torch.randn(B, 1, tokens, width, requires_grad=True) for width in (SIZE, 2 * H * D))
        return [z, z, v]
    # Heads side by side in memory, as projections give them.
    return [torch.randn(B, tokens, H, D).transpose(1, 2).requires_grad_() for _ in range(3)]


class _Function(nn.Module):
    """A function of tensors as a module, with the modules that it uses."""

    def __init__(self, function: Callable[..., Tensor], *parts: nn.Module) -> None:
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, *inputs: Tensor) -> Tensor:
        return self.function(*inputs)


def _performer(heads: int, head_dim: int, causal: bool) -> nn.Module:
    from performer_pytorch import FastAttention

    return FastAttention(dim_heads=head_dim, nb_features=SIZE, causal=causal)


def _linformer(heads: int, head_dim: int, length: int) -> nn.Module:
    from linformer import LinformerSelfAttention

    return LinformerSelfAttention(dim=heads * head_dim, seq_len=length, k=SIZE, heads=heads)


def _nystrom(heads: int, head_dim: int) -> nn.Module:
    """Without the convolution of the values, which linnet does not have either."""
    from nystrom_attention import NystromAttention

    width = heads * head_dim
    return NystromAttention(dim=width, dim_head=head_dim, heads=heads, num_landmarks=SIZE, residual=False)


def _reformer(heads: int, head_dim: int) -> nn.Module:
    """With the same rounds and chunks as linnet."""
    from reformer_pytorch import LSHSelfAttention

    return LSHSelfAttention(dim=heads * head_dim, heads=heads, bucket_size=CHUNK, n_hashes=HASHES)


def _bigbird(heads: int, head_dim: int, length: int) -> nn.Module:
    """With its masks built once, and the output projection that linnet's mixer has."""
    from linnet.hf.peers import BigBirdPeer

    return BigBirdPeer(heads, head_dim, length, block=CHUNK, batch=B)


def _informer(heads: int, head_dim: int) -> nn.Module:
    """It samples as many keys as there are, so its scores are all scores."""
    from linnet.hf.peers import InformerPeer

    return InformerPeer(heads, head_dim, factor=16)


def _long_short(heads: int, head_dim: int, causal: bool) -> nn.Module:
    """With keys that are values, as the library has it; its rotary positions are given, for versions that changed."""
    from long_short_transformer.long_short_transformer import LongShortAttention
    from rotary_embedding_torch import RotaryEmbedding

    class Angles(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.angles = RotaryEmbedding(head_dim)

        def forward(self, places: Tensor, cache_key: object = None) -> Any:
            return self.angles(places)

    sizes = {"window_size": 64, "segment_size": 32, "r": 1} if causal else {"window_size": 8, "r": 32}
    width = heads * head_dim
    return LongShortAttention(dim=width, heads=heads, dim_head=head_dim, causal=causal, pos_emb=Angles(), **sizes)


def _flash(heads: int, head_dim: int, causal: bool) -> nn.Module:
    from flash_pytorch import FLASH

    return FLASH(dim=heads * head_dim, group_size=CHUNK, causal=causal)


def _flash_quad(heads: int, head_dim: int, causal: bool) -> nn.Module:
    from flash_pytorch import GAU

    return GAU(dim=heads * head_dim, causal=causal)


def _gated_as_released(heads: int, head_dim: int, name: str, causal: bool) -> nn.Module:
    mixer = create_mixer(name, width=heads * head_dim, heads=heads, causal=causal)
    assert isinstance(mixer, GatedMixer)
    return released.GatedAsReleased(mixer)


def _gated_core_as_released(heads: int, head_dim: int, name: str, causal: bool) -> nn.Module:
    core = create_mixer(name, width=heads * head_dim, heads=heads, causal=causal).core
    assert isinstance(core, GatedUnit)
    return released.GatedCoreAsReleased(core)


def _linformer_as_released(heads: int, head_dim: int, length: int) -> nn.Module:
    core = create_attention("linformer", heads=heads, head_dim=head_dim, causal=False, k=SIZE, max_length=length)
    assert isinstance(core, LinformerAttention)
    return released.LinformerAsReleased(core)


def _long_short_as_released(heads: int, head_dim: int) -> nn.Module:
    core = create_attention("long_short", heads=heads, head_dim=head_dim, causal=False)
    assert isinstance(core, LongShortAttention)
    return released.LongShortAsReleased(core)


def _pair(name: str, package: str, build: Callable[..., nn.Module], causal: bool, whole: bool = True) -> Pair:
    return Pair(name, Peer(package, package, causal, build), whole)


def _sized(pair: Pair, options: Callable[[int], Mapping[str, Any]], theirs: bool = False) -> Pair:
    """The pair with linnet's options by length, and, if `theirs`, a peer that is built for the length too."""
    peer = pair.peer
    if theirs:
        peer = Peer(peer.name, peer.package, peer.causal, peer.build, defaults=lambda tokens: {"length": tokens})
    return Pair(pair.mechanism, peer, pair.whole, options)


def _plain(name: str, build: Callable[..., nn.Module], causal: bool = False, whole: bool = False) -> Pair:
    return Pair(name, Peer(PLAIN, "torch", causal, build), whole)


HF, FLASH = "transformers", "FLASH-pytorch"
PAIRS = (
    _sized(_pair("linformer", "linformer", _linformer, False), lambda n: {"k": SIZE, "max_length": n}, theirs=True),
    _sized(_plain("linformer", _linformer_as_released), lambda n: {"k": SIZE, "max_length": n}, theirs=True),
    _sized(_pair("nystromformer", "nystrom-attention", _nystrom, False), lambda n: {"landmarks": SIZE}),
    _sized(
        _plain("nystromformer", lambda heads, head_dim: released.NystromAsReleased(SIZE, 6)),
        lambda n: {"landmarks": SIZE},
    ),
    _sized(_pair("reformer", "reformer-pytorch", _reformer, False), lambda n: {"rounds": HASHES, "chunk": CHUNK}),
    *(
        _sized(
            _pair("performer", "performer-pytorch", partial(_performer, causal=causal), causal, False),
            lambda n: {"features": SIZE},
        )
        for causal in (False, True)
    ),
    _sized(_pair("bigbird", HF, _bigbird, False), lambda n: {}, theirs=True),
    _pair("informer", HF, _informer, False),
    _plain("informer", lambda heads, head_dim: released.InformerAsReleased(16)),
    _plain("cosformer", lambda heads, head_dim: released.CosformerAsReleased(4096, False)),
    *(_pair("long_short", "long-short-transformer", partial(_long_short, causal=c), c) for c in (False, True)),
    _plain("long_short", _long_short_as_released),
    *(_pair("flash", FLASH, partial(_flash, causal=causal), causal) for causal in (False, True)),
    *(_pair("flash_quad", FLASH, partial(_flash_quad, causal=causal), causal) for causal in (False, True)),
    *(
        _plain(name, partial(build, name=name, causal=causal), causal, whole)
        for name in GATED
        for causal in (False, True)
        for build, whole in ((_gated_as_released, True), (_gated_core_as_released, False))
    ),
    _plain("lln", lambda heads, head_dim: _Function(forms.released_lln_form)),
    _plain("lln_diag", lambda heads, head_dim: _Function(forms.released_lln_diag_form)),
)


def measure_bench_pairs(
    pairs: Sequence[Pair] = PAIRS,
    lengths: Sequence[int] = LENGTHS,
    rounds: int = ROUNDS,
    progress: Callable[[int, int], None] = lambda done, total: None,
    keep: Callable[[dict[str, Any]], None] = lambda found: None,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Measure forward and backward of each pair, as JSON; `speedup` is their time divided by linnet's.

    `products` is the share of linnet's time in which this machine would do its multiplications at the speed of a large
    matrix product, which takes turns with both sides. `keep` gets the result after each pair. The rows of `before`, an
    earlier result, are not measured again.
    """
    threads = torch.get_num_threads()
    clock = "processor" if threads == 1 else "wall"
    settings = {"batch": B, "heads": H, "head_dim": D, "size": SIZE, "rounds": rounds, "clock": clock}
    where = {"torch": torch.__version__, "threads": threads}
    found: dict[str, Any] = {"format": FORMAT, "settings": settings, "environment": where, "rows": [], "skipped": []}
    if before is not None and all(before.get(key) == found[key] for key in ("format", "settings", "environment")):
        found["rows"] = list(before["rows"])
    rows, skipped = found["rows"], found["skipped"]
    known = {tuple(row[key] for key in KEY) for row in rows}
    product = measure_machine_limits(PRODUCT)["gemm"]
    work = [(pair, tokens) for tokens in lengths for pair in pairs]
    for done, (pair, tokens) in enumerate(work):
        progress(done, len(work))
        keep(found)
        form = "causal" if pair.peer.causal else "bidirectional"
        row: dict[str, Any] = {"attention": pair.mechanism, "form": form, "tokens": tokens}
        row |= {"library": pair.library, "with projections": pair.whole}
        if tuple(row[key] for key in KEY) in known:
            continue
        try:
            calls = _bench_calls(pair, tokens)
            with FlopCounterMode(display=False) as counter:
                calls["ours"]()
            times = time_calls({**calls, "product": product.call}, rounds, processor=clock == "processor")
        except MissingPeerError as error:
            skipped.append({**row, "library": pair.peer.package, "reason": str(error)})
            continue
        except Exception as error:  # noqa: BLE001  another library may raise anything, and that is its result
            reason = f"fails: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            skipped.append({**row, "library": pair.peer.package, "reason": reason})
            continue
        seconds = {name: float(f"{timing.seconds:.4g}") for name, timing in times.items()}
        least = counter.get_total_flops() * seconds.pop("product") / product.amount
        busy = max(timing.others or 0.0 for timing in times.values())
        speedup = round(seconds["theirs"] / seconds["ours"], 2)
        rows.append(
            {**row, **seconds, "speedup": speedup, "products": round(least / seconds["ours"], 3), "others": busy}
        )
    progress(len(work), len(work))
    keep(found)
    return found


def _bench_calls(pair: Pair, tokens: int) -> dict[str, Callable[[], None]]:
    """Forward and backward of linnet's side and of the other."""
    theirs = pair.peer.load(H, D, tokens)
    torch.manual_seed(0)
    ours = bench_pair_ours(pair, tokens)
    inputs = bench_pair_inputs(pair, tokens)
    return {name: partial(_work, module, inputs) for name, module in (("ours", ours), ("theirs", theirs))}


def _work(module: nn.Module, inputs: Sequence[Tensor]) -> None:
    """Run forward and backward, and drop all gradients."""
    o = module(*inputs)
    o.backward(torch.ones_like(o))
    for x in inputs:
        x.grad = None
    module.zero_grad(set_to_none=True)


def bench_pairs_table(found: Mapping[str, Any]) -> Table:
    """One line per pair and length."""
    columns = ["attention", "form", "tokens", "ours", "against", "theirs", "speedup", "in products"]
    columns += ["at most", "cores used by others"]
    lines = [
        [row["attention"], row["form"], f"{row['tokens']:,}", f"{1000 * row['ours']:.0f} ms"]
        + [row["library"] + (", with projections" if row["with projections"] else "")]
        + [f"{1000 * row['theirs']:.0f} ms", f"{row['speedup']:.2f}x", f"{100 * row['products']:.0f} %"]
        + [f"{row['speedup'] / row['products']:.1f}x", f"{row['others']:.1f}"]
        for row in found["rows"]
    ]
    return Table("", columns, lines, ["attention", "form", "against"])


def bench_pairs_note(found: Mapping[str, Any]) -> str:
    """How it was measured, and what was not, one line each."""
    sizes, where = found["settings"], found["environment"]
    lines = [
        f"Forward and backward, batch {sizes['batch']}, {sizes['heads']} heads of {sizes['head_dim']}, "
        f"{sizes['size']} features, projections or landmarks, {sizes['rounds']} rounds in turns, "
        f"threads: {where['threads']}, torch {where['torch']}, by the clock of the {sizes['clock']}. `in products` is "
        "the share of linnet's time that its multiplications would take at the speed of a large matrix product of "
        "torch, measured in the same turns (linnet's kernels can be a little faster), and `at most` is the speedup if "
        "linnet did nothing else. The scores of the keys that informer samples are not counted."
    ]
    for row in found["skipped"]:
        what = f"{row['attention']}, {row['form']}, {row['tokens']:,} tokens"
        lines.append(f"not measured: {what}: {row['library']}: {row['reason']}")
    return "\n".join(lines)


def bench_pairs_page(found: Mapping[str, Any]) -> str:
    """The table and its note as a page."""
    notes = bench_pairs_note(found).split("\n")
    head = "Rendered from peers.json, which `linnet bench peers --out` writes.\n\n" + notes[0]
    rest = "".join(f"- {note}\n" for note in notes[1:])
    return f"# linnet beside public implementations\n\n{head}\n\n{bench_pairs_table(found).to_markdown()}\n\n{rest}"
