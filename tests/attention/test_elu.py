"""1+elu attention: its equation with positions and without a denominator."""

import pytest
import torch
from torch.nn.functional import elu

import linnet
from linnet.attention.relative import RelativePositions
from linnet.instruments.base import instrument_view_of_mixer


def inputs(N: int = 40, D: int = 8, scale: float = 1.0) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [scale * torch.randn(2, 3, N, D, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("positions", ["rope", "lrpe"])
def test_positions_turn_the_numerator_alone(positions: str, causal: bool) -> None:
    core = linnet.create_attention("elu", heads=3, head_dim=8, causal=causal, positions=positions).double()
    q, k, v = inputs()
    phi_q, phi_k = 1 + elu(q), 1 + elu(k)
    turned_q, turned_k = core.positions(torch.arange(40), phi_q, phi_k)
    over, under = turned_q @ turned_k.mT, phi_q @ phi_k.mT
    if causal:
        over, under = over.tril(), under.tril()
    A = over / under.sum(dim=-1, keepdim=True)
    assert torch.allclose(core.weights(q, k), A)
    assert torch.allclose(core(q, k, v), A @ v)


def test_the_denominator_stays_positive_where_turned_weights_cancel() -> None:
    """The sum of the turned weights of a row changes its sign, and the output stays finite."""
    core = linnet.create_attention("elu", heads=1, head_dim=2, causal=True, positions="rope").double()
    same = torch.zeros(1, 1, 64, 2, dtype=torch.float64)
    total = core.weights(same, same).sum(dim=-1)
    assert bool((total < 0).any()) and bool((total > 0).any())
    assert float(core(same, same, torch.ones_like(same)).abs().max()) <= 1


@pytest.mark.parametrize("causal", [True, False])
def test_without_a_denominator_it_is_a_product_of_features(causal: bool) -> None:
    core = linnet.create_attention("elu", heads=3, head_dim=8, causal=causal, normalize=False)
    q, k, v = inputs()
    A = (1 + elu(q)) @ (1 + elu(k)).mT
    assert torch.allclose(core(q, k, v), (A.tril() if causal else A) @ v)


def test_only_positions_that_learn_have_weights() -> None:
    for name in ("elu", "lln", "lln_diag", "performer"):
        plain, rope, lrpe = (
            linnet.create_attention(name, heads=2, head_dim=8, causal=True, positions=kind).state_dict()
            for kind in ("none", "rope", "lrpe")
        )
        own = {"W"} if name == "performer" else set()
        assert set(plain) == set(rope) == own
        assert set(lrpe) == own | {"positions.theta", "positions.u"}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", ["elu", "lln", "lln_diag", "performer"])
def test_instruments_read_the_turned_weights(name: str, causal: bool) -> None:
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=causal, positions="lrpe").eval()
    x = torch.randn(1, 20, 16)
    view = instrument_view_of_mixer(mixer, x)
    rows = torch.cat([view.part(0, 7), view.part(7, 20)], dim=2)
    assert torch.allclose(rows.float(), mixer.weights(x), atol=1e-5)


@pytest.mark.parametrize("name", ["lln", "lln_diag", "performer"])
@pytest.mark.parametrize("causal", [True, False])
def test_exponential_features_are_those_of_turned_queries_and_keys(name: str, causal: bool) -> None:
    core, plain = (
        linnet.create_attention(name, heads=3, head_dim=8, causal=causal, positions=kind).double()
        for kind in ("lrpe", "none")
    )
    plain.load_state_dict({key: x for key, x in core.state_dict().items() if "positions" not in key})
    q, k, v = inputs()
    turns = RelativePositions("lrpe", 8).double()
    turns.load_state_dict(core.positions.state_dict())
    assert torch.allclose(core(q, k, v), plain(*turns(torch.arange(40), q, k), v))


def test_which_weights_depend_on_distances_alone() -> None:
    """Equal queries and keys everywhere: with relative positions each diagonal of the numerator is constant."""
    torch.manual_seed(0)
    spread = {}
    for name, options in {"elu": {}, "performer": {"features": 20_000}, "lln": {}}.items():
        core = linnet.create_attention(name, heads=1, head_dim=8, causal=False, positions="rope", **options).double()
        q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64).div(2).expand(-1, -1, 12, -1) for _ in range(2))
        A = core.weights(q, k)[0, 0].double()
        ratio = A[1:, 1:] / A[:-1, :-1]  # constant along a row: only the row's denominator changes
        spread[name] = float((ratio / ratio[:, :1] - 1).abs().max())
    assert spread["elu"] < 1e-9 and spread["performer"] < 0.05 < spread["lln"], spread
