"""Compute a few rows of the attention weights at a time, for texts that are too long for the whole matrix."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from linnet.ops.masks import Layout, layout_of_masks

LARGEST = 300.0  # the logarithm of the largest score, so that sums of scores stay finite


class Kernel(NamedTuple):
    """Features in float64: A_ts = phi_q_t . phi_k_s for visible s, divided by its sum over s where `divided`."""

    phi_q: Tensor  # (B, H, N, F)
    phi_k: Tensor
    divided: bool


class _Weighing(Protocol):
    """The interface of a core that the rows need."""

    causal: bool

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor: ...

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor: ...

    def kernel(self, q: Tensor, k: Tensor) -> Kernel | None: ...


def weight_rows(core: _Weighing, q: Tensor, k: Tensor, start: int, stop: int) -> Tensor:
    """Rows `start` to `stop` of a core's weights, (B,H,stop-start,N), for an unpadded batch.

    Without features, the rows are the gradient of the output with respect to the values, which every mechanism has.
    """
    B, H, N, _ = q.shape
    features = core.kernel(q, k)
    if features is not None:
        return kernel_rows(features, core.causal, start, stop)
    where = layout_of_masks(B, N, None, None, q.device)
    if stop - start == N:
        return core.dense(q, k, where, core.causal)
    v = q.new_zeros(B, H, N, stop - start, requires_grad=True)
    with torch.enable_grad():
        o = core.attend(q.detach(), k.detach(), v, where, core.causal)
    chosen = torch.zeros_like(o)
    chosen[:, :, start:stop] = torch.eye(stop - start, dtype=o.dtype, device=o.device)
    return torch.autograd.grad(o, v, chosen)[0].mT


def exponential_rows(log_q: Tensor, log_k: Tensor) -> Kernel:
    """Features e^log_q and e^log_k, (B,H,N,F), that neither overflow nor vanish.

    The largest key of a channel moves to its queries, and a row whose scores leave e^-300 to e^300 is scaled.
    """
    most = log_k.amax(dim=2, keepdim=True)
    log_q = log_q + most
    row = log_q.amax(dim=3, keepdim=True)
    return Kernel((log_q - row + row.clamp(-LARGEST, LARGEST)).exp(), (log_k - most).exp(), divided=True)


def kernel_rows(kernel: Kernel, causal: bool, start: int, stop: int) -> Tensor:
    """Rows `start` to `stop` of the weights, from features."""
    A = kernel.phi_q[:, :, start:stop] @ kernel.phi_k.mT
    if causal:
        A = torch.where(visible_past_of_rows(start, stop, A.shape[3], A.device), A, 0)
    total = A.sum(dim=-1, keepdim=True)
    return A / total.masked_fill(total == 0, 1) if kernel.divided else A


def visible_past_of_rows(start: int, stop: int, N: int, device: torch.device) -> Tensor:
    """Which of N keys the queries `start` to `stop` of a causal row see: (stop-start, N)."""
    return torch.arange(N, device=device) <= torch.arange(start, stop, device=device)[:, None]
