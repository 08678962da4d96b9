"""LLN+Diag (arXiv 2311.13541): Linear Log-Normal attention and softmax inside blocks, in parallel on the same q, k, v.

The block-diagonal branch restores the short range that LLN dilutes. The paper averages the two branches; its released
code can also learn a weight for each head and channel. Positions turn the q and k of both branches.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from linnet.attention.base import Core
from linnet.attention.cut import grid_cut_hurdle
from linnet.attention.diag import DiagAttention, DiagOptions
from linnet.attention.lln import LlnAttention, LlnOptions
from linnet.attention.relative import RelativePositions
from linnet.errors import InputError, UnsupportedError
from linnet.ops.cut import CutLayout
from linnet.ops.exp_block import exp_block_mean
from linnet.ops.masks import Layout
from linnet.ops.precision import State
from linnet.ops.rules import ExpRule
from linnet.registry import ATTENTION


class LlnDiagOptions(LlnOptions):
    """`block`: None is the head width. `mix`: the mean, r LLN + p Diag, or r LLN + (1 - r) Diag."""

    block: Annotated[int, Field(ge=1, le=2**20)] | None = None
    mix: Literal["average", "scale", "ratio"] = "average"


@ATTENTION.add("lln_diag")
class LlnDiagAttention(Core):
    """LLN and block softmax in parallel."""

    what = "lln and softmax inside blocks, in parallel"
    paper = "Linear Log-Normal Attention with Unbiased Concentration, ICLR 2024, arXiv 2311.13541"
    cost = "N D^2"
    Options = LlnDiagOptions
    options: LlnDiagOptions

    def __init__(self, heads: int, head_dim: int, causal: bool, options: LlnDiagOptions) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.lln = LlnAttention(heads, head_dim, causal, LlnOptions(statistics=options.statistics, match=options.match))
        self.positions = RelativePositions(options.positions, head_dim)
        blocks = DiagOptions(block=options.block or head_dim, positions="none")
        self.diag = DiagAttention(heads, head_dim, causal, blocks)
        self.state_types = (*self.lln.state_types, *self.diag.state_types)
        if options.mix != "average":
            self.r = nn.Parameter(torch.full((1, heads, 1, head_dim), 0.5))
        if options.mix == "scale":
            self.p = nn.Parameter(torch.full((1, heads, 1, head_dim), 0.5))

    def cut_hurdle(self) -> str:
        return self.lln.cut_hurdle() or self.diag.cut_hurdle() or grid_cut_hurdle(self.relative)

    def check_recurrent(self) -> None:
        super().check_recurrent()
        self.lln.check_recurrent()

    @property
    def has_weights(self) -> bool:
        return self.options.mix == "average"

    def _no_weights(self) -> UnsupportedError:
        return UnsupportedError(f"lln_diag: mix={self.options.mix!r} weighs each channel: no single matrix exists")

    def _mix(self, far: Tensor, near: Tensor) -> Tensor:
        """The two branches combined."""
        if self.options.mix != "average" and far.shape[3] != self.head_dim:
            raise InputError(f"v has width {far.shape[3]}: mix={self.options.mix!r} was built for {self.head_dim}")
        if self.options.mix == "average":
            return (far + near) / 2  # M15
        if self.options.mix == "scale":
            return self.r.to(far.dtype) * far + self.p.to(far.dtype) * near
        return near + self.r.to(far.dtype) * (far - near)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        q, k = self.positions(where.position, q, k)
        if self.options.mix == "average" and not isinstance(where, CutLayout):
            alpha, beta, _ = self.lln.scales(q, k, causal, where)
            o = exp_block_mean(q, k, v, where, self.diag.options.block, ExpRule(causal, alpha, beta))  # M15
            if o is not None:
                return o
        far = self.lln.attend(q, k, v, where, causal)
        return self._mix(far, self.diag.attend(q, k, v, where, causal))

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        if not self.has_weights:
            raise self._no_weights()
        q, k = self.positions(where.position, q, k)
        far = self.lln.dense(q, k, where, causal)
        return self._mix(far, self.diag.dense(q, k, where, causal))

    def rows(self, q: Tensor, k: Tensor, start: int, stop: int) -> Tensor:
        if not self.has_weights:
            raise self._no_weights()
        q, k = self.positions(torch.arange(q.shape[2], device=q.device), q, k)
        return self._mix(self.lln.rows(q, k, start, stop), self.diag.rows(q, k, start, stop))

    def extend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, state: State | None) -> tuple[Tensor, State]:
        """The state: the two tensors of `lln`, then the four of `diag`, of which the last counts positions."""
        q, k = self.positions(where.after(None if state is None else state[-1]).position, q, k)
        far, after_far = self.lln.extend(q, k, v, where, None if state is None else state[:2])
        near, after_near = self.diag.extend(q, k, v, where, None if state is None else state[2:])
        return self._mix(far, near), (*after_far, *after_near)

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        return self.lln.state_shapes(B, E) + self.diag.state_shapes(B, E)

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        q, k = self.positions(state[-1][:, None], q, k)
        far, after_far = self.lln.quick_step(q, k, v, state[:2]) or self.lln.advance(q, k, v, state[:2])
        near, after_near = self.diag.advance(q, k, v, state[2:])
        return self._mix(far, near), (*after_far, *after_near)
