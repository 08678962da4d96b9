"""The study of enwik8: bits per byte, and the same frame for the two rows of a claim."""

import math

from linnet.registry import STUDY
from linnet.studies.claims import HOLDS
from linnet.studies.trained import planned_trained_model

STUDIED = STUDY["enwik8"]()


def record(row, seed, bits):
    score = {"loss": bits * math.log(2)}
    return {
        "row": row,
        "seed": seed,
        "command": "linnet reproduce enwik8 --scale cpu",
        "scale": "cpu",
        "config": {"task": "causal_lm", "train": {"steps": 5, "batch": 2, "lr": 0.002}, "data": {"context": 8}},
        "environment": {"linnet": "1", "torch": "2", "threads": 1},
        "parameters": 1234,
        "tokens": 80,
        "seconds": 36.0,
        "curve": [],
        "valid": score,
        "test": score,
    }


def test_bits_per_byte_and_the_claims():
    records = [record("T2", seed, 1.5 + seed / 100) for seed in range(3)]
    records += [record("vanilla", seed, 1.75 + seed / 100) for seed in range(3)]
    text = STUDIED.to_markdown(records)
    assert "| T2 | 1,234 | 3 | 1.510 (1.500 to 1.520) | 1.510 (1.500 to 1.520) | 36 |" in text
    assert f"| T2 needs fewer bits than the vanilla transformer | {HOLDS} |" in text
    assert "`1-elu-seed0`" in text.partition("Planned and not run")[2]


def test_both_scales_read_bytes_and_have_one_frame_for_t2_and_softmax():
    for scale, tokens in (("cpu", 500 * 8 * 512), ("paper", 100_000 * 128 * 512)):
        models = {run.row.name: planned_trained_model(run.config) for run in STUDIED.study_runs(scale, seeds=1)}
        t2, framed = models["T2"], models["vanilla in the T2 frame"]
        assert (t2.norm, t2.ffn, t2.ffn_width) == (framed.norm, framed.ffn, framed.ffn_width)
        planned = {run.run: run for run in STUDIED.dry_run(scale, seeds=1)}
        assert {run.tokens for run in planned.values()} == {tokens}
        assert all(run.config.data.tokenizer == "bytes" for run in STUDIED.study_runs(scale, seeds=1))
