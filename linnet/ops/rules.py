"""How each op weighs its keys: besides tensors, layout and state, the only argument of an op's backends."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

Features = Callable[[Tensor], Tensor]  # from (B,H,N,D) to (B,H,N,F)


class LinearRule(NamedTuple):
    """`linear_attention`: o_t = sum_s (phi_q_t . phi_k_s) v_s over past or all s; `normalize`: divided by its weights.

    With `features`, phi_q and phi_k are computed from q and k. `log_decay` (H,) fades keys by distance.
    """

    causal: bool
    normalize: bool = False
    features: Features | None = None
    log_decay: Tensor | None = None


class ExpRule(NamedTuple):
    """`exp_attention` of alpha q and beta k, or of q and k where alpha and beta are None.

    alpha and beta are (B,H,N,1), (B,H,1,1) or one number, positive, and carry no gradient.
    """

    causal: bool
    alpha: Tensor | None = None
    beta: Tensor | None = None


class BlockRule(NamedTuple):
    """`block_attention`: softmax or ReLA of scores q.k * scale, some of whose weights may be dropped.

    `seed` determines which; None draws a new one.
    """

    kind: str
    causal: bool
    scale: float
    dropout: float = 0.0
    seed: Tensor | None = None
