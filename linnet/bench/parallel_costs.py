"""The cost model of one sequence over many ranks: fitted to `bench parallel`, then carried to hardware that it states.

A step of a rank takes    work x n  +  2 L gather(W)  +  sum(W),    with n tokens on each of W ranks and L layers:
gather(W) = (W - 1) (hop + state / rate) is a ring of W - 1 messages, once forward and once backward per layer, and
sum(W) = rings (W - 1) (pieces hop + gradients / (W rate)) are the rings that add up the gradients: two around all of
them for copies; for sharded weights three (gather for each pass, scatter) around each layer. Nothing overlaps.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class Hardware(NamedTuple):
    """What a rank computes and sends."""

    name: str
    hop: float  # seconds of a message without content
    rate: float  # bytes per second between two ranks
    memory: float  # bytes of a rank


class Workload(NamedTuple):
    """A model on hardware."""

    per_token: float  # seconds of work for a token, forward and backward
    fixed: float  # seconds of a step without tokens
    layers: int
    state: float  # bytes that cross per layer, forward; the same backward
    gradients: float  # bytes of all gradients
    token_memory: float  # bytes per token, for all layers
    model_memory: float  # bytes of parameters, gradients and optimizer
    rings: int = 2  # how often weights or gradients go around all ranks in a step
    pieces: int = 1  # and in how many parts


# The hardware of the extrapolation, and the model on it. Each number is an assumption that the page lists.
PEAK, SHARE = 989e12, 0.4  # operations per second of one H100 SXM in dense bfloat16, and the part that a model reaches
HOP, RATE, MEMORY = 10e-6, 50e9, 80e9  # seconds per message; 400 Gbit/s of one network card per GPU; bytes of a GPU
LAYERS, WIDTH, HEADS, VOCABULARY = 24, 2048, 16, 32_000
CHUNK = 64  # tokens of a chunk, inside which scores are computed
OPTIMIZER = 16  # bytes per parameter: bfloat16 weights and gradients, float32 master weights and two moments

RANKS = (8, 64, 256, 1024)
TOKENS = (10**6, 10**7, 10**8, 10**9)


def fit_parallel_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The least squares a + b x of points (x, y), relative to y, with neither a nor b below 0."""
    weights = [1 / max(y, 1e-12) ** 2 for _, y in points]
    total = sum(weights)
    x0 = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
    y0 = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
    spread = sum(w * (x - x0) ** 2 for w, (x, _) in zip(weights, points, strict=True))
    slope = sum(w * (x - x0) * (y - y0) for w, (x, y) in zip(weights, points, strict=True)) / spread if spread else 0.0
    slope = max(slope, 0.0)
    if y0 - slope * x0 < 0:  # through the origin
        slope = sum(w * x * y for w, (x, y) in zip(weights, points, strict=True))
        slope /= sum(w * x * x for w, (x, _) in zip(weights, points, strict=True))
        return 0.0, slope
    return y0 - slope * x0, slope


def fit_parallel_hardware(found: Mapping[str, Any]) -> Hardware:
    """The machine of a measurement: the line through the seconds of its messages."""
    hop, slope = fit_parallel_line([(message["bytes"], message["seconds"]) for message in found["messages"]])
    return Hardware("this machine", hop, 1 / max(slope, 1e-15), 0.0)


def fit_parallel_workload(found: Mapping[str, Any], case: str) -> Workload:
    """A case of a measurement: the line through the processor seconds of one rank."""
    rows = [row for row in found["rows"] if row["case"] == case]
    fixed, per_token = fit_parallel_line([(row["tokens"], row["cpu"]) for row in rows if row["ranks"] == 1])
    two = [row for row in rows if row["ranks"] == 2]
    layers = found["settings"]["model"]["layers"]
    weighed = [(row["tokens"], row["memory"]) for row in two if row["memory"]]
    memory = fit_parallel_line(weighed)[1] if len(weighed) > 1 else 0.0
    state = sum(row["forward"] for row in two) / len(two) / layers
    gradients = sum(row["gradients"] for row in two) / len(two)  # 2 (W - 1) / W of all gradients, and W is 2
    return Workload(per_token, fixed, layers, state, gradients, memory, 0.0)


def predict_parallel_step(hardware: Hardware, load: Workload, tokens: float, ranks: int) -> tuple[float, float]:
    """Seconds of work and of messages in a step with so many tokens on each rank."""
    others = ranks - 1
    gather = others * (hardware.hop + load.state / hardware.rate)
    total = load.rings * others * (load.pieces * hardware.hop + load.gradients / (ranks * hardware.rate))
    return load.fixed + load.per_token * tokens, 2 * load.layers * gather + total if others else 0.0


def predict_parallel_memory(load: Workload, tokens: float, ranks: int, kept: float = 0.0) -> float:
    """Bytes of a rank: its tokens, the states that it gathers for one layer, and the model spread over the ranks.

    With `kept`, bytes per token and layer, activations are checkpointed: that much of each layer, and all of one.
    """
    per_token = load.layers * kept + load.token_memory / load.layers if kept else load.token_memory
    return per_token * tokens + ranks * load.state + load.model_memory / ranks


def stated_parallel_hardware() -> Hardware:
    """The hardware of the extrapolation."""
    return Hardware("H100, 400 Gbit/s each", HOP, RATE, MEMORY)


def stated_parallel_workload(token_memory: float) -> Workload:
    """A `norm` model on that hardware; `token_memory` is the measured bytes per token, layer and unit of width."""
    D, parameters = WIDTH // HEADS, count_parallel_parameters()
    attention = LAYERS * HEADS * (2 * CHUNK * D * 2 + 4 * D * D)  # scores and values of half a chunk; the state twice
    operations = 3 * (2 * parameters + attention)  # the backward pass costs twice the forward pass
    state = HEADS * D * D * 4
    memory = token_memory * LAYERS * WIDTH / 2  # bfloat16 where float32 was measured
    own = operations / (PEAK * SHARE), 0.0, LAYERS, state, 2 * parameters, memory, OPTIMIZER * parameters
    return Workload(*own, rings=3, pieces=LAYERS)


def count_parallel_parameters() -> int:
    """Parameters of that model: four projections, a gated FFN of 8/3 the width, and the embedding."""
    return LAYERS * (4 * WIDTH**2 + 8 * WIDTH**2) + VOCABULARY * WIDTH
