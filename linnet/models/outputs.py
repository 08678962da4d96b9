"""The outputs on top of the backbone: from hidden states (..., M) to logits."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, relu

from linnet.models.config import ModelConfig
from linnet.ops.precision import accumulator_precision


def _own_table(config: ModelConfig) -> nn.Linear | None:
    """The table of an output that does not share the embedding."""
    return None if config.tie else nn.Linear(config.width, config.vocab_size, bias=False)


class CausalLM(nn.Module):
    """Logits of the next token: the product with the embedding table, or with a separate table."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.table = _own_table(config)

    def forward(self, h: Tensor, embedding: Tensor) -> Tensor:
        """h (..., M) -> logits (..., V); `embedding` (V, M) is the table to share."""
        return linear(h, embedding if self.table is None else self.table.weight)


class MaskedLM(nn.Module):
    """RoBERTa's logits of a masked token: Linear, GELU, LayerNorm, then the table, with a bias."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.width, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.table = _own_table(config)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, h: Tensor, embedding: Tensor) -> Tensor:
        """h (..., M) -> logits (..., V); `embedding` (V, M) is the table to share."""
        h = self.norm(gelu(self.dense(h)))
        return linear(h, embedding if self.table is None else self.table.weight, self.bias)


class Classifier(nn.Module):
    """Logits of the classes of a whole sequence, from the mean of its hidden states: Linear, ReLU, Linear."""

    sequences = 1  # per answer

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        features = config.width if self.sequences == 1 else 4 * config.width
        self.enter = nn.Linear(features, config.head_width)
        self.leave = nn.Linear(config.head_width, config.classes)

    def forward(self, h: Tensor, embedding: Tensor) -> Tensor:
        """Pooled h (B, M) -> logits (B, classes)."""
        return self.leave(relu(self.enter(h)))


class LinearClassifier(Classifier):
    """Logits of the classes by one matrix, as in a vision transformer."""

    def __init__(self, config: ModelConfig) -> None:
        nn.Module.__init__(self)
        self.leave = nn.Linear(config.width, config.classes)

    def forward(self, h: Tensor, embedding: Tensor) -> Tensor:
        """Pooled h (B, M) -> logits (B, classes)."""
        return self.leave(h)


class SentenceClassifier(Classifier):
    """RoBERTa's logits of a sentence or pair: dropout, Linear, tanh, dropout, Linear, on its first token."""

    def __init__(self, config: ModelConfig) -> None:
        nn.Module.__init__(self)
        self.dropout = nn.Dropout(config.dropout)
        self.dense = nn.Linear(config.width, config.width)
        self.leave = nn.Linear(config.width, config.classes)

    def forward(self, h: Tensor, embedding: Tensor) -> Tensor:
        """Pooled h (B, M) -> logits (B, classes)."""
        return self.leave(self.dropout(torch.tanh(self.dense(self.dropout(h)))))


class TwoTower(Classifier):
    """Logits of the classes of a pair of sequences, each encoded alone: the same head on a, b, a * b and a - b."""

    sequences = 2

    def forward(self, h: Tensor, embedding: Tensor) -> Tensor:
        """Pooled h (B, 2, M) -> logits (B, classes)."""
        a, b = h.unbind(dim=1)
        return super().forward(torch.cat([a, b, a * b, a - b], dim=-1), embedding)


def mean_output(h: Tensor, real: Tensor | None, length: int | None = None) -> Tensor:
    """The mean (B, M) of the real tokens of h (B,N,M); given a `length`, their sum divided by that."""
    wide = h.to(accumulator_precision(h.dtype))
    if real is not None:
        wide = wide.masked_fill(~real[..., None], 0)
    count = real.sum(dim=1, keepdim=True).clamp(min=1) if real is not None and length is None else None
    return (wide.sum(dim=1) / (count if count is not None else length or h.shape[1])).to(h.dtype)


OUTPUTS: dict[str, type[nn.Module]] = {
    "causal_lm": CausalLM,
    "masked_lm": MaskedLM,
    "classifier": Classifier,
    "linear_classifier": LinearClassifier,
    "sentence": SentenceClassifier,
    "sentence_mean": SentenceClassifier,
    "two_tower": TwoTower,
}
