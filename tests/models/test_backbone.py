"""The whole model, over every preset: padding, packing, causality, recurrence, precision, compilation, bad input."""

import pytest
import torch

from linnet.errors import InputError, UnsupportedError
from linnet.models.presets import create_model

CLOSE = {"rtol": 0, "atol": 1e-5}
JUNK = 60


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(tiny, padded, system, kind, side):
    model, rows = tiny(f"{system}_{kind}"), [torch.randint(61, (n,)) for n in (31, 1, 18)]
    ids, mask = padded(rows, side, 37)
    logits = model(ids, key_mask=mask)
    assert logits.isfinite().all()
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[b, mask[b]], model(row[None])[0], **CLOSE)


def test_packing_equals_separate_runs(tiny, padded, packed_system, kind):
    model, rows = tiny(f"{packed_system}_{kind}"), [torch.randint(61, (n,)) for n in (13, 1, 20)]
    ids = torch.cat(rows)[None]
    segments = torch.cat([torch.full((len(row),), i) for i, row in enumerate(rows)])[None]
    alone = torch.cat([model(row[None]) for row in rows], dim=1)
    torch.testing.assert_close(model(ids, segments=segments), alone, **CLOSE)
    packed, mask = padded([ids[0]], "left", 40)
    wide = torch.cat([segments[:, :1].expand(1, 6), segments], dim=1)
    torch.testing.assert_close(model(packed, mask, wide)[mask], alone[0], **CLOSE)


JOINED = [["diag|norm", "lln|elu"], ["diag>norm", "norm>diag"], ["diag+norm", "performer+elu"]]


@pytest.mark.parametrize("layers", JOINED, ids=lambda layers: layers[0])
def test_joined_mechanisms_pad_and_pack(tiny, padded, layers, kind):
    model, rows = tiny(f"transnormer_t2_{kind}", layers=layers), [torch.randint(61, (n,)) for n in (31, 1, 18)]
    alone = [model(row[None])[0] for row in rows]
    for side in ("left", "right"):
        ids, mask = padded(rows, side, 37)
        torch.testing.assert_close(model(ids, key_mask=mask)[mask], torch.cat(alone), **CLOSE)
    segments = torch.cat([torch.full((len(row),), i) for i, row in enumerate(rows)])[None]
    torch.testing.assert_close(model(torch.cat(rows)[None], segments=segments)[0], torch.cat(alone), **CLOSE)


@pytest.mark.parametrize("layers", JOINED, ids=lambda layers: layers[0])
def test_joined_mechanisms_carry_a_state_and_never_read_the_future(tiny, layers):
    model, ids = tiny("transnormer_t2_lm", layers=layers), torch.randint(60, (2, 30))
    first, state = model.prefill(ids[:, :29])
    last, _ = model.step(ids[:, 29:], state)
    logits = model(ids)
    torch.testing.assert_close(torch.cat([first, last], dim=1), logits, **CLOSE)
    changed = ids.clone()
    changed[:, 17:] = JUNK
    assert torch.equal(model(changed)[:, :17], logits[:, :17])


def test_a_mechanism_with_projections_of_its_own_cannot_share_heads(tiny):
    for name in ("flash", "reformer"):
        with pytest.raises(UnsupportedError, match=f"layer 'diag|{name}': {name} has its own projections"):
            tiny("transnormer_t2_roberta", layers=[f"diag|{name}"])


def test_no_logits_depend_on_the_future(tiny, system):
    model, ids = tiny(f"{system}_lm"), torch.randint(60, (1, 75))
    logits = model(ids)
    for t in (0, 8, 37, 74):
        changed = ids.clone()
        changed[:, t:] = JUNK
        difference = (model(changed) - logits).abs().amax(dim=2)[0]
        assert (difference[:t] == 0).all()
        assert (difference[t:] > 0).all()


def test_bidirectional_models_read_both_ways(tiny, system):
    # DiagAttention alone sees no farther than its block, of 8 tokens here.
    model, ids = tiny(f"{system}_roberta"), torch.randint(60, (1, 7))
    changed = ids.clone()
    changed[:, 3] = JUNK
    assert ((model(changed) - model(ids)).abs().amax(dim=2) > 0).all()


