"""Promises 14 to 16: all forms of a mechanism agree, padding is exact, and low precision is finite."""

import random

import torch

from linnet.attention.base import create_mixer, describe_attention
from linnet.errors import LinnetError
from linnet.models.backbone import Model
from linnet.models.presets import preset_config
from linnet.registry import ATTENTION
from linnet.testing import check_attention
from tests.prove.promise import Trials, promise


def mechanism_forms() -> list[tuple[str, bool]]:
    """Every mechanism, causal and not, where it has that form."""
    found = []
    for name in ATTENTION.names():
        for causal in (True, False):
            try:
                create_mixer(name, width=8, heads=1, causal=causal)
            except LinnetError:
                continue
            found.append((name, causal))
    return found


@promise(
    "14",
    "All forms of a mechanism agree with its dense definition, and no causal one reads the future.",
    "The contract of every mechanism, causal and not: values and gradients against the definition (1e-5 in float32, "
    "1e-10 in float64), recurrence, packing, batch mates, and exactly 0 from the future, at lengths from 1 to 4,097.",
)
def forms_agree(trials: Trials) -> None:
    """The contract at several sizes."""
    sizes = [(2, 8, (1, 2, 63, 65, 130)), (3, 4, (5, 128, 257))]
    for name, causal in mechanism_forms():
        for heads, head_dim, lengths in sizes[: trials.number(len(sizes), 0) or 1]:
            given = (1, 9, 65) if trials.short else lengths
            with trials.survives(f"{name}, causal {causal}, lengths {given}"):
                report = check_attention(
                    name, causal=causal, heads=heads, head_dim=head_dim, lengths=given, raises=False
                )
                for check in report.checks:
                    trials.check(check.passed, f"{name}, causal {causal}: {check}")
    for name in [] if trials.short else [n for n, c in mechanism_forms() if c and describe_attention(n)["recurrent"]]:
        with trials.survives(f"{name} in parts of 4,097 tokens"):
            options = {} if describe_attention(name)["any_length"] else {"max_length": 5000}
            core = create_mixer(name, width=8, heads=1, causal=True, **options).core.double()
            q, k, v = (torch.randn(1, 1, 4097, core.head_dim, dtype=torch.float64) for _ in range(3))
            whole = core(q, k, v)
            for cut in (1, 64, 2049, 4096):
                first, state = core.prefill(q[:, :, :cut], k[:, :, :cut], v[:, :, :cut])
                rest, _ = core.prefill(q[:, :, cut:], k[:, :, cut:], v[:, :, cut:], state=state)
                apart = torch.cat([first, rest], dim=2)
                error = float((apart - whole).abs().max() / whole.abs().max())
                trials.check(error < 1e-9, f"{name}, cut at {cut}: relative error {error:.1e}")


@promise(
    "15",
    "Padding is exact: a padded batch gives the logits of each row alone.",
    "Random models of every mechanism, with a language output or a classifier, on rows of random lengths, padded left "
    "or right, in float64: at most 1e-9 apart, with finite numbers everywhere, also for rows of padding only.",
)
def padding_is_exact(trials: Trials) -> None:
    """Batches of three rows beside single rows."""
    rng = random.Random(0)
    for name, causal in mechanism_forms():
        for output in ("causal_lm",) if causal else ("masked_lm", "classifier"):
            for _ in range(trials.number(6, 1)):
                with trials.survives(f"{name}, {output}"):
                    _padded_batch(trials, rng, name, causal, output)


def _padded_batch(trials: Trials, rng: random.Random, name: str, causal: bool, output: str) -> None:
    torch.manual_seed(rng.randrange(1 << 30))
    table = {"preset": "transnormer_t2_lm_small", "layers": [name, "norm"], "width": 16, "heads": 2, "ffn_width": 16}
    table |= {"causal": causal, "output": output, "vocab_size": 30, "dropout": 0.0, "options": {}, "tie": False}
    model = Model(preset_config(table)).double().eval()
    longest, side = rng.randint(8, 40), rng.choice(("left", "right"))
    lengths = [longest, rng.randint(1, longest), rng.randint(1, longest)]
    ids, real = torch.randint(2, 30, (3, longest)), torch.zeros(3, longest, dtype=torch.bool)
    for row, length in enumerate(lengths):
        real[row, : length if side == "right" else None] = side == "right"
        if side == "left":
            real[row, longest - length :] = True
    with torch.no_grad():
        together = model(ids, real)
        for row in range(3):
            alone = model(ids[row, real[row]][None])
            found = together[row][real[row]] if alone.dim() == 3 else together[row]
            error = float((found - alone[0]).abs().max())
            trials.check(error < 1e-9, f"{name}, {output}, {side}, lengths {lengths}, row {row}: {error:.1e} apart")
        real[1] = False
        trials.check(bool(torch.isfinite(model(ids, real)[[0, 2]]).all()), f"{name}, {output}: a row of padding only")


@promise(
    "16",
    "Low precision stays finite.",
    "Every mechanism in bfloat16 with queries and keys up to 50, forward and backward, at 2,048 tokens, and at 16,384 "
    "for those whose cost is less than quadratic.",
)
def low_precision(trials: Trials) -> None:
    """Values and gradients."""
    for name, causal in mechanism_forms():
        lengths = [256 if trials.short else 2048]
        if not trials.short and "N^2" not in describe_attention(name)["cost"]:
            lengths.append(16_384)
        for N in lengths:
            for scale in (1.0, 50.0):
                torch.manual_seed(0)
                options = {} if describe_attention(name)["any_length"] else {"max_length": N}
                core = create_mixer(name, width=8, heads=1, causal=causal, **options).core
                q, k, v = (torch.randn(1, 1, N, core.head_dim).clamp(-1, 1) for _ in range(3))
                q, k, v = ((x * s).bfloat16().requires_grad_() for x, s in ((q, scale), (k, scale), (v, 1.0)))
                with trials.survives(f"{name}, causal {causal}, {N} tokens, scale {scale}"):
                    o = core(q, k, v)
                    o.float().sum().backward()
                    gradients = [x.grad for x in (q, k, v) if x.grad is not None]
                    bad = [not bool(torch.isfinite(x).all()) for x in (o, *gradients)]
                    assert not any(bad), f"not finite (o, then gradients): {bad}"
