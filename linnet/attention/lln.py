"""Linear Log-Normal attention (arXiv 2311.13541): exponential features whose spread is matched to softmax.

o_t = sum_s A_ts v_s / sum_s A_ts with A_ts = sum_c e^(alpha q_tc + beta k_sc). alpha and beta give ln A the variance
of softmax scores, sigma_q^2 sigma_k^2. They carry no gradient and are not stored in a buffer.
Positions turn q and k before the feature map, so weights then depend on both positions, not on their difference alone.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from linnet.attention.features import LogFeatureCore, LogFeatures
from linnet.attention.relative import Positions, RelativePositions
from linnet.config import Settings
from linnet.errors import UnsupportedError
from linnet.ops.cpu.decode import Mechanism, Stepper
from linnet.ops.cut import CutLayout, add_moments_of_cut
from linnet.ops.exponential import exponential_moments
from linnet.ops.masks import Layout, clear_masked
from linnet.ops.precision import State, accumulator_precision
from linnet.registry import ATTENTION

RELEASED_A, RELEASED_B = 0.14855178144710912, -0.35487039130661086  # the constants of the paper's released code
# Var(ln A) = c2 x^2 + c1 x + c0 with x = 2 sigma~^2, measured along rows, for head widths 16 to 256.
MEASURED = {
    16: (0.000882, 0.18560, -0.3421),
    32: (0.000619, 0.15865, -0.4260),
    64: (0.000535, 0.13920, -0.4888),
    128: (0.000452, 0.12503, -0.5469),
    256: (0.000344, 0.11339, -0.6200),
}
SMALLEST = 1e-4  # deviations are at least this, so that constant input gives finite features


class LlnOptions(Settings):
    """Which tokens the deviations cover (None: "prefix" if causal, else "sample"), and the curve to match.

    `positions` turns q and k.
    """

    statistics: Literal["sample", "prefix", "tensor"] | None = None
    match: Literal["variance", "paper"] = "variance"
    positions: Positions = "none"


class _Moments(NamedTuple):
    """Count, sum and sum of squares of the entries seen so far, (B,H) or (B,H,N) each, in float64."""

    n: Tensor
    total: Tensor
    square: Tensor

    def deviation(self) -> Tensor:
        """The unbiased standard deviation."""
        variance = (self.square - self.total.square() / self.n.clamp(min=1)) / (self.n - 1).clamp(min=1)
        return variance.clamp(min=0).sqrt().clamp(min=SMALLEST)


def _matched_deviation(target: Tensor, D: int, match: str) -> Tensor:
    """sigma~, the deviation of scaled queries and keys that gives ln A the variance `target`."""
    if match == "paper":
        return ((target - RELEASED_B) / (2 * RELEASED_A)).sqrt()  # M13
    c2, c1, c0 = interpolated_lln_coefficients(D)
    x = (-c1 + (c1 * c1 - 4 * c2 * (c0 - target)).sqrt()) / (2 * c2)  # M14
    return (x / 2).sqrt()


def interpolated_lln_coefficients(D: int) -> tuple[float, float, float]:
    """The measured coefficients for head width D, interpolated in log2 D and clamped outside 16 to 256."""
    place = min(max(math.log2(D), 4.0), 8.0)
    low = min(int(place), 7)
    share = place - low
    c2, c1, c0 = ((1 - share) * a + share * b for a, b in zip(MEASURED[2**low], MEASURED[2 ** (low + 1)], strict=True))
    return c2, c1, c0


def _per_token(x: Tensor, where: Layout, whole: bool = False) -> _Moments:
    """The moments of each token's own entries, 0 where masked: (B,H,N) each. `whole` allows sums over all, (B,H,1)."""
    x = x.detach()
    B, H, N, D = x.shape
    sums = exponential_moments(x, where.real, whole)
    if sums is not None and whole:
        n = torch.full((B, 1), N, device=x.device) if where.real is None else where.real.sum(dim=1, keepdim=True)
        return _Moments((n * D).double()[:, None].expand(B, H, 1), *sums)
    count = x.new_full((B, H, N), D, dtype=torch.float64)
    if where.real is not None:
        count = count * where.real[:, None]
    if sums is not None:
        return _Moments(count, *sums)
    (x,) = clear_masked(where.real, x)
    square = torch.linalg.vector_norm(x, dim=3, dtype=torch.float64).square()
    return _Moments(count, x.sum(dim=3, dtype=torch.float64), square)


def _over_prefix(x: Tensor, where: Layout) -> Tensor:
    """Sums of x (B,H,N) over the tokens of the same run up to each token."""
    if where.run is None:
        return x.cumsum(dim=2)
    run, reach = where.run[:, None], 1
    while reach < x.shape[2]:  # each round doubles the tokens in a sum; runs never mix
        same = run[:, :, reach:] == run[:, :, :-reach]
        x = torch.cat([x[:, :, :reach], x[:, :, reach:] + torch.where(same, x[:, :, :-reach], 0)], dim=2)
        reach *= 2
    return x


def _over_run(x: Tensor, where: Layout) -> Tensor:
    """Sums of x (B,H,N) over all tokens of the same run, for each token."""
    if where.run is None:
        return x.sum(dim=2, keepdim=True)
    run = where.run[:, None].expand(x.shape)
    return torch.zeros_like(x).scatter_add(2, run, x).gather(2, run)


