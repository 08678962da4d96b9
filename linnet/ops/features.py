"""The features of `elu` and `norm`: elu or 1+elu of q and k, which may be reflected and turned by position.

The CPU kernels compute a feature where they use it, in the forward pass and again in the backward pass, so they store
neither features nor rotations. Elsewhere features are tensors.
"""

from dataclasses import dataclass

from torch import Tensor
from torch.nn.functional import elu

from linnet.ops.positions import reflect_positions, rotate_by_position
from linnet.ops.precision import accumulator_precision


@dataclass(frozen=True)
class EluFeatures:
    """R_t H phi(x). `phi` is "elu" or "1+elu", theta (D/2,) holds the angles of R, u (D,) is the unit vector of H.

    `position` t is (N,) or (B,N). Where theta or `position` is None, nothing turns; where u is None, nothing reflects.
    """

    phi: str
    theta: Tensor | None = None
    u: Tensor | None = None
    position: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """The features of x (B,H,N,D)."""
        x = one_plus_elu_features(x) if self.phi == "1+elu" else elu(x)
        x = x if self.u is None else reflect_positions(x, self.u)
        return x if self.theta is None or self.position is None else rotate_by_position(x, self.theta, self.position)


def one_plus_elu_features(x: Tensor) -> Tensor:
    """1 + elu(x), which is positive. The sum is taken in float32: half precision would cancel to 0 at -7."""
    return (elu(x.to(accumulator_precision(x.dtype))) + 1).to(x.dtype)
