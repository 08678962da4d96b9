"""Views give the same numbers from weights, mixers and models, by rows and as a whole, for every mechanism."""

import subprocess
import sys

import pytest
import torch

import linnet
from linnet.errors import InputError, LinnetError
from linnet.instruments import base
from linnet.instruments.analyze import analyze_views
from linnet.instruments.base import (
    View,
    instrument_view_of_mixer,
    instrument_view_of_weights,
    instrument_views_of_model,
)
from linnet.instruments.entropy import measure_entropy
from linnet.instruments.spectral_gap import arnoldi_spectral_radius, spectral_gap_of_view, spectral_product
from linnet.registry import INSTRUMENT

FORMS = [
    (name, causal)
    for name in linnet.list_attention()
    for causal in (True, False)
    if linnet.describe_attention(name)["causal" if causal else "bidirectional"]
]
each_form = pytest.mark.parametrize("name,causal", FORMS)


def mixer(name: str, causal: bool, **options: object) -> torch.nn.Module:
    return linnet.create_mixer(name, width=24, heads=3, causal=causal, **options).eval()


@each_form
def test_rows_equal_the_dense_weights(name, causal, monkeypatch):
    layer, x = mixer(name, causal), torch.randn(2, 70, 24)
    with torch.no_grad():
        A = layer.weights(x)
    scale, few = float(A.abs().max()), 2 * layer.core.heads * 70 * 16
    for entries, held in ((base.ENTRIES, base.HELD), (few, 0)):  # in one piece, and by 16 rows
        monkeypatch.setattr(base, "ENTRIES", entries)
        monkeypatch.setattr(base, "HELD", held)
        view = instrument_view_of_mixer(layer, x)
        rows = torch.cat([part for _, part in view.rows()], dim=2)
        assert float((rows - A).abs().max()) <= 1e-5 * scale
        assert [start for start, _ in view.rows()] == ([0] if held else [0, 16, 32, 48, 64])


@each_form
def test_every_instrument_measures_or_says_why_not(name, causal):
    subject = mixer(name, causal)
    view = instrument_view_of_mixer(subject, torch.randn(2, 70, 24))
    (layer,) = analyze_views([view])["layers"]
    for key in INSTRUMENT.names():
        instrument = INSTRUMENT[key]
        assert instrument.what and instrument.paper
        if instrument.reads == "gradients" or not instrument.usual:
            continue
        if key in layer["refused"]:
            assert layer["refused"][key] and "\n" not in layer["refused"][key]
            continue
        found = layer["values"][key]
        assert set(instrument.shows) <= set(found)
        if (name, key) == ("cosformer", "gradient_bound"):  # ReLU features give scores of 0, whose bound is infinite
            scores, seen = view.kernel.phi_q @ view.kernel.phi_k.mT, torch.ones(70, 70, dtype=torch.bool)
            assert (scores == 0)[..., seen.tril() if causal else seen].any()
            del found["row_bound"], found["row_ratio"]
        assert all(len(value) == subject.core.heads and None not in value for value in found.values()), key
    assert {"entropy", "temperature", "local_score", "lognormal_fit", "moment_matching"} <= set(layer["values"])


def test_notes_say_when_weights_are_signed_or_not_normalized():
    view = instrument_view_of_mixer(mixer("norm", False, phi="elu"), torch.randn(1, 40, 24))
    assert view.signed and not view.normalized
    assert "absolute" in INSTRUMENT["entropy"]().note(view)
    assert "absolute" in INSTRUMENT["temperature"]().note(view)
    for name in ("local_score", "attention_map"):
        assert INSTRUMENT[name]().note(view) == "rows divided by their sum"
    assert "the gap is then negative" in INSTRUMENT["spectral_gap"]().note(view)
    assert "absolute values, gap of rows divided" in INSTRUMENT["concentration"]().note(view)
    positive = instrument_view_of_mixer(mixer("kernelized", False), torch.randn(1, 40, 24))
    for name in ("entropy", "local_score", "attention_map", "spectral_gap", "concentration"):
        assert INSTRUMENT[name]().note(positive) == "rows divided by their sum"
    plain = instrument_view_of_mixer(mixer("softmax", False), torch.randn(1, 40, 24))
    assert plain.normalized and not plain.signed
    assert INSTRUMENT["entropy"]().note(plain) is None


