"""The contract of an attention, as a function that anyone can run on their own: `check_attention(fn)`.

It checks that an attention equals its dense definition, in values and gradients, and never reads the future; that
padding, packing and the rest of the batch do not change a result; that the recurrent form equals the parallel one; that
queries of another sequence see the keys as the definition says; and that half precision is finite and calls repeatable.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from linnet.attention.base import Core, Mixer, create_mixer
from linnet.errors import InputError, LinnetError, UnsupportedError, unknown_name_error

LENGTHS = (1, 7, 63, 64, 100, 257)
ACROSS = ((1, 9), (9, 1), (40, 100), (100, 40), (64, 64))  # lengths of queries and of keys in cross-attention
HALF = {torch.bfloat16: 0.02, torch.float16: 0.005}  # how far a mixer in half precision may be from float32


@dataclass(frozen=True)
class Check:
    """One check: the largest deviation measured, and the largest allowed."""

    name: str
    worst: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.worst <= self.bound  # a NaN fails

    def __str__(self) -> str:
        return f"{'ok  ' if self.passed else 'FAIL'} {self.name}: {self.worst:.2e} (allowed {self.bound:.0e})"


@dataclass
class Report:
    """The checks, in the order in which they ran."""

    name: str
    causal: bool
    lengths: tuple[int, ...]  # the requested lengths that the attention accepts
    checks: list[Check] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def __getitem__(self, name: str) -> Check:
        found = {check.name: check for check in self.checks}
        if name not in found:
            raise unknown_name_error("check", name, found)
        return found[name]

    def __str__(self) -> str:
        form = "causal" if self.causal else "bidirectional"
        title = f"{self.name}, {form}, {', '.join(map(str, self.lengths))} tokens"
        return "\n".join([title, *(f"  {check}" for check in self.checks)])


def check_attention(
    attention: str | Callable[..., Tensor],
    *,
    causal: bool | None = None,
    heads: int = 2,
    head_dim: int = 8,
    lengths: tuple[int, ...] = LENGTHS,
    compile: bool = False,
    raises: bool = True,
    options: dict[str, Any] | None = None,
) -> Report:
    """Check an attention against the contract; with `raises`, an AssertionError lists the failures.

    `attention` is a mechanism's name, a core, or any function o = f(q, k, v) on (B,H,N,D). A function is checked for
    padding if it takes `key_mask`, and for packing if it takes `segments`. `causal` defaults to the object's attribute.
    With a mechanism's name its mixer is compared with float32 in half precision, too.
    """
    mixer: Mixer | None = None
    if isinstance(attention, str):
        if causal is None:
            raise InputError("causal is None: give True or False with a mechanism's name")
        mixer = create_mixer(attention, width=heads * head_dim, heads=heads, causal=causal, **(options or {}))
        attention = mixer.core
    elif options is not None:
        raise InputError("options is given: only a mechanism chosen by name takes options")
    if not callable(attention):
        raise InputError(f"attention is a {type(attention).__name__}: it must be a name, a core or a function")
    if not isinstance(lengths, tuple | list) or not lengths or any(type(N) is not int or N < 1 for N in lengths):
        raise InputError(f"lengths is {lengths!r}: give a list of numbers of tokens, each at least 1")
    causal = bool(getattr(attention, "causal", False)) if causal is None else causal
    training = isinstance(attention, nn.Module) and attention.training
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            trial = _Trial(attention, causal, heads, head_dim, tuple(lengths))
            report = Report(trial.name, causal, trial.lengths)
            for name, bound, measure in trial.promises(compile):
                report.checks.append(Check(name, measure(), bound))
            if mixer is not None:
                report.checks.extend(_halves(mixer, trial.lengths[-1]))
    finally:
        if isinstance(attention, nn.Module):
            attention.train(training)
    if raises and not report.passed:
        raise AssertionError(str(report))
    return report


def contract_difference(a: Tensor, b: Tensor) -> float:
    """The largest difference, relative to the largest entry of `b`; infinite if anything is not finite."""
    if not (a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def _halves(mixer: Mixer, N: int) -> Iterator[Check]:
    """A mixer in half precision against float32, with the same rounded parameters and inputs."""
    for dtype, bound in HALF.items():
        half = copy.deepcopy(mixer).eval().to(dtype)
        x = torch.randn(2, N, mixer.width).to(dtype)
        with torch.no_grad():
            worst = contract_difference(half(x).float(), copy.deepcopy(half).float()(x.float()))
        yield Check(f"{str(dtype).removeprefix('torch.')} mixer differs from float32", worst, bound)


class _Trial:
    """One attention and the measurements that apply to it."""

    def __init__(
        self, fn: Callable[..., Tensor], causal: bool, heads: int, head_dim: int, lengths: tuple[int, ...]
    ) -> None:
        self.fn, self.causal, self.heads, self.head_dim, self.lengths = fn, causal, heads, head_dim, lengths
        self.core = fn if isinstance(fn, Core) else None
        if isinstance(fn, nn.Module):
            fn.eval()
        if self.core is not None:
            self.name, self.masks, self.packs = self.core.name, True, self.core.packed
            self.heads, self.head_dim = self.core.heads, self.core.head_dim
        else:
            try:
                known = set(inspect.signature(fn.forward if isinstance(fn, nn.Module) else fn).parameters)
            except ValueError:  # a C function has no signature, so it is not checked for masks
                known = set()
            self.name = getattr(fn, "__name__", type(fn).__name__)
            self.masks, self.packs = "key_mask" in known, "segments" in known
            self.lengths = self._lengths_that_run()

    def promises(self, compile: bool) -> Iterator[tuple[str, float, Callable[[], float]]]:
        """Yield (name, bound, measurement) of each check that applies."""
        if self.core is not None and self.core.has_weights:
            yield "equals its definition, float64", 1e-10, lambda: self.definition(torch.float64)
            yield "equals its definition, float32", 1e-5, lambda: self.definition(torch.float32)
            yield "gradients equal the definition's", 1e-9, self.gradients
        if self.causal and max(self.lengths) > 1:
            yield "reads the future", 0.0, self.future
        yield "reads batch mates", 1e-6, self.batch_mates
        if self.masks:
            yield "padding changes the result", 1e-6, self.padding
        if self.packs:
            yield "packing changes the result", 1e-6, self.packing
        if self.recurs():
            yield "recurrent form differs", 1e-5, self.recurrence
        if self.core is not None and self.crosses(self.core):
            yield "cross-attention differs from its definition, float64", 1e-10, lambda: self.across(torch.float64)
            yield "cross-attention differs from its definition, float32", 1e-5, lambda: self.across(torch.float32)
            yield "gradients of cross-attention differ from the definition's", 1e-10, self.across_gradients
            yield "cross-attention reads masked keys or batch mates", 1e-6, self.across_rows
            yield "shared heads differ from repeated ones", 1e-6, self.shared_heads
        if max(self.lengths) > 1:
            yield "no gradient reaches the inputs", 0.0, self.untrained
        yield "bfloat16 differs from float32", 0.1, self.half
        yield "a second call differs", 0.0, self.repeat
        if self.core is not None:
            yield "a reloaded copy differs", 0.0, self.reload
        if compile:
            yield "compiled form differs", 1e-6, self.compiled

    def recurs(self) -> bool:
        """Whether there is a recurrent form; an option may disable the one that the mechanism has."""
        if self.core is None or not (self.core.recurrent and self.causal):
            return False
        try:
            self.core.check_recurrent()
        except UnsupportedError:
            return False
        return True

    @staticmethod
    def crosses(core: Core) -> bool:
        """Whether queries may be another sequence than the keys; an option may forbid what the mechanism can do."""
        try:
            core.check_cross()
        except UnsupportedError:
            return False
        return not core.causal and core.has_weights

    def inputs(self, N: int, B: int = 2, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Random q, k, v."""
        return [torch.randn(B, self.heads, N, self.head_dim, dtype=dtype) for _ in range(3)]

    def _lengths_that_run(self) -> tuple[int, ...]:
        """The lengths that a foreign function accepts."""
        good, why = [], ""
        for N in self.lengths:
            q, k, v = self.inputs(N)
            try:
                o = self.fn(q, k, v)
            except (LinnetError, RuntimeError, AssertionError, ValueError, TypeError) as error:
                why = " ".join(str(error).split())
                continue
            if not isinstance(o, Tensor) or o.shape != v.shape:
                what = f"shape {tuple(o.shape)}" if isinstance(o, Tensor) else f"a {type(o).__name__}"
                raise InputError(f"{self.name} returns {what}: it must return the shape of v, {tuple(v.shape)}")
            good.append(N)
        if not good:
            raise InputError(f"{self.name} fails at all lengths {self.lengths}: {why}")
        return tuple(good)

    def typed(self, dtype: torch.dtype) -> Callable[..., Tensor]:
        """The attention with its parameters in `dtype`."""
        return copy.deepcopy(self.fn).to(dtype) if isinstance(self.fn, nn.Module) else self.fn

    def twin(
        self, core: Core, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None = None, ids: Tensor | None = None
    ) -> Tensor:
        """The output by the dense definition."""
        return core.finish(core.definition(q, k, v, core.layout(q, k, v, real, ids), core.causal))

    def masked(self, N: int) -> tuple[Tensor, Tensor | None]:
        """A key mask with some keys missing and, if supported, two segments."""
        real = torch.rand(2, N) > 0.2
        real[:, [0, N // 2, N - 1]] = True  # no padding at the ends of a segment
        return real, (torch.arange(N) >= N // 2).long().expand(2, N) if self.packs else None

    def definition(self, dtype: torch.dtype) -> float:
        core = self.typed(dtype)
        assert isinstance(core, Core)
        worst = 0.0
        with torch.no_grad():
            for N in self.lengths:
                q, k, v = self.inputs(N, dtype=dtype)
                worst = max(worst, contract_difference(core(q, k, v), self.twin(core, q, k, v)))
                real, ids = self.masked(N)
                both = core(q, k, v, real, ids), self.twin(core, q, k, v, real, ids)
                worst = max(worst, contract_difference(*(o.transpose(1, 2)[real] for o in both)))
        return worst

    def gradients(self) -> float:
        core = self.typed(torch.float64)
        assert isinstance(core, Core)
        worst = 0.0
        for N in self.lengths:
            inputs = [x.requires_grad_() for x in self.inputs(N, dtype=torch.float64)]
            leaves = [*inputs, *core.parameters()]
            q, k, v = inputs
            real, ids = self.masked(N)
            for masks, keep in (((None, None), torch.ones_like(real)), ((real, ids), real)):
                outputs = [core(q, k, v, *masks), self.twin(core, q, k, v, *masks)]
                g = torch.randn_like(outputs[0]) * keep[:, None, :, None]
                ours, theirs = (torch.autograd.grad(o, leaves, g) for o in outputs)
                least = 1e-5 * max(float(b.abs().max()) for b in theirs)  # a zero gradient may have rounding errors
                for a, b in zip(ours, theirs, strict=True):
                    worst = max(worst, float((a - b).abs().max()) / max(float(b.abs().max()), least, 1e-30))
        return worst

    def future(self) -> float:
        """Change the tokens from t on, once to huge ones: outputs before t must not change at all."""
        worst = 0.0
        with torch.no_grad():
            for N in self.lengths:
                q, k, v = self.inputs(N)
                whole = self.fn(q, k, v)
                for t in sorted({1, N // 4, N // 2, 3 * N // 4, N - 1} & set(range(1, N))):
                    for size in (1.0, 60.0):
                        later = [size * torch.randn_like(x[:, :, t:]) for x in (q, k, v)]
                        changed = [torch.cat([x[:, :, :t], y], dim=2) for x, y in zip((q, k, v), later, strict=True)]
                        worst = max(worst, contract_difference(self.fn(*changed)[:, :, :t], whole[:, :, :t]))
        return worst

    def batch_mates(self) -> float:
        """Compare every row of a batch with the same row alone."""
        worst = 0.0
        with torch.no_grad():
            for N in self.lengths:
                q, k, v = self.inputs(N, B=3)
                q[2], k[2], v[2] = 3 * q[2], 3 * k[2], 3 * v[2]
                together = self.fn(q, k, v)
                for b in range(3):
                    one = slice(b, b + 1)
                    worst = max(worst, contract_difference(self.fn(q[one], k[one], v[one]), together[one]))
        return worst

    def padding(self) -> float:
        """Compare rows padded on the left, on the right and on both sides, in one batch, with the same rows alone.

        The content of a masked token inside a row must not change the others either.
        """
        worst, lefts = 0.0, (5, 0, 67)
        with torch.no_grad():
            for N in self.lengths:
                q, k, v = self.inputs(N, B=3)
                alone = self.fn(q, k, v)
                wide = [x.new_full((3, self.heads, N + 70, self.head_dim), 7.0) for x in (q, k, v)]
                mask = torch.zeros(3, N + 70, dtype=torch.bool)
                for b, left in enumerate(lefts):
                    mask[b, left : left + N] = True
                    for x, y in zip(wide, (q, k, v), strict=True):
                        x[b, :, left : left + N] = y[b]
                padded = self.fn(*wide, key_mask=mask)
                for b, left in enumerate(lefts):
                    worst = max(worst, contract_difference(padded[b, :, left : left + N], alone[b]))
                worst = max(worst, self._holes(N))
        return worst

    def _holes(self, N: int) -> float:
        """The effect on real tokens of the content of masked tokens between them, and of the masks of other rows."""
        q, k, v = self.inputs(N, B=3)
        real = torch.rand(3, N) > 0.3
        real[:, [0, N - 1]] = True
        hole = ~real[:, None, :, None]
        once = self.fn(q, k, v, key_mask=real)
        again = self.fn(q, k.masked_fill(hole, 7.0), v.masked_fill(hole, 7.0), key_mask=real)
        worst = 0.0
        for b in range(3):
            one, keep = slice(b, b + 1), real[b]
            single = self.fn(q[one], k[one], v[one], key_mask=real[one])
            for o in (again[one], single):
                worst = max(worst, contract_difference(o[:, :, keep], once[one][:, :, keep]))
        return worst

    def packing(self) -> float:
        """Compare sequences packed into a row with the same sequences alone; each row has a different order."""
        sizes = [N for N in self.lengths if N <= 100]
        if not sizes:
            sizes = list(self.lengths[:1])
        with torch.no_grad():
            parts = [self.inputs(N) for N in sizes]
            apart = [self.fn(*part) for part in parts]
            order = [range(len(sizes)), range(len(sizes))[::-1]]  # in the first row and in the second
            rows = [[torch.cat([parts[i][x][b] for i in order[b]], dim=1) for b in (0, 1)] for x in range(3)]
            alone = torch.stack([torch.cat([apart[i][b] for i in order[b]], dim=1) for b in (0, 1)])
            counts = [torch.tensor([sizes[i] for i in order[b]]) for b in (0, 1)]
            ids = torch.stack([torch.repeat_interleave(torch.arange(len(sizes)), count) for count in counts])
            q, k, v = (torch.stack(x) for x in rows)
            return contract_difference(self.fn(q, k, v, segments=ids), alone)

    def recurrence(self) -> float:
        """Compare a prefill, a second, padded one from its state, and single steps with the parallel form."""
        core, worst = self.core, 0.0
        assert core is not None
        with torch.no_grad():
            for N in self.lengths:
                q, k, v = self.inputs(N)
                whole = core(q, k, v)
                first, second = max(1, N // 3), max(1, N - N // 4)
                o, state = core.prefill(q[:, :, :first], k[:, :, :first], v[:, :, :first])
                parts = [o]
                if second > first:
                    wide = [nn.functional.pad(x[:, :, first:second], (0, 0, 3, 2), value=7.0) for x in (q, k, v)]
                    mask = torch.zeros(2, second - first + 5, dtype=torch.bool)
                    mask[:, 3:-2] = True
                    o, state = core.prefill(wide[0], wide[1], wide[2], key_mask=mask, state=state)
                    parts.append(o[:, :, 3:-2])
                for t in range(max(first, second), N):
                    o, state = core.step(q[:, :, t : t + 1], k[:, :, t : t + 1], v[:, :, t : t + 1], state)
                    parts.append(o)
                worst = max(worst, contract_difference(torch.cat(parts, dim=2), whole))
        return worst

    def _sides(self, T: int, N: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q of T and k, v of N tokens, and a mask that hides keys of its rows on the left, on the right and inside."""
        q, k, v = (torch.randn(3, self.heads, n, self.head_dim, dtype=dtype) for n in (T, N, N))
        real, third = torch.ones(3, N, dtype=torch.bool), N // 3
        real[0, :third], real[1, N - third :], real[2, third : 2 * third] = False, False, False
        return q, k, v, real

    def _both(self, core: Core, q: Tensor, k: Tensor, v: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Cross-attention and its definition; every query counts, those beside masked keys, too."""
        where = core.layout(q, k, v, real, None, cross=True)
        return core.run(q, k, v, where, False), core.finish(core.definition(q, k, v, where, False))

    def across(self, dtype: torch.dtype) -> float:
        core, worst = self.typed(dtype), 0.0
        assert isinstance(core, Core)
        with torch.no_grad():
            for T, N in ACROSS:
                q, k, v, real = self._sides(T, N, dtype)
                worst = max(worst, *(contract_difference(*self._both(core, q, k, v, mask)) for mask in (None, real)))
        return worst

    def across_gradients(self) -> float:
        core, worst = self.typed(torch.float64), 0.0
        assert isinstance(core, Core)
        for T, N in ACROSS:
            q, k, v, real = self._sides(T, N, torch.float64)
            leaves = [*(x.requires_grad_() for x in (q, k, v)), *core.parameters()]
            outputs = self._both(core, q, k, v, real)
            g = torch.randn_like(outputs[0])
            ours, theirs = (torch.autograd.grad(o, leaves, g) for o in outputs)
            few = 1e-4 if N == 1 else 1e-5  # beside a single key the gradients of q and k are rounding errors
            least = few * max(float(b.abs().max()) for b in theirs)
            for a, b in zip(ours, theirs, strict=True):
                worst = max(worst, float((a - b).abs().max()) / max(float(b.abs().max()), least, 1e-30))
        return worst

    def across_rows(self) -> float:
        """Compare each row of a masked batch with the row alone, without its padding, and with other hidden keys."""
        core, worst = self.core, 0.0
        assert core is not None
        with torch.no_grad():
            for T, N in ACROSS:
                q, k, v, real = self._sides(T, N)
                where = core.layout(q, k, v, real, None, cross=True)
                together = core.run(q, k, v, where, False)
                hidden = ~real[:, None, :, None]
                other = core.run(q, k.masked_fill(hidden, 7.0), v.masked_fill(hidden, 7.0), where, False)
                worst = max(worst, contract_difference(other, together))
                for b in range(3):
                    kept = real[b] if b < 2 else torch.ones_like(real[b])  # the hole of the last row stays
                    own_q, own_k, own_v = q[b : b + 1], k[b : b + 1, :, kept], v[b : b + 1, :, kept]
                    where = core.layout(own_q, own_k, own_v, real[b : b + 1, kept], None, cross=True)
                    worst = max(
                        worst, contract_difference(core.run(own_q, own_k, own_v, where, False), together[b : b + 1])
                    )
        return worst

    def shared_heads(self) -> float:
        """Compare keys and values of fewer heads with the same ones, repeated; also where all lengths are equal."""
        core, worst = self.core, 0.0
        assert core is not None
        with torch.no_grad():
            for heads in (n for n in range(1, self.heads + 1) if self.heads % n == 0):
                for T, N in ACROSS:
                    q, k, v, real = self._sides(T, N)
                    k, v = k[:, :heads], v[:, :heads]
                    o = core(q, k, v, key_mask=real)
                    k, v = (x.repeat_interleave(self.heads // heads, dim=1) for x in (k, v))
                    where = core.layout(q, k, v, real, None, cross=heads < self.heads or T != N)
                    worst = max(worst, contract_difference(o, core.run(q, k, v, where, False)))
        return worst

    def untrained(self) -> float:
        """1 if neither q, k nor v gets a gradient; a function may use only one of them."""
        inputs = [x.requires_grad_() for x in self.inputs(max(self.lengths))]
        o = self.fn(*inputs)
        if not o.requires_grad:
            return 1.0
        gradients = torch.autograd.grad(o.square().sum(), inputs, allow_unused=True)
        return float(not any(g is not None and g.any() for g in gradients))

    def half(self) -> float:
        with torch.no_grad():
            N = self.lengths[-1]
            rounded = [x.bfloat16() for x in self.inputs(N)]
            try:
                o = self.typed(torch.bfloat16)(*rounded).float()
            except RuntimeError:
                return float("inf")
            return contract_difference(o, self.fn(*(x.float() for x in rounded)))

    def repeat(self) -> float:
        with torch.no_grad():
            q, k, v = self.inputs(self.lengths[-1])
            return contract_difference(self.fn(q, k, v), self.fn(q, k, v))

    def reload(self) -> float:
        """Compare with a new core that has only the saved parameters and buffers."""
        core = self.core
        assert core is not None
        fresh = type(core)(core.heads, core.head_dim, core.causal, core.options)
        fresh.load_state_dict(core.state_dict())
        with torch.no_grad():
            q, k, v = self.inputs(self.lengths[-1])
            return contract_difference(fresh.eval()(q, k, v), core(q, k, v))

    def compiled(self) -> float:
        worst = 0.0
        torch._dynamo.reset()
        compiled = torch.compile(self.fn, fullgraph=True, backend="aot_eager")
        for N in self.lengths[-2:]:
            inputs = [x.requires_grad_() for x in self.inputs(N)]
            outputs = [self.fn(*inputs), compiled(*inputs)]
            g = torch.randn_like(outputs[0])
            eager, traced = (torch.autograd.grad(o, inputs, g) for o in outputs)
            pairs = zip([outputs[0], *eager], [outputs[1], *traced], strict=True)
            worst = max(worst, *(contract_difference(b, a) for a, b in pairs))
        return worst
