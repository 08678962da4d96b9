"""The four classes: outputs, losses, heads, padding, resizing, checkpointing, compiling."""

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from linnet.errors import InputError, UnsupportedError
from linnet.hf import LinnetForCausalLM, LinnetForMaskedLM, LinnetForSequenceClassification, LinnetModel
from linnet.models.presets import SYSTEMS

KINDS = [("lm", LinnetForCausalLM), ("roberta", LinnetForMaskedLM), ("roberta", LinnetForSequenceClassification)]
each_kind = pytest.mark.parametrize("kind, cls", KINDS, ids=[cls.__name__ for _, cls in KINDS])


def ids_and_mask() -> tuple[torch.Tensor, torch.Tensor]:
    ids, mask = torch.randint(4, 60, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    mask[1, 7:] = 0
    return ids, mask


@pytest.mark.parametrize("system", sorted(SYSTEMS))
def test_every_system_survives_save_and_reload_bit_for_bit(system, tiny, tmp_path):
    for kind, cls, auto in (
        ("lm", LinnetForCausalLM, AutoModelForCausalLM),
        ("roberta", LinnetForMaskedLM, AutoModelForMaskedLM),
    ):
        model, (ids, mask) = tiny(f"{system}_{kind}", cls), ids_and_mask()
        model.save_pretrained(tmp_path / kind)
        again = auto.from_pretrained(tmp_path / kind)
        assert type(again) is cls
        with torch.no_grad():
            assert torch.equal(again(ids, attention_mask=mask).logits, model(ids, attention_mask=mask).logits)
            assert torch.equal(model(ids, attention_mask=mask).logits, model.model(ids, mask.bool()))


@each_kind
def test_padding_is_exact_on_both_sides(kind, cls, tiny):
    model, (ids, mask) = tiny(f"lln_diag_{kind}", cls), ids_and_mask()
    ids, mask = torch.cat([ids, ids.roll(4, dims=1)]), torch.cat([mask, mask.roll(4, dims=1)])
    with torch.no_grad():
        padded = model(ids, attention_mask=mask).logits
        for row in (1, 3):
            alone = model(ids[row : row + 1][:, mask[row].bool()]).logits
            found = padded[row : row + 1]
            torch.testing.assert_close(
                found if found.dim() == 2 else found[:, mask[row].bool()], alone, rtol=1e-5, atol=1e-5
            )


@each_kind
def test_the_loss_is_the_cross_entropy_of_the_labels(kind, cls, tiny):
    model, (ids, _) = tiny(f"transnormer_t2_{kind}", cls), ids_and_mask()
    ce = torch.nn.functional.cross_entropy
    if cls is LinnetForSequenceClassification:
        labels = torch.tensor([1, 0])
        answer = model(ids, labels=labels)
        expected = ce(answer.logits, labels)
    elif cls is LinnetForMaskedLM:
        labels = torch.where(torch.rand(ids.shape) < 0.3, ids, -100)
        answer = model(ids, labels=labels)
        expected = ce(answer.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    else:
        answer = model(ids, labels=ids)
        expected = ce(answer.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(answer.loss, expected)
    assert torch.equal(model(ids, return_dict=False)[0], model(ids).logits)


def test_hidden_states_and_embeddings(tiny):
    model, (ids, mask) = tiny("lln_roberta", LinnetModel), ids_and_mask()
    answer = model(ids, attention_mask=mask, output_hidden_states=True)
    assert len(answer.hidden_states) == model.config.num_hidden_layers + 1
    assert torch.equal(answer.hidden_states[-1], answer.last_hidden_state)
    embedded = model(inputs_embeds=model.get_input_embeddings()(ids), attention_mask=mask)
    assert torch.equal(embedded.last_hidden_state, answer.last_hidden_state)
    with pytest.raises(UnsupportedError, match="holds no N x N weights"):
        model(ids, output_attentions=True)
    with pytest.raises(InputError, match="either input_ids or inputs_embeds"):
        model()


def test_logits_to_keep(tiny):
    model, (ids, _) = tiny("transnormer_t2_lm", LinnetForCausalLM), ids_and_mask()
    whole = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, whole[:, -3:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([1, 5])).logits, whole[:, [1, 5]])
    torch.testing.assert_close(model(ids, logits_to_keep=2, use_cache=True).logits, whole[:, -2:])


def test_an_encoder_gets_a_fresh_head_from_another_checkpoint(tiny, tmp_path):
    model, (ids, mask) = tiny("lln_diag_roberta", LinnetForMaskedLM), ids_and_mask()
    model.save_pretrained(tmp_path)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    assert classifier(ids, attention_mask=mask, labels=torch.tensor([4, 0])).loss.isfinite()
    assert classifier(ids).logits.shape == (2, 5) and classifier.model.output.leave.weight.std() > 0
    for name, weight in classifier.model.blocks.state_dict().items():
        assert torch.equal(weight, model.model.blocks.state_dict()[name])
    encoder = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(encoder(ids, attention_mask=mask).last_hidden_state, model.model.features(ids, mask.bool()))


@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("kind, cls", KINDS[:2], ids=["causal", "masked"])
@pytest.mark.parametrize("size", [70, 50])
def test_the_vocabulary_can_be_resized(kind, cls, tie, size, tiny, tmp_path):
    model, ids = tiny(f"norm_{kind}", cls, tie=tie, vocab_size=61), torch.randint(4, 50, (2, 8))
    before = model(ids).logits
    model.resize_token_embeddings(size, mean_resizing=False)
    after = model(torch.where(ids == 4, size - 1, ids)).logits
    assert after.shape == (2, 8, size) and model.config.vocab_size == size
    torch.testing.assert_close(model(ids).logits[..., :50], before[..., :50])
    model.save_pretrained(tmp_path)
    assert torch.equal(cls.from_pretrained(tmp_path)(ids).logits, model(ids).logits)


@each_kind
@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(kind, cls, reentrant, tiny):
    model, (ids, mask) = tiny(f"lln_diag_{kind}", cls, dropout=0.0).train(), ids_and_mask()
    gradients = []
    for recompute in (False, True):
        if recompute:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
            assert model.model.gradient_checkpointing
        model.zero_grad()
        model(ids, attention_mask=mask).logits.square().sum().backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        assert torch.equal(gradient, gradients[1][name]), name


@each_kind
def test_compiled_without_a_graph_break(kind, cls, tiny):
    model, (ids, _) = tiny(f"transnormer_t2_{kind}", cls), ids_and_mask()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids).logits, model(ids).logits, rtol=1e-5, atol=1e-5)
