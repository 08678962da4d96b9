"""The bounds that benchmarks must reach: each bound, the measurement, and the verdict."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from linnet.bench.tables import Result, Row, bench_table_exponent, pick_bench_rows
from linnet.figures.table import Table

BOTH = "forward+backward"
FLOOR = 4  # tensors that forward and backward must hold besides the inputs: o and three gradients
STEP = 12.0  # microseconds


class _Bound(NamedTuple):
    """One bound and its measurement; `reached` is None if nothing was measured."""

    what: str
    wanted: str
    measured: str
    reached: bool | None


def bench_bounds_table(results: Mapping[str, Result]) -> Table:
    """All bounds of the given benchmarks."""
    words = {True: "reached", False: "not reached", None: "not measured"}
    lines = [[b.what, b.wanted, b.measured, words[b.reached]] for b in bench_bounds(results)]
    return Table("what it must show", ["what", "bound", "measured", "verdict"], lines, ("what", "verdict"))


def bench_bounds(results: Mapping[str, Result]) -> list[_Bound]:
    """The bounds of the given benchmarks."""
    found: list[_Bound] = []
    if "ops" in results:
        found += _against_others(results["ops"]) + _against_limits(results["ops"]) + _lln(results["ops"])
        found += _exponents(results["ops"])
    if "model" in results:
        found.append(_training(results["model"]))
    if "decode" in results:
        found += _decoding(results["decode"])
    return found


def _row(result: Result, accept: Callable[[Row], bool], batch: int, tokens: int, **wanted: str) -> Row | None:
    """The fastest measured row that `accept` allows."""
    rows = [
        row for row in pick_bench_rows(result, batch=batch, tokens=tokens, **wanted) if "seconds" in row and accept(row)
    ]
    return min(rows, key=lambda row: row["seconds"], default=None)


def _linear(row: Row) -> bool:
    return row["case"].startswith("linear_attention,")


def _named(name: str) -> Callable[[Row], bool]:
    return lambda row: row["case"] == name


def _faster(what: str, least: float, ours: Row | None, theirs: Row | None) -> _Bound:
    """A lower bound on our speed relative to theirs."""
    wanted = f"at least {least:g}x"
    if ours is None or theirs is None:
        return _Bound(what, wanted, "-", None)
    ratio = theirs["seconds"] / ours["seconds"]
    return _Bound(what, wanted, f"{ratio:.2f}x ({ours['case']} against {theirs['case']})", ratio >= least)


def _most(what: str, most: float, value: float | None, shown: str = "{:.2f}", unit: str = "") -> _Bound:
    """An upper bound."""
    measured = "-" if value is None else shown.format(value) + unit
    return _Bound(what, f"at most {most:g}{unit}", measured, None if value is None else value <= most)


def _against_others(ops: Result) -> list[_Bound]:
    found = []
    causal = {"form": "causal", "pass": BOTH}
    for tokens, least in ((512, 2.5), (1024, 2.5), (2048, 2.5), (8192, 4.0)):
        peer = _row(ops, lambda row: row["group"] == "peer", 4, tokens, **causal)
        what = f"causal linear attention against the fastest peer, N = {tokens:,}"
        found.append(_faster(what, least, _row(ops, _linear, 4, tokens, **causal), peer))
    for tokens, least in ((2048, 3.0), (8192, 4.0)):
        chunks = _row(ops, _named("batched chunks"), 4, tokens, **causal)
        what = f"causal linear attention against batched chunks, N = {tokens:,}"
        found.append(_faster(what, least, _row(ops, _linear, 4, tokens, **causal), chunks))
    return found


def _against_limits(ops: Result) -> list[_Bound]:
    H, D = ops["settings"]["heads"], ops["settings"]["head_dim"]
    shares = _Bound("share of the matrix product's speed, causal forward, N = 8,192", "at least 55%", "-", None)
    forward = _row(ops, _linear, 4, 8192, form="causal", **{"pass": "forward"})
    if forward is not None:
        part, done = (n / forward["seconds"] / forward["gemm"] for n in (forward["flops"], 4 * D * D * H * 4 * 8192))
        measured = f"{part:.0%} of the useful operations; {done:.0%} of 4 D^2 alone"  # a kernel can avoid the others
        shares = shares._replace(measured=measured, reached=part >= 0.55)
    both = _row(ops, _linear, 4, 4096, form="causal", **{"pass": BOTH})
    memory = None if both is None else both["memory"] / (FLOOR * 4 * 4 * H * 4096 * D)
    return [shares, _most("memory of causal forward+backward over its floor, N = 4,096", 1.05, memory, unit="x")]


def _lln(ops: Result) -> list[_Bound]:
    found = []
    where = {"form": "bidirectional", "pass": BOTH}
    for name in ("lln", "lln_diag"):
        for tokens, least in ((2048, 3.0), (8192, 4.0)):
            ours = _row(ops, _named(name), 4, tokens, **where)
            theirs = _row(ops, _named(f"{name} as released"), 4, tokens, **where)
            found.append(_faster(f"{name} against the released formula, N = {tokens:,}", least, ours, theirs))
            ratio = ours["memory"] / theirs["memory"] if ours and theirs else None
            found.append(_most(f"memory of {name} against the released formula, N = {tokens:,}", 0.5, ratio, unit="x"))
    return found


def _exponents(ops: Result) -> list[_Bound]:
    found = []
    lln = _named("lln")
    series = ("linear attention", _linear, "causal"), ("lln", lln, "causal"), ("lln", lln, "bidirectional")
    for name, accept, form in series:
        title = f"{name}, {form}"
        rows = [row for row in pick_bench_rows(ops, batch=1, form=form, **{"pass": BOTH}) if accept(row)]
        rows = [row for row in rows if row["tokens"] >= 4096]
        timed = [row for row in rows if "seconds" in row]
        fastest = min(timed, key=lambda row: (-row["tokens"], row["seconds"]), default=None)  # at the longest length
        own = [row for row in timed if fastest is not None and row["case"] == fastest["case"]]
        for key, most in (("seconds", 1.10), ("memory", 1.02)):
            what = f"exponent of {'time' if key == 'seconds' else 'memory'} against N, {title}"
            found.append(_most(what, most, bench_table_exponent(own, key), "{:.3f}"))
    return found


def _training(model: Result) -> _Bound:
    ours, vanilla = (
        _row(model, _named(name), 32, 2048, table="model", **{"pass": "train"})
        for name in ("transnormer_t2", "softmax")
    )
    return _faster("training step of TransNormer T2 against softmax, N = 2,048, batch 32", 4.0, ours, vanilla)


def _decoding(decode: Result) -> list[_Bound]:
    found = []
    for name in ("norm", "elu", "lln"):
        near, far = (_row(decode, _named(name), 1, tokens, table="core") for tokens in (1024, 65536))
        ratio = far["seconds"] / near["seconds"] if near and far else None
        found.append(_most(f"step of {name} at context 65,536 against 1,024", 1.05, ratio, unit="x"))
        step = near["seconds"] * 1e6 if near else None
        found.append(_most(f"step of {name}, batch 1", STEP, step, "{:.1f}", " us"))
    return found
