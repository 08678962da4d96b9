"""Dropout of a model's activations while it trains."""

from torch import Tensor, nn

from linnet.ops.dropout import dropout


class Dropout(nn.Dropout):
    """torch's, on the CPU's kernels where they serve: there it draws ten times faster."""

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x
