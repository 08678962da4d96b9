"""Instruments on weights whose numbers are known in closed form, and the weights that they refuse."""

import math

import pytest
import torch
from torch import Tensor

from linnet.errors import InputError
from linnet.instruments import (
    attention_map,
    concentration,
    entropy,
    local_area,
    local_score,
    local_share,
    lognormal_fit,
    spectral_gap,
    temperature,
    temperature_of,
)
from linnet.instruments.attention_map import pooled_attention_map
from linnet.instruments.base import instrument_view_of_weights

N = 64
WIDE = torch.float64
SELF = torch.eye(N, dtype=WIDE)
FLAT = torch.full((N, N), 1 / N, dtype=WIDE)
ONE = torch.zeros(N, N, dtype=WIDE)
ONE[:, 3] = 1
TURN = SELF.roll(5, dims=1)  # a permutation
CAUSAL = FLAT.tril() / FLAT.tril().sum(dim=1, keepdim=True)
EACH = (entropy, temperature, spectral_gap, local_score, local_share, lognormal_fit, attention_map, concentration)


def random(sigma: float = 1.0, n: int = N, seed: int = 0) -> Tensor:
    return (torch.randn(n, n, dtype=WIDE, generator=torch.Generator().manual_seed(seed)) * sigma).softmax(dim=-1)


@pytest.mark.parametrize(
    ("weights", "bits", "gap"),
    [(SELF, 0, 0), (TURN, 0, 0), (ONE, 0, 1), (FLAT, 6, 1), ((SELF + FLAT) / 2, None, 0.5)],
)
def test_entropy_and_gap_of_fixtures(weights, bits, gap):
    assert spectral_gap(weights).item() == pytest.approx(gap, abs=1e-6)
    if bits is not None:
        assert entropy(weights).item() == pytest.approx(bits, abs=1e-12)
        assert entropy(weights, relative=True).item() == pytest.approx(bits / 6, abs=1e-12)


def test_entropy_of_a_known_row():
    row = torch.tensor([0.5, 0.25, 0.125, 0.125])
    assert entropy(row.expand(4, 4)).item() == pytest.approx(1.75)
    assert entropy(CAUSAL).item() == pytest.approx(sum(math.log2(t) for t in range(1, N + 1)) / N)


def test_entropy_and_temperature_of_signed_rows_use_absolute_values():
    signed = torch.tensor([[2.0, -1.0], [-1.0, 2.0]], dtype=WIDE)
    positive = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=WIDE) / 3
    assert entropy(signed).item() == pytest.approx(entropy(positive).item())
    assert temperature(signed).item() == pytest.approx(temperature(positive).item())


def test_pairs_tell_biased_from_unbiased():
    found = concentration(torch.stack([ONE, SELF, TURN, FLAT]))
    assert found.biased().tolist() == [True, False, False, False]
    assert found.unbiased().tolist() == [False, True, True, False]


def test_temperature_is_one_over_the_spread_of_logarithms():
    for sigma in (0.5, 2.0):
        spread = torch.linspace(-1, 1, N, dtype=WIDE)
        spread = spread / spread.std() * sigma
        rows = torch.stack([spread.roll(i) for i in range(N)]).softmax(dim=1)
        assert temperature(rows).item() == pytest.approx(1 / sigma)
    assert temperature(FLAT).item() == math.inf
    assert temperature(torch.full((7, 7), 1 / 7)).item() == math.inf  # though the mean of seven is rounded
    assert temperature(SELF).isnan()  # one weight a row has no spread


def test_temperature_leaves_out_masked_weights():
    spread = torch.linspace(-1, 1, 8, dtype=WIDE).expand(16, 8).softmax(dim=1)
    weights = torch.cat([spread, torch.zeros(16, 8, dtype=WIDE)], dim=1)
    assert temperature(weights).item() == pytest.approx(1 / torch.linspace(-1, 1, 8, dtype=WIDE).std().item())


def test_temperature_of_queries_and_keys():
    q, k = torch.randn(2, 1000, 32, dtype=WIDE).unbind()
    found = temperature_of(2 * q, 3 * k)
    assert found.item() == pytest.approx(1 / 6, rel=0.02)
    weights = (2 * q @ (3 * k).mT / 32**0.5)[:500, :500].softmax(dim=-1)
    assert temperature(weights).item() == pytest.approx(1 / 6, rel=0.1)
    with pytest.raises(InputError, match="the same shape"):
        temperature_of(q, k[:5])


