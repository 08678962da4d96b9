"""Models by name: the published parameter counts, exactly, and the meaning of names and overrides."""

import re
from pathlib import Path

import pytest
import torch

import linnet
from linnet.errors import InputError
from linnet.models.presets import SYSTEMS, create_model, is_resolved_preset, list_models, preset, preset_config

COUNTS = {
    "transnormer_t1_lm": 155_988_156,
    "transnormer_t2_lm": 155_988_156,
    "vanilla_lm": 156_000_256,
    "flash_lm": 153_518_848,
    "flash_quad_lm": 153_513_728,
    "transnormer_t1_roberta": 124_672_473,
    "transnormer_t2_roberta": 124_672_473,
    "vanilla_roberta": 124_696_665,
    "flash_roberta": 127_123_521,
    "flash_quad_roberta": 127_111_233,
    "long_short_roberta": 128_277_081,
    "vanilla_vit_base": 86_567_656,  # ViT-B/16 of arXiv 2010.11929, as every implementation counts it
    "lln_vit_base": 86_567_656,
    "transnormer_t2_vit_base": 86_541_544,
    "vanilla_vit": 2_530_050,
    "lln_vit": 2_530_050,
    "lln_diag_vit": 2_530_050,
    "transnormer_t2_vit": 2_524_154,
    "vanilla_vit_small": 207_946,
    "transnormer_t2_vit_small": 206_618,
}
LRA = {  # the fields of each task, the count of vanilla, that of TransNormer
    "text": ({}, 370_562, 369_878),
    "listops": ({"vocab_size": 32, "max_length": 2048, "classes": 10}, 209_802, 209_118),
    "retrieval": ({"output": "two_tower"}, 395_138, 394_454),
    "pathfinder": ({"max_length": 1024}, 173_954, 173_270),
    "image": ({"vocab_size": 256, "max_length": 1024, "classes": 10}, 158_602, 157_918),
}


def count(name, **overrides):
    with torch.device("meta"):
        model = create_model(name, **overrides)
    assert all(tensor.is_meta for tensor in (*model.parameters(), *model.buffers()))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", COUNTS)
def test_published_parameter_counts(name):
    assert count(name) == COUNTS[name]


@pytest.mark.parametrize("task", LRA)
def test_parameter_counts_of_lra(task):
    fields, vanilla, transnormer = LRA[task]
    assert count("vanilla_lra", **fields) == vanilla
    assert count("transnormer_t1_lra", **fields) == count("transnormer_t2_lra", **fields) == transnormer


def test_small_models_are_within_one_percent_of_each_other(kind):
    counts = [count(name) for name in list_models() if name.endswith(f"_{kind}_small")]
    assert len(counts) >= 6
    assert min(counts) >= 2e6
    assert max(counts) <= 5e6
    assert max(counts) <= 1.01 * min(counts)


def test_position_encoding_can_be_added_to_vanilla_within_the_one_percent():
    plain, rotated = count("vanilla_lm_small"), count("vanilla_lm_small", options={"softmax": {"positions": "lrpe"}})
    assert plain < rotated <= 1.01 * plain


def test_every_name_builds_and_is_listed_in_order():
    names = linnet.list_models()
    assert names == sorted(names)
    for system in ("transnormer_t1", "transnormer_t2", "vanilla", "elu", "lln", "lln_diag"):
        assert {f"{system}_{end}" for end in ("lm", "lm_small", "roberta", "roberta_small", "lra")} <= set(names)
    for name in names:
        assert count(name) > 0


def test_the_document_states_these_counts():
    text = (Path(__file__).parents[2] / "docs/models.md").read_text()
    stated = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", text, flags=re.MULTILINE)
    ends = ("lra", "lra_small", "vit", "vit_small", "vit_base")
    others = {f"{name}_{end}" for name in linnet.list_attention() if name not in SYSTEMS for end in ends}
    assert {name for name, _ in stated} == set(list_models()) - others
    for name, number in stated:
        assert count(name) == int(number.replace(",", "")), name


def test_t1_and_t2():
    t1, t2 = preset("transnormer_t1_lm"), preset("transnormer_t2_roberta")
    assert t1.layers == ("diag",) * 3 + ("norm",) * 3
    assert t1.options == {"diag": {"kind": "rela"}, "norm": {"phi": "elu"}}
    assert t2.layers == ("diag",) * 6 + ("norm",) * 6
    assert t2.options == {"diag": {"kind": "softmax", "dropout": 0.1}, "norm": {"phi": "1+elu"}}
    assert (t1.norm_position, t2.norm_position) == ("pre", "post")
    assert preset("vanilla_roberta").options == {"softmax": {"dropout": 0.1}}
    assert preset("vanilla_lm").options == {}


def test_systems_in_lra_differ_in_their_layers_alone():
    t1, t2, vanilla = (preset(f"{system}_lra") for system in ("transnormer_t1", "transnormer_t2", "vanilla"))
    assert [config.ffn_dropout for config in (t1, t2, vanilla)] == [0.0, 0.0, 0.1]
    assert t1.options["diag"] == {"kind": "rela", "positions": "rope", "dropout": 0.1}
    assert t2.options["norm"] == {"phi": "1+elu", "positions": "rope"}
    assert (t2.layers, t2.ffn_width, vanilla.layers, vanilla.ffn_width) == (("diag", "norm"), 85, ("softmax",) * 2, 128)
    own = {"layers", "options", "ffn", "ffn_width", "ffn_dropout", "activation", "norm"}
    assert t1.model_dump(exclude=own) == t2.model_dump(exclude=own) == vanilla.model_dump(exclude=own)


