"""`generate()` on a constant-size state: its tokens, its cache, and what it refuses."""

import pytest
import torch
from transformers import AutoModelForCausalLM, StoppingCriteria, TextIteratorStreamer

from linnet import describe_attention
from linnet.errors import InputError, UnsupportedError
from linnet.hf import LinnetCache, LinnetForCausalLM
from linnet.models.presets import SYSTEMS

CAUSAL = sorted(name for name, parts in SYSTEMS.items() if all(describe_attention(m)["recurrent"] for m in parts[:2]))
SHORT = ("transnormer_t2", "lln_diag", "long_short")
each_system = pytest.mark.parametrize("system", CAUSAL)
some_systems = pytest.mark.parametrize("system", SHORT)


def prompts(*lengths: int) -> list[torch.Tensor]:
    return [torch.randint(4, 61, (1, n)) for n in lengths]


def left_padded(rows: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    N = max(row.shape[1] for row in rows)
    ids = torch.cat([torch.nn.functional.pad(row, (N - row.shape[1], 0), value=1) for row in rows])
    mask = torch.cat([torch.nn.functional.pad(torch.ones_like(row), (N - row.shape[1], 0)) for row in rows])
    return ids, mask


@each_system
def test_greedy_tokens_are_those_of_linnet_and_of_the_uncached_model(system, tiny):
    model = tiny(f"{system}_lm", LinnetForCausalLM)
    ids = torch.cat(prompts(9, 9))
    cached = model.generate(ids, max_new_tokens=12, do_sample=False)
    assert torch.equal(cached, model.generate(ids, max_new_tokens=12, do_sample=False, use_cache=False))
    assert torch.equal(cached, model.model.generate(ids, 12, temperature=0))
    assert len(cached[:, 9:].unique()) > 2, "a text of one token would prove nothing"


@each_system
def test_left_padding_changes_nothing(system, tiny):
    model, rows = tiny(f"{system}_lm", LinnetForCausalLM), prompts(9, 4, 1)
    ids, mask = left_padded(rows)
    batch = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
    for i, row in enumerate(rows):
        assert torch.equal(
            batch[i, ids.shape[1] :], model.generate(row, max_new_tokens=12, do_sample=False)[0, row.shape[1] :]
        )


@some_systems
def test_beam_search_reorders_the_state(system, tiny):
    model = tiny(f"{system}_lm", LinnetForCausalLM)
    ids, mask = left_padded(prompts(7, 5))
    how = {"attention_mask": mask, "max_new_tokens": 10, "num_beams": 4, "num_return_sequences": 2, "do_sample": False}
    assert torch.equal(model.generate(ids, **how), model.generate(ids, use_cache=False, **how))


@some_systems
def test_sampling_follows_the_seed(system, tiny):
    model, ids = tiny(f"{system}_lm", LinnetForCausalLM), prompts(6)[0]
    texts = []
    for seed, cached in ((0, True), (0, False), (1, True)):
        torch.manual_seed(seed)
        how = {"do_sample": True, "top_p": 0.9, "temperature": 2.0, "use_cache": cached, "num_return_sequences": 3}
        texts.append(model.generate(ids, max_new_tokens=15, **how))
    assert torch.equal(texts[0], texts[1]) and not torch.equal(texts[0], texts[2])


class StopAt(StoppingCriteria):
    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids, scores, **kwargs):
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


def test_stopping_and_streaming(tiny):
    model, ids = tiny("transnormer_t2_lm", LinnetForCausalLM), prompts(6)[0]
    whole = model.generate(ids, max_new_tokens=20, do_sample=False)
    assert torch.equal(
        model.generate(ids, max_new_tokens=20, do_sample=False, stopping_criteria=[StopAt(11)]), whole[:, :11]
    )
    stop = int(whole[0, 12])
    first = 6 + whole[0, 6:].tolist().index(stop)
    assert torch.equal(
        model.generate(ids, max_new_tokens=20, do_sample=False, eos_token_id=stop), whole[:, : first + 1]
    )

    class Numbers:
        def decode(self, ids, **kwargs):
            return " ".join(map(str, ids)) + " "

    streamer = TextIteratorStreamer(Numbers(), skip_prompt=True)
    model.generate(ids, max_new_tokens=20, do_sample=False, streamer=streamer)
    assert [int(word) for word in "".join(streamer).split()] == whole[0, 6:].tolist()


