"""Table 8: the number of DiagAttention layers in each row, at both scales."""

import pytest

from linnet.registry import STUDY
from linnet.studies.trained import planned_trained_model


@pytest.mark.parametrize(("scale", "counts"), [("cpu", [0, 1, 2, 3, 4]), ("paper", [0, 3, 6, 9, 12])])
@pytest.mark.parametrize(("system", "phi"), [("T1", "elu"), ("T2", "1+elu")])
def test_the_first_layers_are_diag_and_the_rest_norm(scale, counts, system, phi):
    runs = STUDY["transnormer-table8"]().study_runs(scale, seeds=1)
    models = [planned_trained_model(run.config) for run in runs if run.row.name.startswith(system)]
    assert [model.layers.count("diag") for model in models] == counts
    for model in models:
        assert list(model.layers) == sorted(model.layers)
        assert set(model.layers) <= {"diag", "norm"}
        assert "norm" not in model.layers or model.options["norm"]["phi"] == phi