@ATTENTION.add("lln")
class LlnAttention(LogFeatureCore):
    """Exponential features, moment matched to softmax."""

    what = "exponential features, matched in log-variance to softmax"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    cost = "N D^2"
    Options = LlnOptions
    options: LlnOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: LlnOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        if causal and options.statistics == "sample":
            raise UnsupportedError("lln: statistics='sample' reads the future: causal=True allows 'prefix' or 'tensor'")
        self.positions = RelativePositions(options.positions, head_dim)
        self.state_types = ("sum", "moment") + ("count",) * self.counted
        curve = (0.0, RELEASED_A, RELEASED_B) if options.match == "paper" else interpolated_lln_coefficients(head_dim)
        if options.statistics != "tensor":
            self.stepper = Stepper(Mechanism("exp", ("Szm", "moments"), curve=curve), heads, head_dim)

    def check_recurrent(self) -> None:
        super().check_recurrent()
        if self.options.statistics == "tensor":
            raise UnsupportedError("lln: statistics='tensor' reads all tokens, so it cannot prefill or step")

    def cut_hurdle(self) -> str:
        if self.options.statistics == "tensor":
            return "statistics='tensor' reads the padding too"
        return super().cut_hurdle()

    def scales(
        self, q: Tensor, k: Tensor, causal: bool, where: Layout, past: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """alpha, beta, and the moments up to the last real token (B,H,6); `past` holds those before the first."""
        statistics = self.options.statistics or ("prefix" if causal else "sample")
        if causal and statistics == "sample":
            raise UnsupportedError("lln: statistics='sample' reads the future: causal=True allows 'prefix' or 'tensor'")
        across = statistics == "prefix" and not causal and where.queries is not None
        whole = statistics == "tensor" or (statistics == "sample" and where.run is None)
        sides = (q, where.of_queries), (k, where)
        parts = [(moment, side) for x, side in sides for moment in _per_token(x, side, whole)]
        if statistics == "tensor":
            kept = torch.stack([part.sum(dim=2) for part, _ in parts], dim=-1)
            sums = [part.sum() for part, _ in parts]
        else:
            reach = [_over_prefix if statistics == "prefix" else _over_run] * 6
            reach[3:] = [_over_run] * 3 if across else reach[3:]
            sums = [over(part, side) for over, (part, side) in zip(reach, parts, strict=True)]
            if past is not None:
                sums = [part + before for part, before in zip(sums, past[:, :, None].unbind(dim=3), strict=True)]
            if isinstance(where, CutLayout):
                sums = list(add_moments_of_cut(where, torch.stack(sums, dim=-1), statistics == "prefix").unbind(dim=3))
            kept = torch.stack([part[:, :, -1] for part in sums], dim=-1)
        sigma_q, sigma_k = _Moments(*sums[:3]).deviation(), _Moments(*sums[3:]).deviation()
        matched = _matched_deviation((sigma_q * sigma_k).square(), self.head_dim, self.options.match)
        of_q = of_k = matched
        if across:  # beta must not depend on the queries, or an early query would read a later one
            of_k = _matched_deviation(sigma_k.pow(4), self.head_dim, self.options.match)
            of_q = (2 * matched.square() - of_k.square()).clamp(min=0).sqrt()
        wide = accumulator_precision(q.dtype)
        alpha, beta = ((of / sigma).to(wide)[..., None] for of, sigma in ((of_q, sigma_q), (of_k, sigma_k)))  # M13, M14
        return alpha, beta, kept

    def log_features(self, q: Tensor, k: Tensor, where: Layout, causal: bool, past: State = ()) -> LogFeatures:
        q, k = self.turned(q, k, where)
        alpha, beta, moments = self.scales(q, k, causal, where, *past)
        return LogFeatures(q.to(alpha.dtype), k.to(alpha.dtype), alpha, beta, (moments,))

    def _pack(self, sums: State, kept: State) -> State:
        """S, z and m side by side (B,H,D*(E+2)), and the six moments of queries and keys (B,H,6)."""
        S, z, m = sums
        return torch.cat([S.flatten(2), z, m], dim=2), *kept

    def _unpack(self, state: State) -> tuple[State, State]:
        D = self.head_dim
        S, z, m = state[0].split_with_sizes([state[0].shape[2] - 2 * D, D, D], dim=2)
        return (S.unflatten(2, (D, -1)), z, m), state[1:]

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        H, D = self.heads, self.head_dim
        shapes: list[tuple[int | None, ...]] = [(B, H, D * (E + 2)), (B, H, 6)]
        return shapes + [(B,)] * self.counted

    def quick_step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State] | None:
        return None if self.counted else super().quick_step(q, k, v, state)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        if self.counted and self.stepper is not None:  # its kernel reads q and k as they are, so they are turned first
            turned_q, turned_k = self.positions(state[-1][:, None], q, k)
            quick = self.stepper.step(turned_q, turned_k, v, state[:-1])
            if quick is not None:
                return quick[0], (*quick[1], state[-1] + 1)
        return super().advance(q, k, v, state)
