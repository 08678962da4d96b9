"""Dropout of a model's activations while it trains."""

from torch import Tensor, nn

from linnet.ops.dropout import dropout


class Dropout(nn.Dropout):
    """torch's, but drawn by the CPU's kernels where they serve: torch draws slowly there."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