def test_prefill_and_steps_equal_forward(tiny, recurrent_system):
    model, ids = tiny(f"{recurrent_system}_lm"), torch.randint(61, (2, 30))
    parts, state = [], None
    for cut in (ids[:, :11], ids[:, 11:27]):
        logits, state = model.prefill(cut, state=state)
        parts.append(logits)
    for t in (27, 28, 29):
        logits, state = model.step(ids[:, t : t + 1], state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids), **CLOSE)
    assert state.length.tolist() == [30, 30]


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded_prompts_go_on_as_unpadded_ones(tiny, padded, recurrent_system, side):
    model, rows = tiny(f"{recurrent_system}_lm"), [torch.randint(61, (n,)) for n in (23, 5)]
    ids, mask = padded([row[:-2] for row in rows], side, 25)
    _, state = model.prefill(ids, mask)
    for t in (-2, -1):
        logits, state = model.step(torch.stack([row[t] for row in rows])[:, None], state)
    for b, row in enumerate(rows):
        torch.testing.assert_close(logits[b, 0], model(row[None])[0, -1], **CLOSE)
    assert state.length.tolist() == [23, 5]


def test_a_state_is_nested_tuples_of_tensors_with_the_batch_first(tiny, recurrent_system):
    model = tiny(f"{recurrent_system}_lm")
    _, state = model.prefill(torch.randint(61, (3, 20)))
    leaves = torch.utils._pytree.tree_leaves(state)
    assert len(state.layers) == len(model.blocks)
    assert all(isinstance(leaf, torch.Tensor) and leaf.shape[0] == 3 for leaf in leaves)


@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "none"])
def test_absolute_positions(tiny, positions):
    model = tiny("vanilla_lm", positions=positions, layers=["softmax"])
    same = model(torch.full((1, 6), 7))[0]
    assert torch.allclose(same, same[:1].expand_as(same), **CLOSE) == (positions == "none")


def test_positions_start_as_in_fairseq(tiny):
    model = tiny("vanilla_roberta")
    assert model.positions.weight.shape == (514, 32)
    model.zero_grad()
    model(torch.randint(61, (1, 5))).sum().backward()
    touched = model.positions.weight.grad.abs().sum(dim=1).nonzero().flatten()
    assert touched.tolist() == [2, 3, 4, 5, 6]


def test_embeddings_are_an_entry_of_their_own(tiny, system, kind):
    model, ids = tiny(f"{system}_{kind}"), torch.randint(61, (2, 9))
    scale = 32**0.5 if kind == "lm" else 1.0
    x = model.embedding.weight[ids] * scale
    torch.testing.assert_close(model.encode(x), model.features(ids), **CLOSE)


def test_initialization():
    lm, roberta = create_model("transnormer_t2_lm_small"), create_model("transnormer_t2_roberta_small")
    assert abs(lm.embedding.weight.std() * 192**0.5 - 1) < 0.01
    assert abs(roberta.embedding.weight.std() / 0.02 - 1) < 0.01
    assert (lm.embedding.weight[1] == 0).all()
    assert (roberta.embedding.weight[1] == 0).all()
    for name, parameter in roberta.named_parameters():
        if name.endswith("weight") and parameter.dim() == 2:
            assert abs(parameter.std() / 0.02 - 1) < 0.02, name
        if name.endswith("bias"):
            assert (parameter == 0).all(), name
    bound = (6 / (2 * 192)) ** 0.5
    diag, norm = lm.blocks[0].mixers[0].qkv.weight, lm.blocks[-1].mixers[0].qkv.weight
    assert abs(diag.abs().max() / bound - 1) < 0.01
    assert abs(norm.abs().max() / (bound * 0.5**0.5) - 1) < 0.01
    assert abs(lm.blocks[0].ffn.enter.weight.abs().max() * 192**0.5 - 1) < 0.01


def test_every_parameter_is_used(tiny, system, kind):
    models = [tiny(f"{system}_{kind}") for _ in range(4)]
    unused = dict(models[0].named_parameters()).keys()
    while unused and models:  # more than one: where a ReLU decides, all scores of a layer may happen to be negative
        model = models.pop()
        (model(torch.randint(61, (2, 20))) * torch.randn(2, 20, 61)).sum().backward()
        grads = {name: parameter.grad for name, parameter in model.named_parameters()}
        unused = {name for name in unused if grads[name] is None or not grads[name].any()}
    assert not unused


