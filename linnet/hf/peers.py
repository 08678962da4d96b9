"""What benchmarks compare with: attention layers of Transformers, x (B,N,M) -> (B,N,M), and its cache of keys."""

import torch
from torch import Tensor, nn
from transformers import BigBirdConfig, PreTrainedModel
from transformers.cache_utils import DynamicCache
from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel
from transformers.models.informer.modeling_informer import InformerProbSparseAttention


class BigBirdPeer(nn.Module):
    """Block-sparse attention with its masks built once, for one length, and an output projection."""

    def __init__(self, heads: int, head_dim: int, length: int, block: int, batch: int) -> None:
        super().__init__()
        width = heads * head_dim
        config = BigBirdConfig(hidden_size=width, num_attention_heads=heads, block_size=block, num_random_blocks=3)
        config.max_position_embeddings = length
        self.layer, self.out = BigBirdBlockSparseAttention(config, seed=0), nn.Linear(width, width)
        self.masks = BigBirdModel.create_masks_for_block_sparse_attn(torch.ones(batch, length), block)

    def forward(self, x: Tensor) -> Tensor:
        """y (B,N,M) of x (B,N,M)."""
        blocked, band, rows, columns = self.masks
        y: Tensor = self.out(self.layer(x, band, rows, columns, blocked, blocked)[0])
        return y


class InformerPeer(nn.Module):
    """ProbSparse attention with its projections."""

    def __init__(self, heads: int, head_dim: int, factor: int) -> None:
        super().__init__()
        self.layer = InformerProbSparseAttention(heads * head_dim, heads, sampling_factor=factor)

    def forward(self, x: Tensor) -> Tensor:
        """y (B,N,M) of x (B,N,M)."""
        y: Tensor = self.layer(x)[0]
        return y


def filled_cache(model: PreTrainedModel, tokens: int) -> tuple[DynamicCache, int]:
    """A cache of random keys and values for `tokens` tokens of a decoder, and its size in bytes."""
    config = model.config
    cache = DynamicCache(config=config)
    shape = 1, config.num_key_value_heads, tokens, config.hidden_size // config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    return cache, 2 * config.num_hidden_layers * 4 * torch.Size(shape).numel()
