"""The part of a block that processes each token separately: a gated linear unit, or the classic two layers."""

from collections.abc import Callable

from torch import Tensor, nn

from linnet.models.dropout import Dropout
from linnet.ops.glu import ACTIVATIONS, glu


class GLU(nn.Module):
    """y = W3 (act(W1 x) * W2 x), with biases; TransNormer uses SiLU and a width of 8/3 M."""

    def __init__(self, M: int, width: int, activation: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.activation = activation
        self.enter = nn.Linear(M, 2 * width)  # W1 and W2
        self.dropout = Dropout(dropout)
        self.leave = nn.Linear(width, M)  # W3

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.dropout(glu(self.enter(x), self.activation)))


class FFN(nn.Module):
    """y = W2 act(W1 x), with biases."""

    def __init__(self, M: int, width: int, activation: str, dropout: float = 0.0) -> None:
        super().__init__()
        self.act = ACTIVATIONS[activation]
        self.enter = nn.Linear(M, width)
        self.dropout = Dropout(dropout)
        self.leave = nn.Linear(width, M)

    def forward(self, x: Tensor) -> Tensor:
        return self.leave(self.dropout(self.act(self.enter(x))))


FFNS: dict[str, Callable[[int, int, str, float], nn.Module]] = {"glu": GLU, "ffn": FFN}