def test_bfloat16_autocast_is_finite_and_near(tiny, system, kind):
    model, ids = tiny(f"{system}_{kind}").train(), torch.randint(61, (2, 70))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids)
    logits.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    exact = model.eval()(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = model(ids).float()
    assert (near - exact).norm() / exact.norm() < 0.1


def test_dropout_only_while_training(tiny, kind):
    model, ids = tiny(f"vanilla_{kind}"), torch.randint(61, (2, 9))
    assert torch.equal(model(ids), model(ids))
    model.train()
    assert not torch.equal(model(ids), model(ids))


def test_save_and_load(tiny, system, kind):
    one, other, ids = tiny(f"{system}_{kind}"), tiny(f"{system}_{kind}"), torch.randint(61, (1, 20))
    assert not torch.equal(one(ids), other(ids))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(ids), other(ids))


def test_compiles_into_one_graph(tiny):
    model, ids = tiny("transnormer_t2_lm", layers=["diag", "norm"]), torch.randint(61, (2, 20))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    logits = compiled(ids)
    torch.testing.assert_close(logits, model(ids), **CLOSE)
    logits.sum().backward()
    assert model.embedding.weight.grad.isfinite().all()


def test_chosen_tokens_compile_into_one_graph(tiny):
    model = tiny("transnormer_t2_roberta", layers=["diag", "norm"])
    ids, select = torch.randint(61, (2, 20)), torch.tensor([3, 17, 30])
    mask = torch.arange(20).expand(2, 20) < torch.tensor([[20], [12]])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids, key_mask=mask, select=select), model(ids, mask, select=select), **CLOSE)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.tensor([[3, 61]]), "ids contains 61: an id is at least 0 and below 61"),
        (torch.tensor([[3, -1]]), "ids contains -1: an id is at least 0 and below 61"),
        (torch.tensor([3, 4]), r"ids has shape \(2,\): it must be \(batch, tokens\) with at least one token"),
        (torch.zeros(1, 0, dtype=torch.int64), r"ids has shape \(1, 0\): it must be"),
        (torch.zeros(1, 3), "ids has type torch.float32: it must be int64 or int32"),
        (torch.zeros(1, 10, dtype=torch.int64), "a sequence has 10 tokens: this model has 9 learned positions"),
    ],
)
def test_bad_ids(tiny, ids, message):
    with pytest.raises(InputError, match=f"^{message}"):
        tiny("vanilla_roberta", max_length=9)(ids)


def test_a_row_may_be_longer_than_the_positions_if_its_sequences_are_not(tiny):
    model, ids = tiny("vanilla_roberta", max_length=9), torch.randint(61, (1, 16))
    segments = torch.arange(16)[None] // 8
    torch.testing.assert_close(model(ids, segments=segments)[:, 8:], model(ids[:, 8:]), **CLOSE)
    assert model(ids[:, :9]).shape == (1, 9, 61)


def test_bidirectional_models_do_not_step(tiny):
    with pytest.raises(UnsupportedError, match=r"^this model is bidirectional \(causal = false\)"):
        tiny("transnormer_t2_roberta").prefill(torch.zeros(1, 3, dtype=torch.int64))


def test_a_state_that_does_not_fit_is_one_line(tiny):
    model = tiny("transnormer_t2_lm")
    ids = torch.zeros(2, 5, dtype=torch.int64)
    _, state = model.prefill(ids)
    for bad, message in (
        (None, "state is None: it must be what prefill or step returned"),
        ("x", "state is 'x'"),
        (state._replace(layers=state.layers[:-1]), "layers: this model has"),
    ):
        with pytest.raises(InputError, match=message):
            model.step(ids[:, :1], bad)
    for call in (model.step, lambda ids, state: model.prefill(ids, state=state)):
        with pytest.raises(InputError, match="state has 2 rows: ids has 1"):
            call(ids[:1, :1], state)


def test_chosen_tokens_that_are_not_there(tiny):
    model, ids = tiny("transnormer_t2_lm"), torch.zeros(1, 5, dtype=torch.int64)
    with pytest.raises(InputError, match="select holds numbers from 0 to 100: there are 5 tokens"):
        model(ids, select=torch.tensor([0, 100]))
    with pytest.raises(InputError, match="select has shape"):
        model(ids, select=torch.ones(1, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="ids is a list"):
        model([[1, 2]])
