"""From hidden states to logits: tied and untied tables, RoBERTa's head, selected tokens, whole sequences, pairs."""

from typing import get_args

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from linnet.errors import InputError, UnsupportedError
from linnet.models.config import ModelConfig
from linnet.models.outputs import OUTPUTS, mean_output


def test_every_output_can_be_configured():
    assert set(OUTPUTS) == set(get_args(ModelConfig.model_fields["output"].annotation))


def test_causal_lm_shares_the_embedding(tiny):
    model, ids = tiny("transnormer_t2_lm"), torch.randint(61, (2, 9))
    torch.testing.assert_close(model(ids), model.features(ids) @ model.embedding.weight.T)
    assert model.output.state_dict() == {}


def test_masked_lm_is_robertas_head(tiny):
    model, ids = tiny("transnormer_t2_roberta"), torch.randint(61, (2, 9))
    out = model.output
    h = gelu(model.features(ids) @ out.dense.weight.T + out.dense.bias)
    h = layer_norm(h, (32,), out.norm.weight, out.norm.bias)
    torch.testing.assert_close(model(ids), h @ model.embedding.weight.T + out.bias)


def test_an_untied_output_has_a_table_of_its_own(tiny, kind):
    model, ids = tiny(f"vanilla_{kind}", tie=False), torch.randint(61, (2, 9))
    before, hidden = model(ids), model.features(ids)
    with torch.no_grad():
        model.output.table.weight.zero_()
    assert torch.equal(model.features(ids), hidden)
    after = model(ids)
    assert not torch.equal(after, before)
    assert torch.equal(after, after[:1, :1].expand_as(after))


@pytest.mark.parametrize("form", ["mask", "index"])
def test_logits_of_chosen_tokens(tiny, kind, form):
    model, ids = tiny(f"vanilla_{kind}"), torch.randint(61, (2, 9))
    chosen = torch.rand(2, 9) < 0.4
    select = chosen if form == "mask" else chosen.flatten().nonzero().squeeze(1)
    torch.testing.assert_close(model(ids, select=select), model(ids)[chosen])


each_side = pytest.mark.parametrize("side", ["left", "right"])
CLOSE = {"rtol": 0, "atol": 1e-5}


def test_a_classifier_is_two_layers_on_the_mean(tiny):
    model, ids = tiny("transnormer_t2_lra", classes=5), torch.randint(61, (3, 9))
    out, mean = model.output, model.features(ids).mean(dim=1)
    h = (mean @ out.enter.weight.T + out.enter.bias).relu()
    torch.testing.assert_close(model(ids), h @ out.leave.weight.T + out.leave.bias)
    assert model(ids).shape == (3, 5)


def test_two_towers_see_both_sequences_their_product_and_their_difference(tiny):
    model, ids = tiny("vanilla_lra", output="two_tower"), torch.randint(61, (3, 2, 9))
    a, b = (model.features(ids[:, i]).mean(dim=1) for i in (0, 1))
    out = model.output
    h = (torch.cat([a, b, a * b, a - b], dim=1) @ out.enter.weight.T + out.enter.bias).relu()
    torch.testing.assert_close(model(ids), h @ out.leave.weight.T + out.leave.bias)


@each_side
def test_padding_does_not_change_a_class(tiny, padded, system, side):
    model, rows = tiny(f"{system}_lra"), [torch.randint(60, (n,)) for n in (31, 1, 18)]
    logits = model(*padded(rows, side, 37))
    alone = torch.cat([model(row[None]) for row in rows])
    torch.testing.assert_close(logits, alone, **CLOSE)


@each_side
def test_padding_does_not_change_the_class_of_a_pair(tiny, padded, system, side):
    model = tiny(f"{system}_lra", output="two_tower")
    rows = [torch.randint(60, (n,)) for n in (31, 5, 18, 37)]
    ids, mask = padded(rows, side, 37)
    logits = model(ids.view(2, 2, 37), key_mask=mask.view(2, 2, 37))
    a, b, c, d = (model.features(row[None]).mean(dim=1) for row in rows)
    expected = model.output(torch.stack([torch.cat([a, b]), torch.cat([c, d])]), model.embedding.weight)
    torch.testing.assert_close(logits, expected, **CLOSE)


def test_the_mean_may_divide_by_the_longest_length(tiny, padded):
    model = tiny("vanilla_lra", mean_over="max_length", max_length=64)
    rows = [torch.randint(60, (n,)) for n in (31, 18)]
    logits = model(*padded(rows, "right", 37))
    pooled = torch.cat([model.features(row[None]).sum(dim=1) / 64 for row in rows])
    torch.testing.assert_close(logits, model.output(pooled, model.embedding.weight), **CLOSE)


def test_masked_tokens_are_not_read_and_an_empty_row_is_finite():
    h, real = torch.ones(2, 3, 4), torch.tensor([[True, True, False], [False] * 3])
    h[~real] = torch.nan
    assert torch.equal(mean_output(h, real), torch.tensor([[1.0] * 4, [0.0] * 4]))


@pytest.mark.parametrize("output", ["classifier", "two_tower"])
def test_every_parameter_of_a_classifier_is_used_in_half_precision_too(tiny, system, output):
    model = tiny(f"{system}_lra", output=output, max_length=20)
    ids = torch.randint(61, (4, 2, 20) if output == "two_tower" else (4, 20))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = (model(ids).float() * torch.randn(4, 2)).sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_a_classifier_compiles_into_one_graph(tiny):
    model = tiny("transnormer_t2_lra")
    ids, mask = torch.randint(61, (2, 20)), torch.arange(20).expand(2, 20) < torch.tensor([[20], [12]])
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(ids, key_mask=mask), model(ids, mask), **CLOSE)


@pytest.mark.parametrize(
    ("output", "shape", "given", "message"),
    [
        ("classifier", (1, 9), {"segments": torch.zeros(1, 9)}, "a classifier reads whole rows: it takes neither"),
        ("classifier", (1, 9), {"select": torch.zeros(1)}, "a classifier reads whole rows"),
        ("classifier", (1, 2, 9), {}, r"ids has shape \(1, 2, 9\): it must be \(batch, tokens\)"),
        ("two_tower", (2, 9), {}, r"ids has shape \(2, 9\): a two-tower model reads pairs, \(batch, 2, tokens\)"),
        ("two_tower", (1, 3, 9), {}, r"ids has shape \(1, 3, 9\): a two-tower model reads pairs"),
        ("two_tower", (1, 2, 9), {"key_mask": [[1]]}, r"key_mask is a list: it must be a tensor \(batch, 2, tokens\)"),
        ("two_tower", (1, 2, 9), {"key_mask": torch.ones(2, 9)}, r"key_mask has shape \(2, 9\): it must be"),
    ],
)
def test_what_a_classifier_cannot_read(tiny, output, shape, given, message):
    model = tiny("vanilla_lra", output=output)
    with pytest.raises(InputError, match=f"^{message}"):
        model(torch.zeros(shape, dtype=torch.int64), **given)


def test_a_classifier_does_not_write(tiny):
    with pytest.raises(UnsupportedError, match=r"^this model is a classifier: it cannot prefill, step"):
        tiny("vanilla_lra").generate(torch.zeros(1, 3, dtype=torch.int64))


@pytest.mark.parametrize("output", ["classifier", "two_tower"])
def test_anything_but_a_tensor_is_refused(tiny, output):
    with pytest.raises(InputError, match="ids is a list: it must be a tensor"):
        tiny("vanilla_lra", output=output)([[1, 2]])
