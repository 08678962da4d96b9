"""Gradients with respect to scores: the closed forms against autograd, each within its bound."""

import pytest
import torch

import linnet
from linnet.errors import InputError
from linnet.instruments.base import instrument_view_of_mixer
from linnet.instruments.gradient_bound import (
    gradient_row_bound,
    linear_gradient_row,
    linear_gradient_size,
    norm_gradient_bound,
    norm_gradient_size,
    softmax_gradient_row,
    softmax_gradient_size,
    unbounded_gradient_example,
)
from linnet.ops.features import one_plus_elu_features as phi
from linnet.ops.rms import srms
from linnet.registry import INSTRUMENT

WIDE = torch.float64


def jacobian(p, s):
    """|dp_j/ds_k| for a row."""
    return torch.autograd.functional.jacobian(p, s).abs()


@pytest.mark.parametrize("scale", [0.1, 1.0, 5.0])
def test_softmax_is_bounded_by_a_quarter(scale):
    s = torch.randn(20, 9, dtype=WIDE) * scale
    closed = softmax_gradient_size(s)
    for row, found in zip(s, closed, strict=True):
        exact = jacobian(lambda x: x.softmax(dim=-1), row)
        assert torch.allclose(exact.diagonal(), found)
        assert float(exact.max()) <= float(found.max()) + 1e-15
        assert float(exact.max()) <= 0.25
    assert float(softmax_gradient_size(torch.zeros(2, dtype=WIDE)).max()) == 0.25  # and the bound is reached


@pytest.mark.parametrize("scale", [1e-4, 1.0, 50.0])
def test_linear_attention_is_bounded_only_by_its_scores(scale):
    s = torch.rand(20, 9, dtype=WIDE) * scale + 1e-12
    closed = linear_gradient_size(s)
    for row, found in zip(s, closed, strict=True):
        exact = jacobian(lambda x: x / x.sum(), row)
        assert torch.allclose(exact.diagonal(), found)
        assert bool((exact <= 1 / (4 * row) + 1e-9).all())


@pytest.mark.parametrize("largest", [1.0, 1e3, 1e12])
def test_the_construction_exceeds_any_bound(largest):
    q, k = unbounded_gradient_example(largest, N=7, D=4)
    s = phi(q) @ phi(k).mT
    assert float(jacobian(lambda x: x / x.sum(), s[0]).max()) > largest
    assert float(linear_gradient_size(s).max()) > largest
    with pytest.raises(InputError, match="largest is -1"):
        unbounded_gradient_example(-1.0)


@pytest.mark.parametrize("under_root", [True, False])
@pytest.mark.parametrize("scale", [1e-6, 1e-2, 1.0])
def test_a_norm_bounds_the_gradient(under_root, scale):
    eps = 1e-3
    A, v = torch.randn(5, 12, dtype=WIDE) * scale, torch.randn(12, 6, dtype=WIDE)

    def o(weights):
        x = weights @ v
        square = x.square().mean(dim=-1, keepdim=True)
        return x / (square + eps).sqrt() if under_root else srms(x, eps=eps)

    found = norm_gradient_size(A, v, eps, under_root)
    for row, closed in zip(A, found, strict=True):
        assert torch.allclose(jacobian(o, row).sum(dim=0), closed)
    c2 = float(v.abs().max())
    bound = norm_gradient_bound(1, c2, 6, eps, under_root)
    assert bound == pytest.approx(3 * c2 * 6 / (2 * (eps**0.5 if under_root else eps)))
    assert float(found.max()) <= bound


def test_the_bound_of_a_norm_is_of_the_right_size():
    """At a zero output, the gradient reaches two thirds of its bound in either form."""
    A, v = torch.zeros(1, 3, dtype=WIDE), torch.ones(3, 6, dtype=WIDE)
    for under_root in (True, False):
        found = float(norm_gradient_size(A, v, 1e-4, under_root).max())
        assert found == pytest.approx(norm_gradient_bound(1, 1, 6, 1e-4, under_root) * 2 / 3)


