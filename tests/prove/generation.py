"""Promise 17: generation with a state gives the tokens that the whole text gives; the state does not grow."""

import random

import torch

from linnet.attention.base import describe_attention
from linnet.models.backbone import Model
from linnet.models.presets import preset_config
from tests.prove.mechanisms import mechanism_forms
from tests.prove.promise import Trials, promise


def writing_model(names: list[str], seed: int = 0) -> Model:
    """A small causal model of these layers."""
    torch.manual_seed(seed)
    table = {"preset": "transnormer_t2_lm_small", "layers": names, "width": 16, "heads": 2, "ffn_width": 16}
    table |= {"vocab_size": 40, "dropout": 0.0, "tie": False, "options": {}}
    return Model(preset_config(table)).eval()


def recurrent_names() -> list[str]:
    """The mechanisms that generate with a state."""
    return [name for name, causal in mechanism_forms() if causal and describe_attention(name)["recurrent"]]


@promise(
    "17",
    "Generation with a state gives the same tokens as reading the whole text again, in constant memory.",
    "Random models of one to three recurrent mechanisms and random prompts, greedy, 24 tokens each; for every linear "
    "mechanism, the bytes of the state after 1,000 and after 16,000 tokens.",
)
def generation_agrees(trials: Trials) -> None:
    """100 models, then the sizes of states."""
    rng, names = random.Random(0), recurrent_names()
    with torch.no_grad():
        for i in range(trials.number(100, 5)):
            chosen = [rng.choice(names) for _ in range(rng.randint(1, 3))]
            with trials.survives(f"{chosen}"):
                model = writing_model(chosen, i).double()  # near ties must not decide
                ids = torch.randint(40, (2, rng.randint(1, 20)))
                written, again = model.generate(ids, max_new_tokens=24, temperature=0), ids
                for _ in range(24):
                    again = torch.cat([again, model(again)[:, -1:].argmax(dim=-1)], dim=1)
                assert torch.equal(written, again), "other tokens"
        for name in names:
            about = describe_attention(name)
            if "N^2" in about["cost"] or not about["any_length"]:
                continue
            model, sizes = writing_model([name]), []
            for length in (1000, 1000 if trials.short else 16_000):
                state = model.prefill(torch.randint(40, (1, length)))[1]
                sizes.append(sum(tensor.nbytes for layer in state.layers for tensor in _tensors(layer)))
            trials.check(sizes[0] == sizes[1] > 0, f"{name}: the state has {sizes} bytes")


def _tensors(state: object) -> list[torch.Tensor]:
    """All tensors of a nested state."""
    if isinstance(state, torch.Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, tuple | list) else ()
    if hasattr(state, "__dict__"):
        parts = vars(state).values()
    return [tensor for part in parts for tensor in _tensors(part)]
