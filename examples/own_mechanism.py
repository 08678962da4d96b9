"""Write an attention of your own, check it against linnet's contract, and use it in a model."""

import torch
from torch import Tensor

import linnet
from linnet.attention.features import FeatureCore
from linnet.registry import ATTENTION
from linnet.testing import check_attention


@ATTENTION.add("relu_squared")
class SquaredRelu(FeatureCore):
    """Linear attention whose features are squared ReLUs, divided by their sum.

    The feature map is all there is to write: the fast form, the dense weights, the recurrent state and the decoding
    step follow from it.
    """

    what = "squared ReLU features, divided by their sum"
    paper = "an example"
    cost = "N D^2"

    def features(self, where):
        """The map of queries and of keys; `where` would give the positions of the tokens."""
        return lambda x: x.relu().square() + 1e-3  # a token without any positive feature still has a sum


def peeking(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A mistake on purpose: softmax over all keys, presented as causal."""
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v


def main() -> None:
    """Check both, then train nothing and generate with the first."""
    for causal in (True, False):
        report = check_attention("relu_squared", causal=causal)  # raises if a check fails
        print(f"relu_squared, causal={causal}: {len(report.checks)} checks passed")

    report = check_attention(peeking, causal=True, raises=False)
    assert not report.passed
    print(f"a function that reads the future is caught:\n{report}")

    torch.manual_seed(0)
    layers = ["diag", "relu_squared"]
    model = linnet.create_model("transnormer_t2_lm_small", vocab_size=256, width=64, heads=2, layers=layers).eval()
    ids = model.generate(torch.randint(256, (1, 20)), max_new_tokens=10, seed=0)
    print(f"a model with layers {layers} wrote {ids.shape[1] - 20} tokens")


if __name__ == "__main__":
    main()
