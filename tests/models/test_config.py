"""The settings of a model: errors are one line that names the field, the value and what is allowed."""

import subprocess
import sys

import pytest

from linnet.config import parse_config_section
from linnet.errors import InputError
from linnet.models.config import ModelConfig
from linnet.models.presets import preset_config

FIELDS = {"layers": ["norm"], "width": 8, "heads": 2, "ffn_width": 8, "vocab_size": 11, "causal": True}

WRONG = [
    ({"layers": []}, "model.layers is []: ", 'it must be a list such as ["diag", "norm"]'),
    ({"layers": "diag"}, "model.layers is 'diag': ", 'it must be a list such as ["diag", "norm"]'),
    ({"layers": [3]}, "model.layers.0 is 3: ", "valid string"),
    ({"layers": ["diag", "nrm"]}, "model.layers.1 is 'nrm': ", "did you mean 'norm'?"),
    ({"layers": ["diag+"]}, "model.layers.0 is 'diag+': ", "unknown attention ''"),
    ({"layers": ["diag|nrm"]}, "model.layers.0 is 'diag|nrm': ", "did you mean 'norm'?"),
    ({"layers": ["diag|norm>elu"]}, "model.layers.0 is 'diag|norm>elu': ", "by one sign: `+`, `|` or `>`"),
    ({"layers": ["diag|norm|elu"]}, "model.heads is 2: ", "layer 'diag|norm|elu' divides them among 3 mechanisms"),
    ({"heads": 3}, "model.heads is 3: ", "it must divide width = 8"),
    ({"heads": 0}, "model.heads is 0: ", "greater than or equal to 1"),
    ({"width": -8}, "model.width is -8: ", "greater than or equal to 1"),
    ({"width": "wide"}, "model.width is 'wide': ", "valid integer"),
    ({"width": "8"}, "model.width is '8': ", "valid integer"),
    ({"width": 8.0}, "model.width is 8.0: ", "valid integer"),
    ({"width": True}, "model.width is True: ", "valid integer"),
    ({"width": 10**7 + 1}, "model.width is 10000001: ", "less than or equal to 10000000"),
    ({"ffn_width": 10**30}, f"model.ffn_width is {10**30}: ", "less than or equal to 10000000"),
    ({"vocab_size": 2**31}, "model.vocab_size is 2147483648: ", "less than or equal to 1073741824"),
    ({"max_length": 2**63}, f"model.max_length is {2**63}: ", "less than or equal to 1073741824"),
    ({"tie": 1}, "model.tie is 1: ", "valid boolean"),
    ({"dropout": True}, "model.dropout is True: ", "valid number"),
    ({"dropout": float("nan")}, "model.dropout is nan: ", "finite number"),
    ({"vocab_size": 0}, "model.vocab_size is 0: ", "greater than or equal to 1"),
    ({"ffn_width": 2.5}, "model.ffn_width is 2.5: ", "valid integer"),
    ({"max_length": 0}, "model.max_length is 0: ", "greater than or equal to 1"),
    ({"dropout": 1.0}, "model.dropout is 1.0: ", "less than 1"),
    ({"dropout": -0.1}, "model.dropout is -0.1: ", "greater than or equal to 0"),
    ({"norm": "batch"}, "model.norm is 'batch': ", "'srms', 'scale', 'rms' or 'layer'"),
    ({"ffn": "moe"}, "model.ffn is 'moe': ", "'glu', 'ffn' or 'none'"),
    ({"pad": 11}, "model.pad is 11: ", "it must be below vocab_size = 11"),
    ({"causal": False}, "model.output is 'causal_lm': ", "would see the token that it predicts"),
    (
        {"output": "masked_ml"},
        "model.output is 'masked_ml': ",
        "'causal_lm', 'masked_lm', 'classifier', 'linear_classifier', 'sentence', 'sentence_mean' or 'two_tower'",
    ),
    ({"classes": 0, "output": "sentence"}, "model.classes is 0: ", "greater than or equal to 1"),
    ({"classes": 1}, "model.classes is 1: ", "greater than or equal to 2"),
    ({"mean_over": "half"}, "model.mean_over is 'half': ", "'length' or 'max_length'"),
    ({"options": {"nrom": {"phi": "elu"}}}, "model.options: unknown attention 'nrom': ", "did you mean 'norm'?"),
    ({"options": {"diag+norm": {}}}, "model.options: unknown attention 'diag+norm': ", "norm"),
    ({"options": {"norm": 1}}, "model.options.norm is 1: ", "valid dictionary"),
    ({"widht": 8}, "unknown key of model 'widht': ", "did you mean 'width'?"),
    ({"preset": 3}, "model.preset is 3: ", "it must be a name"),
]


@pytest.mark.parametrize(("change", "place", "allowed"), WRONG, ids=[str(change) for change, _, _ in WRONG])
def test_errors_are_one_line(change, place, allowed):
    with pytest.raises(InputError) as error:
        preset_config({**FIELDS, "output": "causal_lm", **change})
    message = str(error.value)
    assert message.startswith(place)
    assert allowed in message
    assert "\n" not in message


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match=r"^model\.width is missing$"):
        parse_config_section(ModelConfig, {key: FIELDS[key] for key in FIELDS if key != "width"}, "model")


def test_a_saved_configuration_gives_the_same_again():
    config = parse_config_section(ModelConfig, {**FIELDS, "options": {"norm": {"phi": "elu"}}}, "model")
    assert parse_config_section(ModelConfig, config.model_dump(mode="json"), "model") == config


def test_the_largest_sizes_that_are_allowed_can_be_counted():
    import torch

    from linnet.models.backbone import Model

    largest = {"width": 10**7, "heads": 1, "ffn_width": 10**7, "vocab_size": 2**30, "max_length": 2**30}
    fields = {**FIELDS, **largest, "layers": ["softmax"], "positions": "learned", "tie": False}
    with torch.device("meta"):
        model = Model(parse_config_section(ModelConfig, fields, "model"))
    assert sum(parameter.nbytes for parameter in model.parameters()) > 10**16


def test_configurations_and_presets_need_no_torch():
    program = (
        "import sys, linnet\nfrom linnet.models.presets import preset\n"
        "assert all(preset(name).width for name in linnet.list_models())\nsys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
