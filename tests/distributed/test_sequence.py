"""One sequence over 2 and 4 processes: outputs and gradients equal those of one process, whatever the masks."""

import pytest
import torch

import linnet
from linnet.distributed import sequence_parallel, sequence_parallel_model
from linnet.errors import InputError, UnsupportedError
from linnet.registry import ATTENTION
from tests.distributed import sequence_cases as cases

MIXERS = {
    "norm": {},
    "elu": {"positions": "rope"},
    "lln": {},
    "performer": {"features": 12},
    "cosformer": {"max_length": 64},
    "diag": {"block": 6, "kind": "rela"},
    "lln_diag": {"block": 8, "positions": "lrpe"},
    "hedgehog": {},
}
FORMS = pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
OTHER_MODELS = [(True, "plain"), (False, "both"), (True, "segments"), (False, "padding")]
EACH = pytest.mark.parametrize("name", MIXERS)


@pytest.fixture(scope="module")
def workers(tmp_path_factory):
    workers = cases.Workers(tmp_path_factory.mktemp("ranks"))
    yield workers
    workers.close()


def assert_mixer_equals(workers, size, name, options, causal, kind, dtype, equal):
    bound = 1e-10 if dtype == torch.float64 else 1e-5
    for rank, found in enumerate(workers.run(cases.compare_mixer, size, name, options, causal, kind, dtype, 48, equal)):
        assert max(found) <= bound, f"rank {rank} of {size}: {found}"


@EACH
@FORMS
def test_equals_one_process_with_any_masks(workers, name, causal):
    assert_mixer_equals(workers, 4, name, MIXERS[name], causal, "both", torch.float64, equal=False)


@EACH
@FORMS
def test_equals_one_process_on_two_ranks_in_float32(workers, name, causal):
    assert_mixer_equals(workers, 2, name, MIXERS[name], causal, "plain", torch.float32, equal=True)


@pytest.mark.slow
@EACH
@FORMS
@pytest.mark.parametrize("kind", ["plain", "padding", "segments", "both"])
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equals_one_process_in_every_combination(workers, name, causal, kind, size, equal, dtype):
    assert_mixer_equals(workers, size, name, MIXERS[name], causal, kind, dtype, equal)


@pytest.mark.parametrize(("name", "size", "causal"), [("norm", 2, False), ("lln", 4, True)])
def test_contract_over_ranks(workers, name, size, causal):
    for failures, checks in workers.run(cases.check_contract, size, name, MIXERS[name], causal, (1, 7, 64)):
        assert not failures
        assert {"padding changes the result", "packing changes the result"} <= set(checks)


@pytest.mark.slow
@EACH
@FORMS
@pytest.mark.parametrize("size", [2, 4])
def test_contract_of_every_mixer_over_ranks(workers, name, causal, size):
    for failures, _ in workers.run(cases.check_contract, size, name, MIXERS[name], causal, (1, 7, 63, 64, 100)):
        assert not failures


@pytest.mark.parametrize(
    ("causal", "kind"),
    [(True, "both"), (False, "plain"), *(pytest.param(*each, marks=pytest.mark.slow) for each in OTHER_MODELS)],
)
def test_model_equals_one_process(workers, causal, kind):
    overrides = {"positions": "learned", "max_length": 64} if kind == "plain" else {}
    for worst, loss in workers.run(cases.compare_model, 4, causal, kind, overrides, False):
        assert worst <= 1e-10
        assert loss <= 1e-10


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.slow), "both"])
def test_model_and_fsdp_share_a_mesh(workers, kind):
    for worst, _ in workers.run(cases.compare_model, 4, True, kind, {}, True):
        assert worst <= 1e-10


@EACH
@FORMS
@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.slow), "both"])
def test_traffic_does_not_depend_on_length(workers, name, causal, kind):
    options = {"max_length": 512} if name == "cosformer" else MIXERS[name]
    short, long = (workers.run(cases.measure_traffic, 2, name, options, causal, N, kind) for N in (96, 384))
    assert short == long
    forward, backward, masks, _ = short[1]
    assert backward <= forward
    assert masks > 0


def test_traffic_of_norm_is_one_state(workers):
    """S of 2 rows and 2 heads, 8 x 8 numbers of 4 bytes, from each of the 3 other ranks."""
    for forward, backward, _, calls in workers.run(cases.measure_traffic, 4, "norm", {}, True, 96):
        assert forward == backward == 3 * 2 * 2 * 8 * 8 * 4
        assert calls == 3  # lengths, states, their gradients


def test_aligned_blocks_send_nothing(workers):
    for forward, backward, _, _ in workers.run(cases.measure_traffic, 4, "diag", {"block": 8}, True, 96):
        assert forward == backward == 0


def test_capability_decides_what_is_refused():
    """Without a process group: what can be cut fails later than what cannot."""
    for name in linnet.list_attention():
        cls = ATTENTION[name]
        mixer = linnet.create_mixer(name, width=16, heads=2, causal=not cls.bidirectional_form)
        with pytest.raises((InputError, UnsupportedError)) as caught:
            sequence_parallel(mixer)
        message = str(caught.value)
        assert "\n" not in message
        assert (name in MIXERS) == message.startswith("no process group exists"), message
        assert name in MIXERS or message.startswith(f"{name}: its sequence cannot be cut over ranks: ")


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        ("lln", {"statistics": "tensor"}, "statistics='tensor'"),
        ("lln_diag", {"statistics": "tensor"}, "statistics='tensor'"),
        ("performer", {"redraw": True}, "redraw"),
        ("norm", {"positions": "rope2d"}, "rope2d"),
        ("elu", {"positions": "rope2d"}, "rope2d"),
    ],
)
def test_options_that_cannot_be_cut(name, options, why):
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=False, **options)
    with pytest.raises(UnsupportedError, match=f"{name}: its sequence cannot be cut over ranks: .*{why}"):
        sequence_parallel(mixer)


def test_models_that_cannot_be_cut():
    with pytest.raises(UnsupportedError, match="softmax: its sequence cannot be cut"):
        sequence_parallel_model(cases.tiny_model(layers=["norm", "softmax"]))
    with pytest.raises(UnsupportedError, match="reads whole rows"):
        sequence_parallel_model(linnet.create_model("transnormer_t2_lra_small"))
    with pytest.raises(InputError, match="it must be a linnet model"):
        sequence_parallel_model(torch.nn.Linear(2, 2))
    with pytest.raises(InputError, match="it must be a mixer"):
        sequence_parallel(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("rows", "the slices have 1, 2, 1, 2 rows: every rank must have the same batch"),
        ("segments", "segments is given on some ranks only"),
        ("length", "a sequence of 32 tokens: cosformer was built with max_length=16"),
        ("padded length", "a sequence of 32 tokens: cosformer was built with max_length=16"),
        ("divide", "a sequence of 7 tokens: 4 ranks must divide it"),
    ],
)
def test_every_rank_says_what_does_not_fit(workers, what, message):
    for error in workers.run(cases.misuse, 4, what):
        assert message in error
        assert "\n" not in error
