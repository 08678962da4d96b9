"""The tables and the page of `bench parallel`: what was measured, how well the model fits, and what it says beyond."""

from collections.abc import Mapping
from typing import Any

from linnet.bench import parallel_costs as costs
from linnet.figures.table import Table

Found = Mapping[str, Any]


def bench_parallel_tables(found: Found) -> list[Table]:
    """What was measured: steps, scaling, messages."""
    return [_steps(found), _scaling(found), _messages(found)]


def _steps(found: Found) -> Table:
    """One line per case, tokens and ranks."""
    layers = found["settings"]["model"]["layers"]
    columns = ["model", "tokens per rank", "ranks", "seconds", "lowest to highest", "processor seconds", "peak memory"]
    columns += ["state bytes per layer, forward", "backward", "gradient bytes"]
    rows = []
    for row in sorted(found["rows"], key=lambda row: (row["case"], row["tokens"], row["ranks"])):
        memory = "not measured" if row["memory"] is None else f"{row['memory'] / 2**20:.0f} MiB"
        sent = [f"{row[key] / layers:,.0f}" for key in ("forward", "backward")]
        spread = f"{row['low']:.2f} to {row['high']:.2f}"
        rows.append(
            [row["case"], f"{row['tokens']:,}", str(row["ranks"]), f"{row['seconds']:.2f}", spread]
            + [f"{row['cpu']:.2f}", memory, *sent, f"{row['gradients']:,}"]
        )
    return Table("Steps", columns, rows)


def _row(found: Found, case: str, tokens: int, ranks: int) -> Mapping[str, Any] | None:
    """The row of a job."""
    for row in found["rows"]:
        if (row["case"], row["tokens"], row["ranks"]) == (case, tokens, ranks):
            return dict(row)
    return None