@some_systems
@pytest.mark.parametrize("more", [1, 5])
def test_a_returned_cache_goes_on(system, more, tiny):
    model = tiny(f"{system}_lm", LinnetForCausalLM)
    ids, mask = left_padded(prompts(9, 6))
    how = {"max_new_tokens": 8, "do_sample": False, "return_dict_in_generate": True}
    first = model.generate(ids, attention_mask=mask, **how)
    cache = first.past_key_values
    assert isinstance(cache, LinnetCache) and cache.get_seq_length() == 16 and cache.batch_size == 2
    longer = torch.cat([first.sequences, torch.randint(4, 61, (2, more))], dim=1)
    mask = torch.cat([mask, torch.ones(2, longer.shape[1] - mask.shape[1], dtype=mask.dtype)], dim=1)
    warm = model.generate(longer, attention_mask=mask, past_key_values=cache, **how)
    cold = model.generate(longer, attention_mask=mask, **how)
    assert torch.equal(warm.sequences, cold.sequences)


@some_systems
def test_padding_inside_a_warm_cache_is_not_read(system, tiny):
    model = tiny(f"{system}_lm", LinnetForCausalLM)
    first, second = prompts(7, 5)
    gap = torch.tensor([[1, 1, 1]])
    with torch.no_grad():
        cache = model(first, use_cache=True).past_key_values
        mask = torch.tensor([[1] * 7 + [0] * 3 + [1] * 5])
        padded = model(torch.cat([gap, second], dim=1), attention_mask=mask, past_key_values=cache)
        plain = model(torch.cat([first, second], dim=1)).logits[:, 7:]
        lone = model(first, use_cache=True).past_key_values  # one masked token is no step
        lone = model(gap[:, :1], attention_mask=torch.tensor([[1] * 7 + [0]]), past_key_values=lone).past_key_values
        after = model(second, attention_mask=torch.tensor([[1] * 7 + [0] + [1] * 5]), past_key_values=lone)
    torch.testing.assert_close(padded.logits[:, 3:], plain, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.logits, plain, rtol=1e-4, atol=1e-4)


@some_systems
def test_the_state_does_not_grow(system, tiny):
    model, ids = tiny(f"{system}_lm", LinnetForCausalLM), prompts(16)[0]
    sizes = []
    for new in (8, 64):
        answer = model.generate(ids, max_new_tokens=new, do_sample=False, return_dict_in_generate=True)
        sizes.append(answer.past_key_values.state_bytes())
    assert (sizes[0] == sizes[1]) == (system != "long_short")  # which keeps one more key per chunk


def test_what_a_state_cannot_do_is_refused_with_the_reason(tiny):
    model, ids = tiny("transnormer_t2_lm", LinnetForCausalLM), prompts(6)[0]
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(ids, assistant_model=tiny("lln_lm", LinnetForCausalLM), max_new_tokens=4)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(ids, prompt_lookup_num_tokens=2, max_new_tokens=4)
    with pytest.raises(UnsupportedError, match=r"leave out.*cache_implementation"):
        model.generate(ids, cache_implementation="static", max_new_tokens=4)
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(UnsupportedError, match="cannot be cropped: a recurrent state cannot be rolled back"):
        cache.crop(1)
    with pytest.raises(UnsupportedError, match="input_ids only"):
        model(inputs_embeds=torch.zeros(1, 3, 32), use_cache=True)
    with pytest.raises(InputError, match="attention_mask has 2 columns: the cache has read 6, and there are 1 new"):
        model(ids[:, :1], attention_mask=torch.ones(1, 2), past_key_values=cache)
    with pytest.raises(UnsupportedError, match="attention_mask has 4 axes"):
        model(ids, attention_mask=torch.ones(1, 1, 6, 6))
    cache.reset()
    assert cache.get_seq_length() == 0 and not cache.is_initialized


def test_a_model_without_a_state_says_so(tiny):
    model = tiny("flash_quad_lm", LinnetForCausalLM)
    with pytest.raises(UnsupportedError, match="flash_quad cannot prefill or step: it has no recurrent state"):
        model.generate(prompts(4)[0], max_new_tokens=2)
    assert model.generate(prompts(4)[0], max_new_tokens=2, use_cache=False).shape == (1, 6)


def test_generation_after_save_and_reload(tiny, tmp_path):
    model, ids = tiny("lln_diag_lm", LinnetForCausalLM), prompts(6)[0]
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert torch.equal(
        again.generate(ids, max_new_tokens=9, do_sample=False), model.generate(ids, max_new_tokens=9, do_sample=False)
    )