def test_overrides_replace_fields_and_extend_options():
    fields = {"vocab_size": 99, "layers": ["norm", "diag+norm"], "options": {"diag": {"block": 32}}}
    config = preset("transnormer_t1_lm_small", **fields)
    assert config.vocab_size == 99
    assert config.layers == ("norm", "diag+norm")
    assert config.options == {"diag": {"kind": "rela", "block": 32}, "norm": {"phi": "elu"}}
    assert preset_config({"preset": "transnormer_t1_lm_small", **fields}) == config


@pytest.mark.parametrize("ending", ["lm", "lm_small", "roberta", "roberta_small", "lra", "lra_small"])
def test_a_mechanism_has_the_options_of_its_own_preset_wherever_layers_name_it(ending):
    """Every preset of a kind and size, with the layers of every mechanism that has a preset there."""
    systems = {name.removesuffix(f"_{ending}") for name in list_models() if name.endswith(f"_{ending}")}
    mechanisms = {"vanilla" if name == "softmax" else name: name for name in linnet.list_attention()}
    asked = {system: mechanisms[system] for system in systems & set(mechanisms)}
    assert len(asked) >= 11
    for system in systems:
        for other, mechanism in asked.items():
            layers = ["elu", f"elu{'+|>'[len(mechanism) % 3]}{mechanism}"]  # a sign of the three that join mechanisms
            found = preset(f"{system}_{ending}", layers=layers).options.get(mechanism, {})
            own = preset(f"transnormer_t1_{ending}").options if system == "transnormer_t1" else {}  # it has its own
            assert found == own.get(mechanism, preset(f"{other}_{ending}").options.get(mechanism, {})), (system, other)


def test_softmax_among_other_layers_has_its_dropout_unless_it_is_set():
    layers = ["elu"] * 6 + ["softmax"] * 6
    assert preset("elu_roberta", layers=layers).options == {"softmax": {"dropout": 0.1}}
    none = {"softmax": {"dropout": 0.0}}
    assert preset("elu_roberta", layers=layers, options=none).options == none
    assert preset("elu_lra", layers=["cosformer"], max_length=77).options == {"cosformer": {"max_length": 77}}


def test_the_table_of_a_run_keeps_its_meaning():
    """A run of version 0.1 whose layers had lost the options of their mechanism resumes without them."""
    table = preset("elu_roberta", layers=["softmax"]).model_dump(mode="json", exclude_none=True)
    assert is_resolved_preset(table)
    old = {"preset": "elu_roberta", **table, "options": {}}
    assert preset_config(old).options == {}
    assert not is_resolved_preset({key: value for key, value in old.items() if key != "options"})


def test_bounded_mechanisms_get_the_length_of_the_model():
    assert preset("cosformer_lm").options == {"cosformer": {"max_length": 512}}
    for system in ("cosformer", "linformer"):
        assert preset(f"{system}_lra", max_length=5000).options == {system: {"max_length": 5000}}
        own = {system: {"max_length": 100}}
        assert preset(f"{system}_lra", max_length=5000, options=own).options == own
    assert count("linformer_lra", max_length=1024) == 370_562 - 3072 * 64 + 2 * 2 * 128 * 1024


def test_a_resolved_table_is_a_fixed_point(kind):
    for name in list_models():
        config = preset(name)
        table = config.model_dump(mode="json", exclude_none=True)
        assert preset_config({"preset": name, **table}) == preset_config(table) == config


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("transnormr_t2_lm", {}), "unknown model 'transnormr_t2_lm': did you mean 'transnormer_t2_lm'?"),
        (("vanilla_lm", {"vocab": 5}), "unknown key of model 'vocab': did you mean 'vocab_size'?"),
        (("vanilla_lm_small", {"heads": 5}), "model.heads is 5: it must divide width = 192"),
        (("vanilla_lm_small", {"options": 5}), "model.options is 5: "),
        (("vanilla_lm", {"options": {"softmax": {"dropuot": 0}}}), "unknown key of model.options.softmax 'dropuot'"),
        (("vanilla_lm", {"options": {"softmax": {"heads": 1}}}), "unknown key of model.options.softmax 'heads'"),
        (("vanilla_lm", {"options": {"norm": {"phi": "exp"}}}), "model.options.norm.phi is 'exp': "),
        (("lln_lm_small", {"options": {"lln": {"statistics": "sample"}}}), "lln: statistics='sample'"),
    ],
)
def test_bad_names_and_values(arguments, message):
    name, overrides = arguments
    with pytest.raises(InputError) as error:
        create_model(name, **overrides)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_place_and_type_are_chosen_as_in_torch():
    model = linnet.create_model("lln_lm_small", vocab_size=300, device="meta", dtype=torch.bfloat16)
    assert {(each.device.type, each.dtype) for each in model.parameters()} == {("meta", torch.bfloat16)}
