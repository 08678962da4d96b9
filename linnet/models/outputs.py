"""What stands on top of the backbone: from hidden states (..., M) to what a task asks for."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from linnet.models.config import ModelConfig


def _own_table(config: ModelConfig) -> nn.Linear | None:
    """The table of an output that shares none."""
    return None if config.tie else nn.Linear(config.width, config.vocab_size, bias=False)


class CausalLM(nn.Module):
    """Logits of the next token: the product with the embedding table, or with a table of its own."""

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


OUTPUTS: dict[str, type[nn.Module]] = {"causal_lm": CausalLM, "masked_lm": MaskedLM}
