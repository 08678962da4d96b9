"""Train a model on one long sequence that is cut over processes; alone, it is one slice.

torchrun --nproc-per-node 2 examples/train_long_sequence.py big.txt 8192 20
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

import linnet
from linnet.distributed import (
    reduce_sequence_gradients,
    scatter_sequence,
    sequence_parallel_model,
    sum_over_sequence,
)


def main(path: str, length: str = "8192", steps: str = "20") -> None:
    """Train for so many steps on the first `length` bytes of a file, and print the loss."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    else:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    data = list(Path(path).read_bytes()[: int(length) + 1])
    if len(data) < int(length) + 1:
        sys.exit(f"{path} has {len(data)} bytes: {int(length) + 1} are needed")
    torch.manual_seed(0)  # the same model on every rank
    layers = ["diag", "norm", "diag", "lln"]
    model = linnet.create_model(
        "transnormer_t2_lm_small", vocab_size=256, layers=layers, width=64, heads=4, dropout=0.0
    )
    sequence_parallel_model(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    ids, targets = scatter_sequence(torch.tensor([data[:-1]])), scatter_sequence(torch.tensor([data[1:]]))
    for step in range(int(steps)):
        loss = cross_entropy(model(ids)[0], targets[0], reduction="sum") / int(length)
        loss.backward()
        reduce_sequence_gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        total = float(sum_over_sequence(loss.detach()))
        if dist.get_rank() == 0:
            print(f"step {step}: loss {total:.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