def brute_force(weights: Tensor) -> Tensor:
    """The procedure of the appendix, row by row, as written there."""
    n = len(weights)
    sizes = torch.zeros(100)
    for t in range(n):
        taken, left, right = [t], t - 1, t + 1
        while len(taken) < n:
            if left >= 0:
                taken.append(left)
                left -= 1
            if right < n:
                taken.append(right)
                right += 1
        mass = weights[t, taken].cumsum(dim=0)
        for i, threshold in enumerate(torch.linspace(0, 1, 100, dtype=WIDE)):
            reached = (mass >= threshold - 1e-6).nonzero()
            sizes[i] += int(reached[0]) + 1 if len(reached) else n
    return sizes / n / n


@pytest.mark.parametrize("weights", [random(2.0, 37), CAUSAL, TURN, random(1.0, 2), torch.ones(1, 1)], ids=range(5))
def test_the_local_score_follows_the_procedure(weights):
    assert torch.allclose(local_score(weights).float(), brute_force(weights), atol=1e-6)


def test_the_local_score_of_fixtures():
    thresholds = torch.linspace(0, 1, 100, dtype=WIDE)
    assert torch.equal(local_score(SELF), torch.full((100,), 1 / N, dtype=WIDE))
    assert torch.equal(local_score(FLAT), ((thresholds - 1e-6) * N).ceil().clamp(min=1) / N)
    assert local_area(local_score(SELF)).item() == pytest.approx(1 / N)
    assert local_area(local_score(FLAT)).item() == pytest.approx(0.5, abs=0.01)


def printed_listing(weights: Tensor) -> Tensor:
    """The appendix's listing, step by step: l and r are the next keys, and the size is r - l + 1."""
    n, thresholds = len(weights), torch.linspace(0, 1, 100, dtype=WIDE)
    sizes = torch.zeros(100, dtype=WIDE)
    for t, row in enumerate(weights):
        mass, size, left, right, turn, i = row[t].item(), 1, t - 1, t + 1, 0, 1
        while i < 100 and size < n:
            if mass >= thresholds[i] - 1e-6:
                sizes[i] += size
                i += 1
                continue
            if turn % 2 and right < n:
                mass, right = mass + row[right].item(), right + 1
            if not turn % 2 and left > 0:
                mass, left = mass + row[left].item(), left - 1
            turn += 1
            size = min(right - left + 1, n)
        sizes[i:] += n
    return sizes / n / n


@pytest.mark.parametrize("weights", [random(2.0, 37), random(0.5, 8), CAUSAL, SELF, TURN], ids=range(5))
def test_the_printed_local_score_follows_the_listing(weights):
    assert torch.allclose(local_score(weights, printed=True), printed_listing(weights))


def test_the_printed_local_score_skips_key_0_and_counts_two_keys_too_many():
    first = torch.zeros(N, N, dtype=WIDE)
    first[:, 0] = 1  # all mass is on key 0, which the listing never reaches
    assert local_score(first, printed=True)[1:-1].mean() > 0.98
    assert local_score(first)[1:-1].mean() < 0.8
    near = SELF.roll(-1, dims=0)  # token t reads t + 1, the first key on its right
    exact, printed = (local_score(near, printed=flag)[50] * N for flag in (False, True))
    assert printed.item() == pytest.approx(exact.item() + 2, abs=0.1)  # but for the rows at the borders


def test_the_share_of_a_neighborhood_is_that_of_its_nearest_tokens():
    """Row by row, by the procedure of the other curve: with n tokens taken, how much mass they hold."""
    weights = random(2.0, 37)
    shares = torch.zeros(100, dtype=WIDE)
    for t in range(37):
        taken = [t] + [s for step in range(1, 37) for s in (t - step, t + step) if 0 <= s < 37]
        for i, r in enumerate(torch.linspace(0, 1, 100, dtype=WIDE)):
            shares[i] += weights[t, taken[: math.ceil(float(r) * 37 - 1e-9)]].sum() / 37
    assert torch.allclose(local_share(weights), shares)


def test_the_share_of_fixtures():
    r = torch.linspace(0, 1, 100, dtype=WIDE)
    assert torch.allclose(local_share(FLAT), (r * N - 1e-6).ceil() / N)
    assert torch.equal(local_share(SELF), (r > 0).double())
    assert local_share(CAUSAL)[-1].item() == pytest.approx(1)
    far = torch.eye(N, dtype=WIDE).flip(0)  # token t reads token N - 1 - t
    assert bool((local_share(far) <= local_share(FLAT) + 0.02).all())


def test_maps_keep_their_mass():
    weights = random(n=10)
    assert torch.equal(attention_map(weights), weights / weights.sum(dim=1, keepdim=True))
    small = attention_map(weights, size=4)
    assert torch.allclose(small.sum(dim=-1), torch.ones(4, dtype=WIDE))
    first = weights[:3, 5:8]  # ten tokens in pools of 3, 2, 3 and 2
    assert small[0, 2].item() == pytest.approx(first.sum(dim=1).mean().item())
    with pytest.raises(InputError, match="size is 0"):
        attention_map(weights, size=0)


