"""Runs over many processes: their ranks, and models that are spread over them. Rests on torch.distributed alone."""

from linnet.distributed.sequence import (
    gather_sequence,
    reduce_sequence_gradients,
    scatter_sequence,
    sequence_parallel,
    sequence_parallel_model,
    sum_over_sequence,
)

__all__ = [
    "gather_sequence",
    "reduce_sequence_gradients",
    "scatter_sequence",
    "sequence_parallel",
    "sequence_parallel_model",
    "sum_over_sequence",
]
