"""linnet's attention inside encoders of Transformers: what changes, what does not, and what is refused."""

import pytest
import torch

import linnet
from linnet.errors import InputError, UnsupportedError
from linnet.hf import LinnetForCausalLM, load, patch, unpatch
from linnet.hf.cache import DecoderCache
from linnet.hf.interface import record_interface_calls, through_interface

ENCODERS = ["bert", "roberta", "distilbert", "modernbert", "electra", "albert"]
each_encoder = pytest.mark.parametrize("name", ENCODERS)
CORES = [
    name
    for name in linnet.list_attention()
    if linnet.describe_attention(name)["core"] and linnet.describe_attention(name)["bidirectional"]
]


def padded() -> dict[str, torch.Tensor]:
    ids, mask = torch.randint(3, 99, (2, 20)), torch.ones(2, 20, dtype=torch.long)
    mask[1, 14:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def real(output: torch.Tensor) -> torch.Tensor:
    return output if output.dim() == 2 else torch.cat([output[0], output[1, :14]])


@torch.no_grad()
@each_encoder
def test_padding_is_exact_and_unpatch_restores(name, stock):
    model, inputs = stock(name), padded()
    before = model(**inputs)[0]
    with through_interface(model):  # without a core, every layer keeps its softmax, windows included
        torch.testing.assert_close(real(model(**inputs)[0]), real(before), rtol=1e-5, atol=1e-5)
    assert patch(model, "lln_diag") is model
    after = model(**inputs)[0]
    assert float((real(after) - real(before)).abs().max()) > 1e-3
    alone = model(input_ids=inputs["input_ids"][1:, :14])[0]
    torch.testing.assert_close(
        real(after)[-14:] if after.dim() == 3 else after[1:], alone.flatten(0, -2), rtol=1e-5, atol=1e-5
    )
    unpatch(model)
    assert torch.equal(model(**inputs)[0], before)
    assert not hasattr(model.config, "linnet")


@torch.no_grad()
def test_linnets_softmax_changes_nothing(stock):
    model, inputs = stock("bert"), padded()
    before = model(**inputs)[0]
    patch(model, "softmax")
    torch.testing.assert_close(real(model(**inputs)[0]), real(before), rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("attention", CORES)
def test_every_mechanism_fits_and_is_the_one_that_runs(attention, stock):
    model, inputs = stock("bert"), padded()
    patch(model, attention)
    calls = record_interface_calls(model, inputs)
    assert [call.core.name for call in calls] == [attention] * 3
    assert model(**inputs)[0].isfinite().all()


@torch.no_grad()
def test_images(stock):
    model, pixels = stock("vit"), torch.randn(2, 3, 32, 32)
    before = model(pixels).logits
    patch(model, "lln", layers=[1])
    assert model.config.linnet == {"attention": "lln", "options": {}, "layers": [1]}
    assert float((model(pixels).logits - before).abs().max()) > 1e-4


@torch.no_grad()
def test_the_layers_with_a_window_keep_it(stock):
    model, inputs = stock("modernbert"), padded()
    patch(model, "lln")
    calls = record_interface_calls(model, inputs)
    assert [call.window for call in calls] == [None, 4, None, 4]
    assert [call.core is not None for call in calls] == [True, False, True, False]
    unpatch(model)
    with pytest.raises(UnsupportedError, match="layer 1 attends inside a window of 4 tokens on each side: leave it"):
        patch(model, "lln", layers=[0, 1])
    assert not hasattr(model.config, "linnet")


def test_training_reaches_the_mechanism_and_the_model(stock):
    model, inputs = stock("bert").train(), padded()
    patch(model, "lln_diag", mix="scale")
    model.activation_checkpointing_enable({"use_reentrant": False})
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name
    assert any(".linnet.r" in name for name, _ in model.named_parameters())


@torch.no_grad()
def test_compiled_without_a_graph_break(stock):
    model, inputs = patch(stock("bert"), "lln_diag"), padded()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(real(compiled(**inputs)[0]), real(model(**inputs)[0]), rtol=1e-4, atol=1e-4)


REFUSED = {
    "mpnet": "MPNetForMaskedLM does not use the attention interface",
    "deberta": "DebertaV2ForMaskedLM does not use the attention interface",
    "opt": "OPTAttention keeps keys and values: linnet's attention carries a state",
    "mistral": "a layer of this decoder attends inside a window of 8 tokens, as its cache does",
    "bart": "BartForConditionalGeneration has a decoder: linnet patches encoders and decoders alone",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_patched_is_refused_and_left_alone(name, stock):
    model, ids = stock(name), torch.randint(3, 99, (1, 9))
    with torch.no_grad():
        before = model(input_ids=ids)[0]
        with pytest.raises(UnsupportedError, match=REFUSED[name]):
            patch(model, "lln_diag")
        assert torch.equal(model(input_ids=ids)[0], before)
    assert not hasattr(model.config, "linnet") and not any("linnet" in key for key in model.state_dict())


DECODERS = ["llama", "qwen2", "gpt2", "neox"]


@torch.no_grad()
@pytest.mark.parametrize("attention", ["lln_diag", "hedgehog"])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_carries_a_state(name, attention, stock):
    model, ids = stock(name), torch.randint(3, 99, (2, 11))
    before = model(ids).logits
    patch(model, attention)
    assert float((model(ids).logits - before).abs().max()) > 1e-2
    how = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    cached = model.generate(ids, **how, return_dict_in_generate=True)
    assert torch.equal(cached.sequences, model.generate(ids, **how, use_cache=False))
    assert len(cached.sequences[:, 11:].unique()) > 2, "a text of one token would prove nothing"
    longer = model.generate(ids, **how | {"max_new_tokens": 40}, return_dict_in_generate=True)
    assert isinstance(cached.past_key_values, DecoderCache)
    assert cached.past_key_values.state_bytes() == longer.past_key_values.state_bytes() > 0
    unpatch(model)
    assert torch.equal(model(ids).logits, before) and not model._is_stateful
    assert torch.equal(model.generate(ids, **how), model.generate(ids, **how, use_cache=False))


@torch.no_grad()
def test_a_decoder_generates_in_every_form(stock, tmp_path):
    model = patch(stock("llama"), "lln_diag", block=4)
    how = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    short = torch.randint(3, 99, (1, 5))
    ids = torch.cat([torch.randint(3, 99, (1, 9)), torch.nn.functional.pad(short, (4, 0))])
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    batch = model.generate(ids, attention_mask=mask, **how)
    assert torch.equal(batch[1, 9:], model.generate(short, **how)[0, 5:])
    beams = how | {"num_beams": 3, "attention_mask": mask}
    assert torch.equal(model.generate(ids, **beams), model.generate(ids, **beams, use_cache=False))
    first = model.generate(ids, attention_mask=mask, **how, return_dict_in_generate=True)
    more = torch.cat([first.sequences, torch.randint(3, 99, (2, 3))], dim=1)
    wide = torch.cat([mask, torch.ones(2, more.shape[1] - 9, dtype=mask.dtype)], dim=1)
    cold = model.generate(more, attention_mask=wide, **how)
    assert torch.equal(model.generate(more, attention_mask=wide, past_key_values=first.past_key_values, **how), cold)
    model.save_pretrained(tmp_path)
    assert torch.equal(load(tmp_path).generate(ids, attention_mask=mask, **how), batch)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(short, prompt_lookup_num_tokens=2, max_new_tokens=3)
    with pytest.raises(UnsupportedError, match="past_key_values is a StaticCache: the model keeps a state"):
        model.generate(short, cache_implementation="static", max_new_tokens=3)
    with pytest.raises(UnsupportedError, match="a recurrent state cannot be rolled back"):
        first.past_key_values.crop(1)
    with pytest.raises(InputError, match="attention_mask has 2 columns: the cache has read"):
        model(short[:, :1], attention_mask=torch.ones(1, 2), past_key_values=model(short).past_key_values)


def test_a_decoder_trains_with_and_without_a_cache(stock):
    model = patch(stock("llama"), "lln_diag", mix="ratio", block=4).train()
    ids, mask = torch.randint(3, 99, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    mask[1, :4] = 0
    labels = ids.masked_fill(mask.cumsum(dim=1) < 2, -100)  # a padded token predicts nothing

    def gradients(**how) -> torch.Tensor:
        model.zero_grad()
        model(ids, attention_mask=mask, labels=labels, **how).loss.backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    wanted = gradients(use_cache=False)
    torch.testing.assert_close(gradients(), wanted, rtol=1e-4, atol=1e-5)
    model.activation_checkpointing_enable({"use_reentrant": False})
    torch.testing.assert_close(gradients(), wanted, rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, about the breaks in its graph
def test_a_compiled_decoder_carries_its_state(stock):
    model, ids = patch(stock("llama"), "lln_diag", block=4), torch.randint(3, 99, (2, 11))
    how = {"max_new_tokens": 8, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    wanted = model.generate(ids, **how)
    model.forward = torch.compile(model.forward, backend="aot_eager")
    assert torch.equal(model.generate(ids, **how), wanted)


def test_a_decoder_is_patched_whole_and_by_what_has_a_state(stock):
    model = stock("llama")
    with pytest.raises(UnsupportedError, match="layers must be None, which patches all of them"):
        patch(model, "lln_diag", layers=[1])
    with pytest.raises(UnsupportedError, match="skyformer has no causal form"):
        patch(model, "skyformer")
    assert not hasattr(model.config, "linnet") and not any("linnet" in key for key in model.state_dict())


def test_wrong_arguments(stock, tiny):
    model = stock("bert")
    with pytest.raises(InputError, match="unknown attention 'lnn': did you mean 'lln'"):
        patch(model, "lnn")
    with pytest.raises(InputError, match="layers contains 3: they are numbered from 0 to 2"):
        patch(model, "lln", layers=[3])
    with pytest.raises(InputError, match="layers is empty"):
        patch(model, "lln", layers=[])
    with pytest.raises(InputError, match="unknown key of lln"):
        patch(model, "lln", blok=3)
    with pytest.raises(InputError, match="the model is not patched"):
        unpatch(model)
    assert not any("linnet" in key for key in model.state_dict())
    patch(model, "lln")
    with pytest.raises(InputError, match="patched already"):
        patch(model, "lln")
    with pytest.raises(InputError, match="model is a Linear: it must be a model of Transformers"):
        patch(torch.nn.Linear(2, 2), "lln")
    with pytest.raises(InputError, match=r"choose its mechanisms in LinnetConfig\.layers"):
        patch(tiny("lln_lm", LinnetForCausalLM), "elu")
    with pytest.raises(UnsupportedError, match="attention_mask has 4 axes"):
        model(torch.randint(3, 99, (1, 5)), attention_mask=torch.ones(1, 1, 5, 5))
