"""The 1+elu linear attention of "Transformers are RNNs" (arXiv 2006.16236), with its denominator.

o_t = phi(q_t)^T S_t / max(phi(q_t)^T z_t, 1e-6), phi = 1 + elu, S_t = sum_s phi(k_s) v_s^T, z_t = sum_s phi(k_s).
"""

from linnet.attention.features import FeatureCore
from linnet.config import Settings
from linnet.ops.cpu.decode import Mechanism, Stepper
from linnet.ops.features import EluFeatures
from linnet.ops.masks import Layout
from linnet.registry import ATTENTION


@ATTENTION.add("elu")
class EluAttention(FeatureCore):
    """Features 1 + elu, divided by their sum."""

    what = "1+elu features, divided by their sum"
    paper = "Transformers are RNNs, ICML 2020, arXiv 2006.16236"
    cost = "N D^2"

    def __init__(self, heads: int, head_dim: int, causal: bool, options: Settings) -> None:
        super().__init__(heads, head_dim, causal, options)
        self.stepper = Stepper(Mechanism("1+elu", ("S", "z")), heads, head_dim)

    def features(self, where: Layout) -> EluFeatures:
        return EluFeatures("1+elu")
