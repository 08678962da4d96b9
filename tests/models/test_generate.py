"""Generation: the recurrent form gives the text of the parallel form, for every causal preset."""

import math

import pytest
import torch

from linnet.errors import InputError, LinnetError, UnsupportedError
from linnet.models.generate import Sampling, _nucleus, _Sampler


def in_parallel(model, ids, new):
    """Greedy generation that rereads the whole text for each token."""
    for _ in range(new):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(dim=-1)], dim=1)
    return ids


def test_greedy_equals_the_parallel_forward(tiny, recurrent_system):
    model, ids = tiny(f"{recurrent_system}_lm", tie=False), torch.randint(61, (3, 6))
    written = model.generate(ids, max_new_tokens=24, temperature=0)
    assert torch.equal(written, in_parallel(model, ids, 24))
    assert len(written[:, 6:].unique()) > 5


@pytest.mark.parametrize("side", ["left", "right"])
def test_prompts_of_different_lengths_generate_the_same_alone_and_in_a_batch(tiny, recurrent_system, side):
    model, rows = tiny(f"{recurrent_system}_lm", tie=False), [torch.randint(61, (n,)) for n in (9, 1, 4)]
    ids, mask = torch.zeros(3, 9, dtype=torch.int64), torch.zeros(3, 9, dtype=torch.int64)
    for b, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(9 - len(row), 9)
        ids[b, place], mask[b, place] = row, 1
    written = model.generate(ids, max_new_tokens=8, temperature=0, key_mask=mask)
    assert torch.equal(written[:, :9], ids)
    for b, row in enumerate(rows):
        assert torch.equal(written[b, 9:], in_parallel(model, row[None], 8)[0, len(row) :])


def test_mixed_and_parallel_layers_write_too(tiny):
    model = tiny("transnormer_t2_lm", tie=False, layers=["diag+norm", "softmax", "lln+elu", "diag|norm", "lln>elu"])
    ids = torch.randint(61, (2, 5))
    assert torch.equal(model.generate(ids, max_new_tokens=12, temperature=0), in_parallel(model, ids, 12))


def test_the_state_grows_where_its_shape_says_so(tiny, recurrent_system):
    model = tiny(f"{recurrent_system}_lm")
    ids = torch.randint(61, (1, 100))
    _, early = model.prefill(ids[:, :3])
    _, late = model.prefill(ids[:, 3:], state=early)
    shapes = [[leaf.shape for leaf in torch.utils._pytree.tree_leaves(state)] for state in (early, late)]
    cores = [block.mixers[0].core for block in model.blocks]
    grows = any(None in shape for core in cores for shape in core.state_shapes(1, core.head_dim))
    assert (shapes[0] != shapes[1]) == grows


def test_the_seed_decides(tiny):
    model, ids = tiny("transnormer_t2_lm"), torch.randint(61, (2, 5))
    before = torch.random.get_rng_state()
    first, again, other = (model.generate(ids, max_new_tokens=20, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_the_stream_gives_the_same_tokens_one_by_one(tiny):
    model, ids = tiny("transnormer_t2_lm"), torch.randint(61, (2, 5), dtype=torch.int32)
    written = model.generate(ids, max_new_tokens=10, seed=3)
    streamed = list(model.stream(ids, max_new_tokens=10, sampling=Sampling(seed=3)))
    assert written.dtype == torch.int32
    assert [token.shape for token in streamed] == [(2,)] * 10
    assert torch.equal(torch.stack(streamed, dim=1), written[:, 5:].long())


def test_training_mode_and_gradients_are_as_before(tiny):
    model, ids = tiny("vanilla_lm", dropout=0.5).train(), torch.randint(61, (1, 5))
    written = model.generate(ids, max_new_tokens=6, temperature=0)
    assert model.training
    assert torch.equal(written, in_parallel(model.eval(), ids, 6))
    half = model.train().stream(ids)
    next(half)
    assert torch.is_grad_enabled()
    half.close()
    assert model.training


def test_no_new_tokens(tiny):
    ids = torch.randint(61, (2, 5))
    assert torch.equal(tiny("elu_lm").generate(ids, max_new_tokens=0), ids)


@pytest.mark.parametrize("top_p", [1e-300, 1e-45, 1e-10])
def test_the_smallest_nucleus_is_the_likeliest_token(top_p, tiny):
    model, ids = tiny("transnormer_t2_lm"), torch.randint(61, (2, 5))
    assert torch.equal(model.generate(ids, 5, top_p=top_p), model.generate(ids, 5, temperature=0.0))


@pytest.mark.parametrize("limits", [{"top_k": 3}, {"top_p": 0.3}, {"top_k": 5, "top_p": 0.5}, {"temperature": 0.5}])
def test_samples_follow_the_distribution(tiny, limits):
    """With many rows of one prompt, the first new token has the frequencies of the definition."""
    model, prompt = tiny("vanilla_lm", embedding_scale=False), torch.randint(61, (1, 5))
    with torch.no_grad():
        z = model(prompt)[0, -1] / limits.get("temperature", 1.0)
    p = torch.zeros(61)
    order, mass = z.argsort(descending=True), 0.0
    kept = order[: limits.get("top_k", 61)]
    share = z[kept].softmax(dim=0)
    for i, chance in zip(kept, share, strict=True):
        if mass < limits.get("top_p", 1.0):
            p[i] = chance
        mass += chance.item()
    p /= p.sum()
    rows = model.generate(prompt.expand(4000, 5), max_new_tokens=1, **limits)[:, -1]
    observed = torch.bincount(rows, minlength=61) / 4000
    assert (observed[p == 0] == 0).all()
    assert ((observed - p).abs() <= 4 * (p * (1 - p) / 4000).sqrt() + 1e-6).all()


def test_top_k_keeps_k_of_equal_tokens():
    sampler = _Sampler(Sampling(top_k=2), torch.zeros(1, 1, dtype=torch.int64), None)
    assert len(sampler(torch.zeros(1000, 7)).unique()) == 2
    best_and_one = torch.tensor([[1.0, 1.0, 9.0, 1.0]]).expand(50_000, 4)
    drawn = sampler(best_and_one).unique()
    assert len(drawn) == 2
    assert 2 in drawn


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-40, 1.2e-38, 1e-30])
@pytest.mark.parametrize("limits", [{}, {"top_k": 2}, {"top_p": 0.9}])
def test_a_temperature_next_to_zero_takes_the_likeliest_token(tiny, temperature, limits):
    model, ids = tiny("transnormer_t2_lm", tie=False), torch.randint(61, (2, 5))
    greedy = model.generate(ids, max_new_tokens=8, temperature=0)
    assert torch.equal(model.generate(ids, max_new_tokens=8, temperature=temperature, **limits), greedy)


