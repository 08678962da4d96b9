"""`bench vision`: time and memory of a vision transformer against resolution, from 32 to 1,024 pixels, by mechanism.

Two layers of the small presets (width 64, four heads of width 16) read one image in patches of 4 x 4 pixels: 64 to
65,536 tokens. Softmax is torch's fused one.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from linnet.attention.base import describe_attention
from linnet.bench.measure import Bench, Group
from linnet.bench.memory import Job, serve_memory_jobs
from linnet.errors import InputError
from linnet.models.backbone import Model
from linnet.models.config import ModelConfig
from linnet.models.presets import preset
from linnet.registry import ATTENTION

SYSTEMS = {"transnormer_t2": "transnormer_t2", "softmax": "vanilla"}  # as presets
RESOLUTIONS = (32, 64, 128, 256, 512, 1024)  # pixels
PATCH = 4


def vision_bench(sizes: Sequence[int] | None = None, quick: bool = False, only: str = "") -> Bench:
    """The benchmark of every mechanism with a bidirectional form, and of T2; `sizes` are pixels along a side."""
    names = [name for name in ATTENTION.names() if describe_attention(name)["bidirectional"]]
    names = [name for name in sorted({*names, *SYSTEMS}) if only in name]
    pixels = list(sizes or ((32, 64) if quick else RESOLUTIONS))
    for size in pixels:
        if size % PATCH:
            raise InputError(f"--lengths has {size}: for vision they are pixels, multiples of {PATCH}")
    groups = [
        Group([vision_bench_job(name, which, size) for name in names], memory=which == "train")
        for size in pixels
        for which in ("inference", "train")
    ]
    settings = {"type": "float32", "only": only, "pixels": pixels, "patch": PATCH, "layers": 2, "preset": "vit_small"}
    return Bench("vision", "linnet.bench.vision", prepare_vision_bench, groups, [], settings)


def vision_bench_job(name: str, which: str, size: int) -> dict[str, Any]:
    """One measurement: an image of `size` pixels along a side, in training or inference."""
    tokens = (size // PATCH) ** 2
    return {"table": "vision", "case": name, "form": "bidirectional", "pass": which, "batch": 1, "tokens": tokens}


def vision_bench_config(name: str, tokens: int) -> ModelConfig:
    """The small preset of a system for an image of this many patches, with its first and its last layer."""
    side = round(tokens**0.5) * PATCH
    fields = {"image_size": side, "patch": PATCH}
    base = preset(f"{SYSTEMS.get(name, name)}_vit_small", **fields)
    return preset(f"{SYSTEMS.get(name, name)}_vit_small", **fields, layers=[base.layers[0], base.layers[-1]])


def prepare_vision_bench(job: Job) -> Callable[[], object]:
    """The call that a job measures: a forward pass, or one with its backward pass and an update."""
    torch.manual_seed(0)
    config = vision_bench_config(job["case"], job["tokens"])
    model, size = Model(config), config.image_size
    pixels, labels = torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)

    def infer() -> None:
        with torch.no_grad():
            model(pixels)

    if job["pass"] == "inference":
        model.eval()
        return infer
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        cross_entropy(model(pixels), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return train


def _warm_up(job: Job) -> None:
    """Do the same work on a few patches."""
    prepare_vision_bench({**job, "tokens": 64})()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve_memory_jobs(_warm_up, prepare_vision_bench)
