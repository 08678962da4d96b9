"""Mechanisms whose weights are products of features: each defines its feature map, and the rest follows from it.

`FeatureCore` takes the features themselves, `LogFeatureCore` their logarithms. A state holds the sums over the keys,
then what the mechanism adds, and last, where features depend on positions, the number of positions so far.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from linnet.attention.base import Core
from linnet.attention.cut import grid_cut_hurdle
from linnet.attention.relative import RelativePositions
from linnet.attention.rows import Kernel, exponential_rows
from linnet.config import Settings
from linnet.ops import reference
from linnet.ops.cut import attend_cut_exponentially, attend_cut_linearly
from linnet.ops.features import EluFeatures
from linnet.ops.masks import Layout, layout_of_masks
from linnet.ops.precision import EPS, State, accumulator_precision
from linnet.ops.rules import ExpRule, Features, LinearRule


def turned_features(phi: str, positions: RelativePositions, where: Layout) -> Features:
    """elu or 1+elu, then positions that are no multiples of one number, which the kernels do not make themselves."""
    plain = EluFeatures(phi)

    def features(x: Tensor) -> Tensor:
        return positions(where.position, plain(x))[0]

    return features


class FeatureCore(Core):
    """A_ts = phi(q_t) . phi(k_s), divided by its sum over the visible s where `normalize`."""

    normalize: bool = True
    cross = True
    counted: bool = False  # features depend on positions, so that a state counts them
    wide: bool = False  # half precision is widened before the feature map

    def __init__(self, heads: int, head_dim: int, causal: bool, options: Settings) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.state_types = ("sum",) * (1 + self.normalize) + ("count",) * self.counted

    def features(self, where: Layout) -> Features:
        """The feature map for tokens with the layout `where`: (B,H,N,D) -> (B,H,N,F)."""
        raise NotImplementedError

    def cut_hurdle(self) -> str:
        """None but a grid of positions: S and z of each rank add up."""
        return grid_cut_hurdle(self.relative)

    @property
    def feature_width(self) -> int:
        """F."""
        return self.head_dim

    def _wide(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(x.to(accumulator_precision(x.dtype)) for x in tensors) if self.wide else tensors

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        return self._sum(q, k, v, where, causal)[0]

    def _sum(
        self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool, state: State | None = None
    ) -> tuple[Tensor, State]:
        """The weighted sum of the values, and the state of `linear_attention`."""
        rule = LinearRule(causal, self.normalize, self.features(where))
        q, k, v = self._wide(q, k, v)
        return attend_cut_linearly(q, k, v, where, rule, state)

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        phi = self.features(where)
        phi_q, phi_k = (phi(x) for x in self._wide(q, k))
        A = reference.reference_linear_weights(phi_q, phi_k, where, causal)  # M1
        return A / A.sum(dim=-1, keepdim=True).clamp(min=EPS) if self.normalize else A  # M10

    def kernel(self, q: Tensor, k: Tensor) -> Kernel:
        phi = self.features(layout_of_masks(q.shape[0], q.shape[2], None, None, q.device))
        return Kernel(phi(q.double()), phi(k.double()), self.normalize)

    def extend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, state: State | None) -> tuple[Tensor, State]:
        """The state: S, z where normalized, and the number of positions (B,) where features depend on them."""
        if not self.counted:
            return self._sum(q, k, v, where, True, state)
        sums, start = (None, None) if state is None else (state[:-1], state[-1])
        where = where.after(start)
        o, after = self._sum(q, k, v, where, True, sums)
        return o, (*after, where.lengths(len(q)))

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        S = state[0]
        if self.counted:
            where = Layout(None, None, state[-1][:, None], state[-1] + 1)
        else:
            where = layout_of_masks(len(q), 1, None, None, q.device)
        phi = self.features(where)
        phi_q, phi_k = (phi(x).to(S.dtype) for x in self._wide(q, k))
        S = torch.addcmul(S, phi_k.mT, v.to(S.dtype))  # (B, H, D, E)  M8
        o, after = phi_q @ S, [S]
        if self.normalize:
            z = state[1] + phi_k.squeeze(2)
            o = o / (phi_q @ z[..., None]).clamp(min=EPS)  # M10
            after.append(z)
        if self.counted:
            after.append(where.lengths(len(q)))
        return o, tuple(after)

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        H, F = self.heads, self.feature_width
        shapes: list[tuple[int | None, ...]] = [(B, H, F, E), (B, H, F)]
        return shapes[: 1 + self.normalize] + [(B,)] * self.counted


class LogFeatures(NamedTuple):
    """ln phi(q) = alpha q and ln phi(k) = beta k, or q and k themselves where alpha and beta are None."""

    q: Tensor
    k: Tensor
    alpha: Tensor | None = None
    beta: Tensor | None = None
    kept: State = ()  # what a state holds besides S, z and m

    def products(self) -> tuple[Tensor, Tensor]:
        """The logarithms as tensors."""
        if self.alpha is None or self.beta is None:
            return self.q, self.k
        return self.alpha * self.q, self.beta * self.k


class LogFeatureCore(Core):
    """A_ts = phi(q_t) . phi(k_s) divided by its sum over the visible s, with phi given by its logarithm.

    The exponential of a turned vector is not a turned exponential, so positions turn q and k before the feature map.
    """

    def __init__(self, heads: int, head_dim: int, causal: bool, options: Settings) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.positions = RelativePositions("none", head_dim)  # a mechanism with positions has its own

    @property
    def counted(self) -> bool:
        """Whether features depend on positions, so the state must count them."""
        return self.positions.kind != "none"

    def cut_hurdle(self) -> str:
        """None but a grid of positions: S, z and the largest keys of each rank join."""
        return grid_cut_hurdle(self.relative)

    def turned(self, q: Tensor, k: Tensor, where: Layout) -> tuple[Tensor, ...]:
        """q and k in float32 or wider, turned by position; q and k themselves without positions."""
        if not self.counted:
            return q, k
        return self.positions(where.position, *(x.to(accumulator_precision(x.dtype)) for x in (q, k)))

    cross = True

    def log_features(self, q: Tensor, k: Tensor, where: Layout, causal: bool, past: State = ()) -> LogFeatures:
        """The logarithms in float32 or wider; `past` is what a state keeps besides S, z and m."""
        raise NotImplementedError

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        return self._sum(self.log_features(q, k, where, causal), v, where, causal)[0]

    def _sum(
        self, phi: LogFeatures, v: Tensor, where: Layout, causal: bool, state: State | None = None
    ) -> tuple[Tensor, State]:
        """The weighted mean of the values, and the state of `exp_attention`."""
        rule = ExpRule(causal, phi.alpha, phi.beta)
        return attend_cut_exponentially(phi.q, phi.k, v.to(phi.q.dtype), where, rule, state)

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        return reference.reference_exp_weights(*self.log_features(q, k, where, causal).products(), where, causal)  # M11

    def kernel(self, q: Tensor, k: Tensor) -> Kernel:
        where = layout_of_masks(q.shape[0], q.shape[2], None, None, q.device)
        return exponential_rows(*self.log_features(q.double(), k.double(), where, self.causal).products())

    def extend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, state: State | None) -> tuple[Tensor, State]:
        """The state: the sums, what the features keep, and the number of positions (B,) where they matter."""
        if self.counted:
            state, start = (None, None) if state is None else (state[:-1], state[-1])
            where = where.after(start)
        sums, past = (None, ()) if state is None else self._unpack(state)
        phi = self.log_features(q, k, where, True, past)
        o, after = self._sum(phi, v, where, True, sums)
        return o, (*self._pack(after, phi.kept), *([where.lengths(len(q))] if self.counted else ()))

    def _pack(self, sums: State, kept: State) -> State:
        """A state of S, z and m and of what the features keep."""
        return *sums, *kept

    def _unpack(self, state: State) -> tuple[State, State]:
        """S, z and m, and what the features keep."""
        return state[:3], state[3:]
