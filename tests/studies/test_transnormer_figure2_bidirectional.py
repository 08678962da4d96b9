"""Table 2 and Figure 2 with masked models: rows that differ in the attention alone, and claims without the warm-up."""

from linnet.registry import STUDY
from linnet.studies.claims import FAILS, HOLDS
from linnet.studies.trained import planned_trained_model

TABLE2, FIGURE2 = (STUDY[f"transnormer-{item}-bidirectional"]() for item in ("table2", "figure2"))


def record(row, seed, early, late):
    """Gradient norms of 10 updates in the warm-up and 10 after it; each half varies by its own share."""
    halves = [{"step": 10, "updates": 10, "grad_means": [1.0, 1.0], "grad_squares": [1 + early**2] * 2}]
    halves += [{"step": 20, "updates": 10, "grad_means": [1.0, 1.0], "grad_squares": [1 + late**2] * 2}]
    return {
        "row": row,
        "seed": seed,
        "command": "linnet reproduce transnormer-table2-bidirectional --scale cpu",
        "scale": "cpu",
        "config": {"train": {"warmup": 10, "steps": 20}, "task": "masked_lm"},
        "curve": halves,
        "analysis": {"gradients": {"deviation": [((early**2 + late**2) / 2) ** 0.5, 0.1], "reading": "std / mean"}},
    }


def test_like_for_like_rows_share_everything_but_the_attention():
    for study in (TABLE2, FIGURE2):
        for scale in ("cpu", "paper"):
            models = {run.row.name: planned_trained_model(run.config) for run in study.study_runs(scale, seeds=1)}
            fields = ("norm", "ffn", "ffn_width", "norm_position", "positions", "init", "causal")
            same = {tuple(getattr(models[name], field) for field in fields) for name in ("vanilla", "1+elu")}
            assert same == {tuple(getattr(models["NormAttention"], field) for field in fields)}
            assert set(models["NormAttention"].layers) == {"norm"}
            assert models["NormAttention"].options["norm"]["positions"] == "none"
    for scale in ("cpu", "paper"):
        models = {run.row.name: planned_trained_model(run.config) for run in FIGURE2.study_runs(scale, seeds=1)}
        kinds = {"vanilla": "softmax", "1+elu": "elu", "NormAttention": "norm"}
        assert {models[f"{name} with LRPE"].options[kind]["positions"] for name, kind in kinds.items()} == {"lrpe"}


def test_the_warm_up_alone_can_make_a_claim():
    """NormAttention varies less over all updates, and more after the warm-up."""
    records = [record("1+elu", seed, 0.9, 0.1 + seed / 1000) for seed in range(3)]
    records += [record("NormAttention", seed, 0.2, 0.3 + seed / 1000) for seed in range(3)]
    claims = {claim.statement: claim.verdict for claim in TABLE2.claims(records)}
    statement = "Gradients of NormAttention vary less than those of 1+elu"
    assert claims == {statement: HOLDS, f"{statement}, after the warm-up": FAILS}
