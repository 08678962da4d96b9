"""Linear attention of elu features, which may be reflected and turned by position: what `elu` and `norm` compute.

On the CPU's kernels a feature is made where it is used, in the forward pass and again in the backward pass, so that
neither features nor their rotations are kept; elsewhere they are tensors, and `linear_attention` does the rest.
"""

from typing import NamedTuple

from torch import Tensor
from torch.nn.functional import elu

from linnet.ops.backend import choose_kernel
from linnet.ops.linear import linear_attention
from linnet.ops.masks import layout
from linnet.ops.positions import reflect, rotate
from linnet.ops.precision import State, accumulator


class Features(NamedTuple):
    """R_t H phi(x): `phi` is "elu" or "1+elu", theta (D/2,) the angles of R, u (D,) the unit vector of H; or None."""

    phi: str
    theta: Tensor | None = None
    u: Tensor | None = None

    def __call__(self, x: Tensor, position: Tensor | None) -> Tensor:
        """The features of x (B,H,N,D) at `position` (N,) or (B,N)."""
        x = one_plus_elu(x) if self.phi == "1+elu" else elu(x)
        x = x if self.u is None else reflect(x, self.u)
        return x if self.theta is None or position is None else rotate(x, self.theta, position)


def one_plus_elu(x: Tensor) -> Tensor:
    """1 + elu(x), which is positive; the sum is taken in float32, where half precision would cancel to 0 at -7."""
    return (elu(x.to(accumulator(x.dtype))) + 1).to(x.dtype)


def feature_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    how: Features,
    position: Tensor | None = None,
    causal: bool = True,
    normalize: bool = False,
    key_mask: Tensor | None = None,
    segments: Tensor | None = None,
    state: State | None = None,
) -> tuple[Tensor, State]:
    """`linear_attention` of the features of q and k, with its state."""
    if choose_kernel("linear_attention", q, v, None) == "cpu":
        from linnet.ops.cpu.linear import linear

        where = layout(q.shape[0], q.shape[2], key_mask, segments, v.device)
        S0, z0 = (*(x.to(v.dtype) for x in state or ()), None, None)[:2]
        masks = where.real, where.run
        o, _, *after = linear(q, k, v, *masks, S0, z0, causal, normalize, how.phi, how.theta, how.u, position)
        return o, tuple(after[: 1 + normalize])
    a, b = how(q, position), how(k, position)
    if segments is not None and not causal:  # there is no state then
        return linear_attention(a, b, v, causal, normalize, key_mask, segments), ()
    o, kept = linear_attention(a, b, v, causal, normalize, key_mask, segments, state=state, return_state=True)
    return o, kept
