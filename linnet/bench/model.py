"""`bench model`: steps per second of an LRA model, and time and memory of a RoBERTa-sized layer, by mechanism.

The first is the shape of TransNormer's Table 7 (2 layers, width 64, 2 heads, 1K to 5K tokens), the second that of LLN's
Table 2 (width 768, 12 heads, batch 1, 512 to 16,384 tokens). Either all of them are compiled or none.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from linnet.attention.base import create_mixer, describe_attention
from linnet.bench.lra import BATCH, LENGTHS, lra_bench_step
from linnet.bench.measure import Bench, Group
from linnet.bench.memory import Job, serve_memory_jobs
from linnet.models.config import ModelConfig
from linnet.models.presets import preset
from linnet.registry import ATTENTION

SYSTEMS = {"transnormer_t1": "transnormer_t1", "transnormer_t2": "transnormer_t2", "softmax": "vanilla"}  # as presets
PAPER_SIZE = (32, 2048)  # batch and tokens at which TransNormer T2 is compared with softmax
LAYER_LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
LAYER_WIDTH, LAYER_HEADS = 768, 12


def model_bench(
    lengths: Sequence[int] | None = None, quick: bool = False, compiled: bool = False, only: str = ""
) -> Bench:
    """The benchmark of every mechanism with a bidirectional form, and of TransNormer's two systems."""
    names = [name for name in ATTENTION.names() if describe_attention(name)["bidirectional"]]
    systems = [name for name in sorted({*names, *SYSTEMS}) if only in name]
    names = [name for name in names if only in name]
    steps, layers = (lengths or ((64, 128) if quick else LENGTHS)), (lengths or ((64, 128) if quick else LAYER_LENGTHS))
    groups = [
        Group([model_bench_job("model", name, which, 1 if quick else BATCH, N) for name in systems])
        for N in steps
        for which in ("train", "inference")
    ]
    if not quick and lengths is None and not only:
        groups.append(
            Group([model_bench_job("model", name, "train", *PAPER_SIZE) for name in ("softmax", "transnormer_t2")])
        )
    groups += [
        Group([model_bench_job("layer", name, "train", 1, N) for name in names], memory=not compiled) for N in layers
    ]
    groups = [Group([{**job, "compiled": compiled} for job in group.jobs], group.memory) for group in groups]
    settings = {"type": "float32", "compiled": compiled, "only": only, "lengths": [list(steps), list(layers)]}
    settings |= {"model": {"layers": 2, "preset": "lra", "dropout": 0.0}}
    settings |= {"layer": {"width": LAYER_WIDTH, "heads": LAYER_HEADS}}
    return Bench("model", "linnet.bench.model", prepare_model_bench, groups, [], settings)


def model_bench_job(table: str, name: str, which: str, batch: int, tokens: int) -> dict[str, Any]:
    """One measurement: `table` is "model" or "layer", `which` the pass."""
    return {"table": table, "case": name, "form": "bidirectional", "pass": which, "batch": batch, "tokens": tokens}


def model_bench_config(name: str, tokens: int) -> ModelConfig:
    """The Long Range Arena preset of a system, with two layers and without dropout."""
    base = preset(f"{SYSTEMS.get(name, name)}_lra", max_length=tokens)
    layers = (base.layers[0], base.layers[-1])
    still = {part: {"dropout": 0.0} for part in {*layers} if "dropout" in ATTENTION[part].Options.model_fields}
    options = {part: {**base.options.get(part, {}), **still.get(part, {})} for part in sorted({*layers})}
    return base.model_copy(update={"layers": layers, "options": options, "dropout": 0.0, "ffn_dropout": 0.0})


def prepare_model_bench(job: Job) -> Callable[[], object]:
    """The call that a job measures."""
    torch.manual_seed(0)
    B, N = job["batch"], job["tokens"]
    if job["table"] == "layer":
        name, room = job["case"], {"max_length": max(N, 16)}
        options = room if "max_length" in ATTENTION[name].Options.model_fields else {}
        mixer = create_mixer(name, width=LAYER_WIDTH, heads=LAYER_HEADS, causal=False, **options)
        run = torch.compile(mixer) if job["compiled"] else mixer
        x, toward = torch.randn(B, N, LAYER_WIDTH, requires_grad=True), torch.randn(B, N, LAYER_WIDTH)
        return partial(_layer, run, mixer, x, toward)
    which = "training" if job["pass"] == "train" else "inference"
    return lra_bench_step(model_bench_config(job["case"], N), which, N, B, job["compiled"])


def _layer(run: Callable[..., Tensor], mixer: nn.Module, x: Tensor, toward: Tensor) -> None:
    run(x).backward(toward)
    x.grad = None
    mixer.zero_grad(set_to_none=True)


def _warm_up(job: Job) -> None:
    """Do the same work on a few tokens."""
    prepare_model_bench({**job, "tokens": 64, "batch": 1})()


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve_memory_jobs(_warm_up, prepare_model_bench)
