"""From hidden states to logits: tied and untied tables, RoBERTa's head, and logits of chosen tokens alone."""

from typing import get_args

import pytest
import torch
from torch.nn.functional import gelu, layer_norm

from linnet.models.config import ModelConfig
from linnet.models.outputs import OUTPUTS


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