def test_the_nucleus_keeps_the_token_that_reaches_p():
    p = torch.tensor([[0.1, 0.5, 0.4]])
    assert _nucleus(p, 0.5).tolist() == torch.tensor([[0, 0.5, 0]]).tolist()
    assert _nucleus(p, 0.51).tolist() == torch.tensor([[0, 0.5, 0.4]]).tolist()
    assert torch.equal(_nucleus(p, 1.0), p)
    assert _nucleus(p, 1e-9).count_nonzero() == 1


PROMPT = torch.zeros(1, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1: it must be at least 0 and finite"),
        ({"temperature": math.nan}, "temperature is nan: it must be at least 0 and finite"),
        ({"top_k": 0}, "top_k is 0: it must be a whole number of at least 1"),
        ({"top_p": 0.0}, "top_p is 0.0: it must be above 0 and at most 1"),
        ({"top_p": 1.5}, "top_p is 1.5: it must be above 0 and at most 1"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1: it must be a whole number of at least 0"),
        ({"seed": -1}, "seed is -1: it must be a whole number from 0 to 2^63 - 1"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5: it must be a whole number of at least 0"),
        ({"temperature": "a"}, "temperature is 'a': it must be at least 0 and finite"),
        ({"top_k": 1.5}, "top_k is 1.5: it must be a whole number of at least 1"),
        ({"top_p": "x"}, "top_p is 'x': it must be above 0 and at most 1"),
        ({"seed": 1.5}, "seed is 1.5: it must be a whole number from 0 to 2^63 - 1"),
        ({"ids": [[1]]}, "ids is a list: it must be a tensor (batch, tokens)"),
        ({"ids": PROMPT[:, :0]}, "the prompt has shape (1, 0): it must be (batch, tokens), both at least 1"),
        ({"ids": PROMPT[0]}, "the prompt has shape (3,): "),
        ({"ids": PROMPT + 61}, "ids contains 61: an id is at least 0 and below 61"),
        ({"key_mask": torch.zeros(1, 3)}, "row 0 of the prompt has no real token: each needs at least one"),
    ],
)
def test_bad_arguments(tiny, arguments, message):
    with pytest.raises(InputError) as error:
        tiny("transnormer_t2_lm").generate(**{"ids": PROMPT, **arguments})
    assert str(error.value).startswith(message)


def test_bad_arguments_raise_before_the_first_token(tiny):
    with pytest.raises(InputError, match="top_k"):
        Sampling(top_k=0)
    with pytest.raises(InputError, match="max_new_tokens"):
        tiny("transnormer_t2_lm").stream(PROMPT, max_new_tokens=-1)


def test_models_that_cannot_write_say_so(tiny):
    with pytest.raises(UnsupportedError, match="bidirectional"):
        tiny("lln_roberta").generate(PROMPT)
    model = tiny("lln_lm", options={"lln": {"statistics": "tensor"}})
    with pytest.raises(UnsupportedError, match="lln: statistics='tensor'"):
        model.generate(PROMPT)


def test_learned_positions_have_an_end(tiny):
    model = tiny("vanilla_lm", positions="learned", max_length=9)
    assert model.generate(PROMPT, max_new_tokens=7).shape == (1, 10)  # the last new token needs no position
    with pytest.raises(InputError, match=r"^max_new_tokens is 8: 10 tokens to read, but the model has 9 positions$"):
        model.generate(PROMPT, max_new_tokens=8)
    whole = torch.zeros(1, 9, dtype=torch.int64)
    assert [model.generate(whole, max_new_tokens=new).shape[1] for new in (0, 1)] == [9, 10]


def test_output_that_is_not_finite_is_reported(tiny):
    model = tiny("vanilla_lm")
    with torch.no_grad():
        model.embedding.weight[5] = math.nan
    with pytest.raises(LinnetError, match="not finite"):
        model.generate(PROMPT)
