"""Moment matching on Gaussian queries and keys, and the calibration behind the coefficients of LLN."""

import math

import pytest

from linnet.attention.lln import interpolated_lln_coefficients
from linnet.errors import InputError
from linnet.instruments import calibrate_moment_matching
from linnet.instruments.moment_matching import moment_matching_table


def test_the_released_constants_match_variance_but_not_entropy():
    """With 1,024 tokens, width 64 and deviation 1.2, variances agree within 10 %, but LLN is sharper by over a bit."""
    (row,) = moment_matching_table([1.2], tokens=1024, head_dim=64, match="paper", seeds=1)
    assert row["lln_variance"] == pytest.approx(row["softmax_variance"], rel=0.1)
    assert row["softmax_entropy"] == pytest.approx(8.52, abs=0.05)
    assert row["lln_entropy"] == pytest.approx(7.08, abs=0.15)
    assert row["softmax_gap"] == pytest.approx(0.916, abs=0.01)
    assert row["lln_skew"] > 0.3 > 0.15 > abs(row["softmax_skew"])


@pytest.mark.parametrize("D", [16, 64])
def test_calibration_gives_the_scales_that_lln_uses(D):
    found = calibrate_moment_matching(D, tokens=256, seeds=2)
    assert found.parabola_error < 0.05 < 0.2 > found.line_error
    for target in (0.7, 1.0, 2.0, 4.0):

        def deviation(coefficients, target=target):
            c2, c1, c0 = coefficients
            return math.sqrt((-c1 + math.sqrt(c1 * c1 - 4 * c2 * (c0 - target))) / (4 * c2))

        assert deviation(found.parabola) == pytest.approx(deviation(interpolated_lln_coefficients(D)), rel=0.04)
    with pytest.raises(InputError, match="head_dim is 0"):
        calibrate_moment_matching(0)