def test_maps_of_absolute_values_keep_their_mass():
    weights = torch.tensor([[2.0, -1.0], [0.5, 0.5]], dtype=WIDE)
    found = pooled_attention_map(instrument_view_of_weights(weights), signed=False)[0, 0]
    assert torch.allclose(found, torch.tensor([[2 / 3, 1 / 3], [0.5, 0.5]], dtype=WIDE))
    assert torch.equal(attention_map(weights), weights)


def test_the_fit_of_logarithms():
    logs = random(1.5, 300).log()
    found = lognormal_fit(logs.exp())
    assert found.mean.item() == pytest.approx(logs.mean().item())
    assert found.variance.item() == pytest.approx(logs.var(correction=0).item())
    centered = logs - logs.mean()
    assert found.skew.item() == pytest.approx((centered.pow(3).mean() / logs.var(correction=0) ** 1.5).item(), abs=1e-9)
    levels = torch.linspace(0.01, 0.99, 99, dtype=WIDE)
    assert torch.allclose(found.quantiles, logs.flatten().quantile(levels), atol=2e-3)


def test_the_distance_from_a_normal_law():
    import scipy.stats

    sharp = torch.empty(300, 300, dtype=WIDE).exponential_(generator=torch.Generator().manual_seed(0)).exp()
    for weights in (random(1.0, 300), torch.rand(300, 300, dtype=WIDE), sharp / sharp.sum(dim=0)):
        weights = weights / weights.sum(dim=1, keepdim=True)
        logs = weights.log().flatten()
        exact = scipy.stats.kstest(logs.numpy(), "norm", (logs.mean().item(), logs.std(correction=0).item())).statistic
        assert lognormal_fit(weights).ks.item() == pytest.approx(exact, abs=2e-3)
    flat = lognormal_fit(FLAT)
    assert flat.mean.item() == pytest.approx(-math.log(N))
    assert (flat.variance.item() < 1e-20, flat.skew.item(), flat.ks.item()) == (True, 0, 0)


@pytest.mark.parametrize("instrument", EACH, ids=lambda f: f.__name__)
def test_leading_axes_stay(instrument):
    weights = torch.stack([random(seed=i) for i in range(6)]).reshape(2, 3, N, N)
    found = instrument(weights)
    for i in range(2):
        for j in range(3):
            alone = instrument(weights[i, j])
            pairs = zip(found, alone, strict=True) if isinstance(found, tuple) else [(found, alone)]
            assert all(torch.allclose(a[i, j], b) for a, b in pairs)
    expected = {local_score: (2, 3, 100), local_share: (2, 3, 100), attention_map: (2, 3, N, N)}.get(instrument, (2, 3))
    assert tuple((found[0] if isinstance(found, tuple) else found).shape) == expected


@pytest.mark.parametrize("instrument", EACH, ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("weights", "line"),
    [
        (FLAT * 2, "a row of the weights sums to 2: each must sum to 1"),
        (torch.zeros(3, 3), "a row of the weights sums to 0"),
        (torch.full((2, 2), math.nan), "a weight is NaN or infinite"),
        (torch.full((2, 2), math.inf), "a weight is NaN or infinite"),
        (FLAT[:5], r"shape \(5, 64\): it must be \(..., N, N\)"),
        (torch.zeros(0, 0), "with N at least 1"),
        (torch.eye(3, dtype=torch.long), "torch.int64: they must be a tensor of floating point"),
        ([[1.0]], "list: they must be a tensor"),
    ],
)
def test_bad_weights_are_refused_in_one_line(instrument, weights, line):
    with pytest.raises(InputError, match=line) as error:
        instrument(weights)
    assert "\n" not in str(error.value)


def test_half_precision_may_differ_by_its_rounding():
    assert entropy(random(n=128).bfloat16()).item() == pytest.approx(entropy(random(n=128)).item(), abs=0.05)


def test_the_neighborhood_of_a_patch_grows_by_distance():
    """On a 3 x 3 grid: all weight on the patch above counts as one of the nearest five, though three tokens away."""
    from linnet.instruments.base import View
    from linnet.instruments.local_score import local_score_curve

    grid = torch.stack((torch.arange(9) // 3, torch.arange(9) % 3), dim=1).double()
    A = torch.eye(9, dtype=torch.float64)
    A[4] = 0
    A[4, 1] = 1.0  # the middle reads the patch above it

    def sizes(places):
        view = View("x", (1, 1, 9), False, lambda start, stop: A[None, None, start:stop], places=places)
        return float(local_score_curve(view)[0, 0, -1]) * 9 * 9 - 8  # what the middle alone needs: the others need 1

    assert 2 <= round(sizes(grid)) <= 5
    assert round(sizes(None)) == 6  # along the sequence: itself, two on each side, then this one