def _scaling(found: Found) -> Table:
    """Weak scaling: the same tokens per rank; strong scaling: the same tokens in all."""
    columns = ["model", "tokens", "scaling", "1 rank", "2 ranks", "efficiency", "by processor seconds"]
    rows = []
    for case in dict.fromkeys(row["case"] for row in found["rows"]):
        for tokens in found["settings"]["tokens"]:
            for kind, mine, share in (("weak", tokens, 1), ("strong", tokens // 2, 2)):
                one, two = _row(found, case, tokens, 1), _row(found, case, mine, 2)
                if one is None or two is None:
                    continue
                each = f"{tokens:,} per rank" if kind == "weak" else f"{tokens:,} in all"
                wall, work = (one[key] / (two[key] * share) for key in ("seconds", "cpu"))
                seconds = [f"{row['seconds']:.2f} s" for row in (one, two)]
                rows.append([case, each, kind, *seconds, f"{100 * wall:.0f} %", f"{100 * work:.0f} %"])
    return Table("Weak and strong scaling", columns, rows, ["model", "tokens", "scaling"])


def _messages(found: Found) -> Table:
    """One gather between two ranks, by size."""
    rows = [
        [f"{message['bytes']:,}", f"{1000 * message['seconds']:.2f} ms", f"{1000 * message['median']:.2f} ms"]
        for message in found["messages"]
    ]
    return Table("One gather between two ranks", ["bytes", "least", "median"], rows, [])


def bench_parallel_fit(found: Found) -> Table:
    """The fitted numbers of each case, and their prediction for the steps of two ranks, which the fit does not use."""
    hardware = costs.fit_parallel_hardware(found)
    columns = ["model", "work per token", "fixed work", "memory per token", "tokens per rank", "predicted", "measured"]
    rows = []
    for case in dict.fromkeys(row["case"] for row in found["rows"]):
        load = costs.fit_parallel_workload(found, case)
        for tokens in found["settings"]["tokens"]:
            row = _row(found, case, tokens, 2)
            if row is None:
                continue
            work, sent = costs.predict_parallel_step(hardware, load, tokens, 2)
            rows.append(
                [
                    case,
                    f"{1e6 * load.per_token:.1f} µs",
                    f"{1000 * load.fixed:.1f} ms",
                    f"{load.token_memory:,.0f} bytes",
                ]
                + [f"{tokens:,}", f"{work + sent:.2f} s", f"{row['seconds']:.2f} s, {row['cpu']:.2f} s of processor"]
            )
    return Table("Fit", columns, rows, ["model", "measured"])


def bench_parallel_forecast(found: Found) -> Table:
    """The model on the stated hardware: tokens in all against ranks."""
    load, hardware = costs.stated_parallel_workload(measured_parallel_memory(found)), costs.stated_parallel_hardware()
    columns = [
        "tokens in all",
        "ranks",
        "tokens per rank",
        "work",
        "messages",
        "efficiency",
        "memory per rank",
        "checkpointed",
        "fits",
    ]
    rows = []
    for tokens in costs.TOKENS:
        for ranks in costs.RANKS:
            work, sent = costs.predict_parallel_step(hardware, load, tokens / ranks, ranks)
            memory = [costs.predict_parallel_memory(load, tokens / ranks, ranks, kept) for kept in (0, 2 * costs.WIDTH)]
            fits = [each <= hardware.memory for each in memory]
            rows.append(
                [f"{tokens:,}", f"{ranks:,}", f"{tokens // ranks:,}", f"{work:.3g} s", f"{sent:.3g} s"]
                + [f"{100 * work / (work + sent):.0f} %", *(f"{each / 1e9:,.3g} GB" for each in memory)]
                + ["yes" if fits[0] else "checkpointed" if fits[1] else "no"]
            )
    return Table("Forecast", columns, rows, ["fits"])


def measured_parallel_memory(found: Found) -> float:
    """Measured bytes per token, layer and unit of width, of the `norm` model, or of the first one measured."""
    cases = [row["case"] for row in found["rows"]]
    case, model = "norm" if "norm" in cases else cases[0], found["settings"]["model"]
    load = costs.fit_parallel_workload(found, case)
    return load.token_memory / (model["layers"] * model["width"])


def bench_parallel_note(found: Found) -> str:
    """Notes on how the numbers were measured, one line each."""
    model, where = found["settings"]["model"], found["environment"]
    load = ", ".join(str(each) for each in found["load"])
    return "\n".join(
        [
            f"{model['layers']} layers of width {model['width']} with {model['heads']} heads, batch 1, float32, "
            "forward, backward and the sum of the gradients; one core and one thread per rank, gloo, "
            f"torch {where['torch']}, "
            f"{where['cores']} cores ({where['machine']}), medians of {found['settings']['rounds']} rounds in turns.",
            f"Load of the machine (mean number of processes that wanted a core) before and after each model: {load}; "
            f"it has {where['cores']} cores. Above that load, other programs make the seconds longer, more so for two "
            "ranks than for one; processor seconds do not count waiting.",
        ]
    )


def bench_parallel_assumptions(found: Found) -> list[str]:
    """What the forecast assumes, one line each."""
    parameters = costs.count_parallel_parameters()
    per_unit = measured_parallel_memory(found)
    return [
        f"Compute: {costs.PEAK / 1e12:.0f} TFLOP/s per rank (one H100 SXM, dense bfloat16), of which a step reaches "
        f"{100 * costs.SHARE:.0f} %, for any number of tokens per rank.",
        f"Model: {costs.LAYERS} layers of `norm`, width {costs.WIDTH:,}, {costs.HEADS} heads, "
        f"{parameters / 1e9:.2f} billion parameters, a batch of one sequence. Operations: 6 per parameter and token, "
        f"plus those of the attention in chunks of {costs.CHUNK}. Nothing is computed twice.",
        f"Network: {costs.RATE / 1e9:.0f} GB/s and {1e6 * costs.HOP:.0f} µs per message between neighbors of a ring, "
        "also inside a node; a gather takes W - 1 messages, and nothing overlaps with work.",
        "States: float32, gathered once per layer, and their gradients returned once, as counted in the measurement.",
        "Weights: sharded over all ranks, as by `fully_shard`; those of a layer are gathered for its forward and again "
        "for its backward pass, and its gradients are scattered, in bfloat16. The measured steps have copies of the "
        "weights instead, and add up each gradient by a ring.",
        f"Memory: {costs.MEMORY / 1e9:.0f} GB per rank; activations as measured ({per_unit:.0f} bytes per token, layer "
        f"and unit of width in float32), halved for bfloat16; {costs.OPTIMIZER} bytes per parameter, sharded over all "
        "ranks.",
        "Checkpointed: only the input of each layer is kept, in bfloat16, and one layer's activations at a time. Work "
        "then takes a third longer, and states are gathered once more; the columns of seconds do not include this.",
        "No rank is slower than another, and none fails. Reading the data and the optimizer's step cost nothing.",
    ]


def bench_parallel_page(found: Found) -> str:
    """The page."""
    parts = ["# One sequence over many ranks: what it costs", ""]
    parts += [f"Rendered from parallel.json, which `{found['command']}` writes.", ""]
    parts += ["## Measured", "", bench_parallel_note(found).replace("\n", "\n\n"), ""]
    for table in bench_parallel_tables(found):
        parts += [f"### {table.title}", "", table.to_markdown(), ""]
    parts += [
        "Weak efficiency is the time of one rank divided by that of two ranks with as many tokens each. Strong "
        "efficiency is the time of one rank divided by twice that of two ranks with half the tokens each."
    ]
    hardware = costs.fit_parallel_hardware(found)
    parts += ["", "## Modeled", "", "### Fit to this machine", ""]
    parts += [
        "A step takes a fixed time, a time per token, and messages in rings. A message takes "
        f"{1000 * hardware.hop:.2f} ms plus a second per {hardware.rate / 1e6:,.0f} MB (fitted to the gathers above); "
        "work is fitted to the processor seconds of one rank. The fit does not use the steps of two ranks."
    ]
    parts += ["", bench_parallel_fit(found).to_markdown(), "", "### On other hardware", ""]
    parts += ["Nothing below was measured. The model assumes:", ""]
    parts += [f"- {line}" for line in bench_parallel_assumptions(found)]
    parts += ["", bench_parallel_forecast(found).to_markdown(), ""]
    parts += [
        "The time of messages depends only on the number of ranks. With few tokens per rank they take longer than the "
        "work, so cut a sequence no finer than memory requires; with many tokens per rank they hardly matter."
    ]
    return "\n".join(parts) + "\n"