def test_a_row_without_a_weight_does_not_count():
    layer = mixer("diag", False, kind="rela", positions="none")
    x = torch.randn(1, 30, 24)
    with torch.no_grad():
        layer.qkv.weight.zero_()
        layer.qkv.bias.zero_()
    view = instrument_view_of_mixer(layer, x)  # all weights are relu(0)
    assert measure_entropy(view)["bits"].isnan().all()
    with pytest.raises(LinnetError, match="sums to 0"):
        spectral_gap_of_view(view)
    with pytest.raises(LinnetError, match="sums to 0"):
        arnoldi_spectral_radius(lambda x: x / 0, (1, 2, 8))


@pytest.mark.parametrize("name,options", [("lln", {}), ("elu", {}), ("norm", {"positions": "none"})])
def test_the_gap_from_features_equals_that_from_weights(name, options):
    view = instrument_view_of_mixer(mixer(name, False, **options), torch.randn(2, 90, 24) * 3)
    A = torch.cat([rows for _, rows in view.stochastic()], dim=2)
    assert torch.allclose(
        spectral_gap_of_view(view),
        torch.stack([spectral_gap_of_view(instrument_view_of_weights(a))[0] for a in A]),
        atol=1e-9,
    )


@pytest.mark.parametrize("name,shift,scale", [("lln", 40, 0.05), ("lln", -40, 0.05), ("performer", 0, 40)])
def test_features_reproduce_the_weights_of_large_scores(name, shift, scale):
    """e^q and e^k overflow here, but the weights do not."""
    core = linnet.create_attention(name, heads=2, head_dim=8, causal=False).double().eval()
    q, k = torch.randn(2, 1, 2, 40, 8, dtype=torch.float64) * scale + shift
    found = core.rows(q, k, 5, 20)
    assert torch.allclose(found, core.weights(q, k)[:, :, 5:20], rtol=1e-6, atol=1e-9)
    view = View(name, (1, 2, 40), False, lambda start, stop: core.rows(q, k, start, stop), core, q, k, k)
    assert torch.allclose(
        spectral_gap_of_view(view)[0],
        spectral_gap_of_view(instrument_view_of_weights(core.weights(q, k)[0]))[0],
        atol=1e-6,
    )


def test_the_iterated_gap_equals_that_of_all_eigenvalues():
    for name in ("softmax", "diag", "lln"):
        view = instrument_view_of_mixer(mixer(name, False), torch.randn(1, 150, 24) * 2)
        iterated = 1 - arnoldi_spectral_radius(
            lambda x, view=view: spectral_product(view, x) - x.mean(dim=2, keepdim=True), view.shape
        )
        A = torch.cat([rows for _, rows in view.stochastic()], dim=2)
        assert torch.allclose(iterated, spectral_gap_of_view(instrument_view_of_weights(A[0])), atol=1e-3), name