@pytest.mark.parametrize("causal", [True, False])
def test_the_gradient_of_a_layer_through_its_norm(causal):
    """Compare the instrument's sum over the merged width with autograd through the layer's own norm."""
    layer = linnet.create_mixer("norm", width=12, heads=2, causal=causal).eval()
    x = torch.randn(1, 9, 12)
    x[:, 6:] *= 20  # if queries saw them, these would be the largest
    view = instrument_view_of_mixer(layer, x)
    A, v = layer.core.weights(view.q, view.k).double(), view.v.double()
    largest = torch.zeros(2, dtype=WIDE)
    for h in range(2):
        for t in range(9):

            def o(row, h=h, t=t):
                changed = torch.cat([A[:, :h], A[:, h : h + 1].clone(), A[:, h + 1 :]], dim=1)
                changed[0, h, t] = row
                return layer.core.finish(changed @ v)[0, :, t].flatten()

            scores = jacobian(o, A[0, h, t]).sum(dim=0)
            largest[h] = max(largest[h], scores[: t + 1 if causal else 9].max())  # of keys that a query sees
    found = INSTRUMENT["gradient_bound"]().measure(view)
    assert torch.allclose(found["largest"][0], largest, rtol=1e-5)
    assert bool((found["largest"] <= found["bound"]).all())


@pytest.mark.parametrize(
    ("name", "causal"),
    [*((name, causal) for name in ("softmax", "elu", "lln", "diag") for causal in (True, False)), ("bigbird", False)],
)
def test_the_gradient_of_a_layer(name, causal):
    view = instrument_view_of_mixer(
        linnet.create_mixer(name, width=12, heads=2, causal=causal).eval(), torch.randn(2, 30, 12)
    )
    instrument = INSTRUMENT["gradient_bound"]()
    assert instrument.refusal(view) is None
    found = instrument.measure(view)
    assert bool((found["largest"] <= found["bound"] + 1e-12).all())
    if name == "elu":
        s = phi(view.q.double()) @ phi(view.k.double()).mT
        s = s.tril() if causal else s
        exact = linear_gradient_size(s)
        exact = torch.where(s > 0, exact, 0)
        assert torch.allclose(found["largest"], exact.amax(dim=(2, 3)))


def test_the_gradient_of_rela_is_that_of_its_positive_scores():
    """Only scores inside the block that ReLU lets through have a gradient."""
    layer = linnet.create_mixer("diag", width=8, heads=1, causal=False, kind="rela", block=4, positions="none").eval()
    view = instrument_view_of_mixer(layer, torch.randn(1, 8, 8))
    q, k, v = (x[0, 0].double() for x in (view.q, view.k, view.v))
    s = (q @ k.mT) / 8**0.5
    block = torch.block_diag(*[torch.ones(4, 4)] * 2).bool()
    largest = 0.0
    for t in range(8):
        exact = jacobian(lambda row, t=t: srms((row.relu() * block[t]) @ v), s[t])
        largest = max(largest, float(exact.sum(dim=0).max()))
    found = INSTRUMENT["gradient_bound"]().measure(view)
    assert found["largest"].item() == pytest.approx(largest, rel=1e-5)
    assert found["largest"].item() <= found["bound"].item()


def spectral(f, row):
    """The largest singular value of a Jacobian, with signs, by autograd."""
    return float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(f, row), 2))


def test_row_norms_are_singular_values():
    torch.manual_seed(0)
    s, v = torch.rand(4, 9, dtype=WIDE) + 0.1, torch.randn(9, 5, dtype=WIDE)
    softmax, linear = softmax_gradient_row(s.softmax(dim=-1), v), linear_gradient_row(s, v)
    for t, row in enumerate(s):
        assert float(softmax[t]) == pytest.approx(spectral(lambda x: x.softmax(dim=-1) @ v, row))
        assert float(linear[t]) == pytest.approx(spectral(lambda x: (x / x.sum()) @ v, row))


def test_a_score_of_zero_has_no_gradient():
    s, v = torch.rand(9, dtype=WIDE) + 0.1, torch.randn(9, 5, dtype=WIDE)
    masked = torch.cat([s, torch.zeros(3, dtype=WIDE)])
    assert torch.allclose(linear_gradient_row(masked, torch.cat([v, 100 * v[:3]])), linear_gradient_row(s, v))


