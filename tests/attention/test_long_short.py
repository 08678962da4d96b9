"""Transformer-LS: what each query sees, landmarks as averages, the two norms, and a state that grows by chunks."""

import pytest
import torch

import linnet
from linnet.errors import InputError
from linnet.testing import check_attention, contract_difference


def seen(core: linnet.attention.base.Core, N: int) -> torch.Tensor:
    """(N, N): which tokens each query sees, by the gradient of its output."""
    q, k, v = (torch.randn(1, core.heads, N, core.head_dim, dtype=torch.float64) for _ in range(3))
    v.requires_grad_()
    o = core.double()(q, k, v).sum(dim=(0, 1, 3))
    return torch.stack([torch.autograd.grad(o[t], v, retain_graph=True)[0].abs().sum(dim=(0, 1, 3)) for t in range(N)])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("options", [{"dual_norm": False}, {"window": 3, "chunk": 5, "landmarks": 2}])
def test_contract(options: dict, causal: bool) -> None:
    check_attention("long_short", causal=causal, options=options, lengths=(1, 7, 64, 100))


def test_without_norms_the_weights_give_the_output() -> None:
    for causal in (True, False):
        core = linnet.create_attention("long_short", heads=2, head_dim=4, causal=causal, dual_norm=False)
        q, k, v = (torch.randn(2, 2, 150, 4) for _ in range(3))
        A = core.weights(q, k)
        assert contract_difference(core(q, k, v), A @ v) < 1e-5
        torch.testing.assert_close(A.sum(dim=-1), torch.ones(2, 2, 150))


def test_a_causal_query_sees_its_window_and_the_chunks_that_have_ended() -> None:
    options = {"window": 4, "chunk": 3, "dual_norm": False}
    reads = seen(linnet.create_attention("long_short", heads=1, head_dim=4, causal=True, **options), 14) > 0
    for t in range(14):
        window = set(range(max(0, t // 4 * 4 - 2), t + 1))
        assert reads[t].nonzero().flatten().tolist() == sorted(window | set(range(t // 3 * 3)))


def test_a_bidirectional_query_sees_all_through_landmarks_and_its_window_twice() -> None:
    core = linnet.create_attention("long_short", heads=1, head_dim=4, causal=False, dual_norm=False)
    with torch.no_grad():
        core.compress.weight.zero_()  # landmarks are plain means
    q, k = torch.zeros(1, 1, 24, 4), torch.randn(1, 1, 24, 4)
    A = core.weights(q, k)[0, 0]
    for t, window in ((9, range(4, 20)), (2, range(12))):
        size = len(window) + 32  # the keys, and 32 landmarks that are each the mean of 24 tokens
        expected = torch.full((24,), 32 / (24 * size))
        expected[list(window)] += 1 / size
        torch.testing.assert_close(A[t], expected)


def test_the_state_grows_by_one_landmark_a_chunk() -> None:
    mixer = linnet.create_mixer("long_short", width=8, heads=2, causal=True, window=4, chunk=3).eval()
    x = torch.randn(2, 40, 8)
    whole, state = mixer(x), None
    for t in range(40):
        y, state = mixer.prefill(x[:, :1]) if state is None else mixer.step(x[:, t : t + 1], state)
        assert state[0].shape == (2, 2, (t + 1) // 3, 4)
        assert contract_difference(y, whole[:, t : t + 1]) < 1e-5


def test_rows_of_unequal_length_have_their_own_landmarks() -> None:
    mixer = linnet.create_mixer("long_short", width=8, heads=2, causal=True, window=4, chunk=3).eval()
    x, lengths = torch.randn(3, 40, 8), (17, 5, 0)
    mask = torch.stack([torch.arange(20) < n for n in lengths])
    _, state = mixer.prefill(x[:, :20], key_mask=mask)
    assert state[2].sum(dim=1).tolist() == [5, 1, 0]
    for t in range(12):
        y, state = mixer.step(torch.stack([x[b, n + t] for b, n in enumerate(lengths)])[:, None], state)
        for b, n in enumerate(lengths):
            assert contract_difference(y[b, 0], mixer(x[b : b + 1, : n + t + 1])[0, -1]) < 1e-5


def test_bad_shapes_are_one_line() -> None:
    core = linnet.create_attention("long_short", heads=2, head_dim=4, causal=True)
    q, v = torch.randn(1, 2, 40, 4), torch.randn(1, 2, 40, 6)
    with pytest.raises(InputError, match="v has width 6: dual_norm=True was built for 4"):
        core(q, q, v)
    _, state = core.prefill(q, q, q)
    with pytest.raises(InputError, match="of different numbers"):
        core.step(q[:, :, :1], q[:, :, :1], q[:, :, :1], (state[0][:, :, :0], *state[1:]))


def test_landmarks_may_average_normed_keys_as_released() -> None:
    torch.manual_seed(0)
    core = linnet.create_attention("long_short", heads=2, head_dim=8, causal=False, landmarks=3, compress="normed")
    core = core.double()
    for norm in (core.near_norm, core.far_norm):
        torch.nn.init.normal_(norm.weight), torch.nn.init.normal_(norm.bias)
    q, k, v = (torch.randn(1, 2, 16, 8, dtype=torch.float64) for _ in range(3))

    def normed(norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return norm(x.transpose(1, 2).flatten(2)).unflatten(2, (2, 8)).transpose(1, 2)

    P = core.compress(k.transpose(1, 2).flatten(2)).unflatten(2, (2, 3)).permute(0, 2, 3, 1).softmax(dim=-1)
    near_k, near_v = normed(core.near_norm, k), normed(core.near_norm, v)
    far_k, far_v = normed(core.far_norm, P @ near_k), normed(core.far_norm, P @ near_v)
    t = torch.arange(16)
    seen = (t >= t[:, None] // 8 * 8 - 4) & (t < t[:, None] // 8 * 8 + 12)
    scores = torch.cat([(q @ near_k.mT).masked_fill(~seen, -torch.inf), q @ far_k.mT], dim=-1) * 8**-0.5
    torch.testing.assert_close(core(q, k, v), scores.softmax(dim=-1) @ torch.cat([near_v, far_v], dim=2))
    check_attention("long_short", causal=True, options={"compress": "normed"}, lengths=(1, 33, 100))