def test_the_iterated_gap_of_few_eigenvalues():
    """The iteration of some heads ends after a step or two, while others continue."""
    N = 200
    own, flat = torch.eye(N, dtype=torch.float64), torch.full((N, N), 1 / N, dtype=torch.float64)
    halves = torch.block_diag(*[torch.full((N // 2, N // 2), 2 / N, dtype=torch.float64)] * 2)
    rough = torch.randn(N, N, dtype=torch.float64).softmax(dim=-1)
    A = torch.stack([own, flat, (own + flat) / 2, halves, halves.roll(N // 2, dims=0), rough])[None]
    for known in (A, A[:, :1], A[:, 2:3]):
        iterated = 1 - arnoldi_spectral_radius(
            lambda x, A=known: A @ x - x.mean(dim=2, keepdim=True), (1, known.shape[1], N)
        )
        assert torch.allclose(iterated, spectral_gap_of_view(instrument_view_of_weights(known[0])), atol=1e-4)


def test_a_model_is_seen_layer_by_layer():
    sizes = {"vocab_size": 50, "width": 24, "heads": 3}
    model = linnet.create_model("transnormer_t2_roberta_small", layers=["diag", "diag+norm"], **sizes)
    ids = torch.randint(0, 50, (2, 40))
    with pytest.raises(InputError, match="training mode"):
        instrument_views_of_model(model, ids)
    views = instrument_views_of_model(model.eval(), ids)
    assert [view.name for view in views] == ["layer 0 diag", "layer 1 diag", "layer 1 norm"]
    assert all(view.shape == (2, 3, 40) and not view.causal for view in views)
    x = model.embed(ids)
    expected = model.blocks[0].mixers[0].weights(model._place(x, torch.arange(40)))
    assert torch.allclose(next(views[0].rows())[1], expected.double(), atol=1e-6)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_joined_mechanisms_are_seen_one_by_one():
    sizes = {"width": 16, "heads": 2, "ffn_width": 16, "vocab_size": 50}
    model = linnet.create_model("transnormer_t2_roberta_small", layers=["diag|norm", "norm>norm"], **sizes).eval()
    views = instrument_views_of_model(model, torch.randint(0, 50, (2, 40)))
    assert [view.name for view in views] == ["layer 0 diag", "layer 0 norm", "layer 1 norm", "layer 1 norm"]
    assert [view.shape[1] for view in views] == [1, 1, 2, 2]
    assert not torch.equal(views[2].part(0, 40), views[3].part(0, 40))
    assert len(analyze_views(views, ["entropy", "gradient_bound"])["layers"]) == 4


def test_a_foreign_model_is_refused_in_one_line():
    with pytest.raises(InputError, match="model is a Linear: only a model of linnet"):
        instrument_views_of_model(torch.nn.Linear(2, 2).eval(), torch.zeros(1, 2, dtype=torch.long))
    with pytest.raises(InputError, match="training mode"):
        instrument_view_of_mixer(mixer("softmax", True).train(), torch.randn(1, 4, 24))


def test_nan_weights_are_refused_in_one_line():
    with pytest.raises(InputError, match="NaN or infinite"):
        measure_entropy(instrument_view_of_mixer(mixer("softmax", True), torch.full((1, 4, 24), torch.nan)))
    with pytest.raises(InputError, match="NaN or infinite"):
        INSTRUMENT["gradient_bound"]().measure(
            instrument_view_of_mixer(mixer("norm", True), torch.full((1, 4, 24), torch.nan))
        )


def test_names_are_known_without_torch():
    program = "import sys\nfrom linnet.registry import INSTRUMENT\nprint(*INSTRUMENT.names())\n"
    done = subprocess.run(
        [sys.executable, "-c", program + "sys.exit('torch' in sys.modules)"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == INSTRUMENT.names()
    assert {"entropy", "temperature", "spectral_gap", "local_score", "lognormal_fit"} <= set(INSTRUMENT.names())


LONG = """
import resource, sys
import torch
import linnet
from linnet.instruments.base import instrument_view_of_mixer
from linnet.registry import INSTRUMENT

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # GiB

torch.manual_seed(0)
names, instruments = sys.argv[2].split(","), [INSTRUMENT[name]() for name in sys.argv[3:]]
mixers = [linnet.create_mixer(name, width=32, heads=1, causal=False).eval() for name in names]
for N in (64, int(sys.argv[1])):
    before = peak()
    for mixer in mixers:
        view = instrument_view_of_mixer(mixer, torch.randn(1, N, 32))
        for instrument in instruments:
            assert all(bool(value.isfinite().all()) for value in instrument.measure(view).values())
print(peak() - before, peak())
"""


def memory(N: int, mechanisms: str, instruments: list[str]) -> list[float]:
    """How far a process's peak memory grows while it measures N tokens, and that peak, in GiB."""
    program = [sys.executable, "-c", LONG, str(N), mechanisms, *instruments]
    return [float(x) for x in subprocess.run(program, capture_output=True, text=True, check=True).stdout.split()]


@pytest.mark.parametrize(
    "names,instruments",
    [
        ("softmax,lln,diag", ["entropy", "local_score"]),
        ("kernelized,flash_quad", ["entropy"]),
        ("softmax", ["spectral_gap"]),
    ],
)
def test_long_sequences_are_streamed(names, instruments):
    """The growth is smaller than one whole matrix of weights in float64."""
    more, _ = memory(4096, names, instruments)
    assert more < 4096 * 4096 * 8 / 2**30


@pytest.mark.slow
@pytest.mark.parametrize("name", ["softmax", "lln", "norm"])
def test_16384_tokens_fit_into_2_gib(name):
    usual = [key for key in INSTRUMENT.names() if INSTRUMENT[key].usual and INSTRUMENT[key].reads == "weights"]
    _, whole = memory(16_384, name, usual)
    assert whole < 2.0