@pytest.mark.parametrize("n", [2, 4, 8, 32, 200])
def test_the_bound_of_a_softmax_row_holds_from_eight_tokens_on(n):
    """Two keys with opposite values and half of the weight each reach c1 c2 / sqrt(2), whatever n is."""
    p, v = torch.zeros(n, dtype=WIDE), torch.ones(n, 1, dtype=WIDE)
    p[:2], v[0] = 0.5, -1
    found, bound = float(softmax_gradient_row(p, v)), float(gradient_row_bound(torch.tensor(1.0, dtype=WIDE), n))
    assert found == pytest.approx(0.5**0.5)
    assert bound == pytest.approx(n**0.5 / 4)
    assert (found <= bound + 1e-12) == (n >= 8)
    torch.manual_seed(n)
    p, v = (3 * torch.randn(50, n, dtype=WIDE)).softmax(dim=-1), torch.randn(50, n, 3, dtype=WIDE)
    v = v / v.norm(dim=2, keepdim=True)
    assert float(softmax_gradient_row(p, v).max()) <= 0.5**0.5 + 1e-12


@pytest.mark.parametrize("n", [8, 32, 200])
def test_the_bound_of_a_linear_row(n):
    """Equal scores t and values of both signs: c1 c2 / (sqrt(n) t), which is 4/n of the bound."""
    t = 1e-3
    v = torch.ones(n, 1, dtype=WIDE)
    v[::2] = -1
    found = linear_gradient_row(torch.full((n,), t, dtype=WIDE), v)
    assert float(found) == pytest.approx(1 / (n**0.5 * t))
    assert float(found / gradient_row_bound(torch.tensor(1.0, dtype=WIDE), n, t)) == pytest.approx(4 / n)


@pytest.mark.parametrize("xnorm,eps", [("srms", None), ("srms", 1e-2), ("eq34", None), ("eq34", 1e-2)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_row_norm_of_a_layer_through_its_norm(xnorm, eps, causal):
    torch.manual_seed(0)
    layer = linnet.create_mixer("norm", width=12, heads=2, causal=causal, xnorm=xnorm, eps=eps).eval()
    view = instrument_view_of_mixer(layer, torch.randn(1, 9, 12))
    A, v = layer.core.weights(view.q, view.k).double(), view.v.double()
    largest = torch.zeros(2, dtype=WIDE)
    for h in range(2):
        for t in range(9):

            def o(row, h=h, t=t):
                changed = A.clone()
                changed[0, h, t, : len(row)] = row
                return layer.core.finish(changed @ v)[0, :, t].flatten()

            largest[h] = max(largest[h], spectral(o, A[0, h, t, : t + 1 if causal else 9]))
    found = INSTRUMENT["gradient_bound"]().measure(view)
    assert torch.allclose(found["row"][0], largest, rtol=1e-5)
    at = (1e-8 if eps is None else eps) ** (0.5 if xnorm == "eq34" else 1)
    c2 = float(v.norm(dim=3).max())
    assert found["row_bound"].flatten().tolist() == pytest.approx([3 * 3 * c2 * 12 / (2 * at)] * 2)
    for name in ("", "row_"):
        ratio = found[f"{name}bound"] / found["row" if name else "largest"]
        assert torch.equal(found[f"{name}ratio"], ratio) and float(ratio.min()) >= 1


@pytest.mark.parametrize("name", ["softmax", "elu", "lln", "performer", "diag"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_row_norm_of_a_layer(name, causal):
    """Against autograd through the row's own scores."""
    torch.manual_seed(0)
    view = instrument_view_of_mixer(
        linnet.create_mixer(name, width=12, heads=2, causal=causal).eval(), torch.randn(2, 20, 12)
    )
    found = INSTRUMENT["gradient_bound"]().measure(view)
    A, v = view.part(0, 20), view.v.double()
    largest = torch.zeros(2, 2, dtype=WIDE)
    for b in range(2):
        for h in range(2):
            for t in range(20):
                keys = t + 1 if causal else 20
                p, own = A[b, h, t, :keys], v[b, h, :keys]
                if view.kernel is None:
                    norm = spectral(lambda s, own=own: s.softmax(dim=-1) @ own, p.log().clamp(min=-1e3))
                else:
                    total = (view.kernel.phi_q[b, h, t] * view.kernel.phi_k[b, h, :keys]).sum()
                    norm = spectral(lambda s, own=own: (s / s.sum()) @ own, p * total)
                largest[b, h] = max(largest[b, h], norm)
    assert torch.allclose(found["row"], largest, rtol=1e-6)
    assert float(found["row_ratio"].min()) >= 1
