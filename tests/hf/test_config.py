"""The configuration: the fields of linnet under its names, and one-line errors for anything else."""

import json

import pytest
from transformers import AutoConfig

from linnet.errors import InputError, UnsupportedError
from linnet.hf import LinnetConfig
from linnet.models.presets import list_models, preset, preset_config


@pytest.mark.parametrize("name", [name for name in list_models() if "_lra" not in name and "_vit" not in name])
def test_a_preset_survives_the_way_to_transformers_and_back(name):
    own = preset_config({"preset": name})
    config = LinnetConfig.from_preset(name)
    assert config.model_config(own.output) == own
    assert (config.hidden_size, config.num_hidden_layers) == (own.width, len(own.layers))


def test_saved_and_loaded(tmp_path):
    config = LinnetConfig.from_preset("lln_diag_roberta_small", vocab_size=99)
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(again, LinnetConfig)
    assert again.to_dict() | {"_name_or_path": ""} == config.to_dict()
    assert "attn_implementation" not in (tmp_path / "config.json").read_text()


WRONG = [
    ({"hiden_size": 64}, "unknown key of LinnetConfig 'hiden_size'"),
    ({"layers": ["lnn"]}, "config.layers.0 is 'lnn': unknown attention 'lnn': did you mean 'lln'?"),
    ({"heads": 3}, "config.heads is 3: it must divide width = 256"),
    ({"width": "abc"}, "config.width is 'abc'"),
    ({"options": {"norm": {"phi": "exp"}}}, None),  # the mechanism refuses it when the model is built
    ({"tie": True}, "tie is not a key of LinnetConfig: Transformers has tie_word_embeddings"),
    ({"max_length": 9}, "max_length is not a key of LinnetConfig: Transformers has max_position_embeddings"),
    ({"auto_map": {"AutoModel": "evil--repo.Model"}}, "unknown key of LinnetConfig 'auto_map'"),
    ({"trust_remote_code": True}, "unknown key of LinnetConfig 'trust_remote_code'"),
    ({"_attn_implementation_internal": "evil/kernel"}, "unknown key"),
    ({"pad_token_id": 10**9}, "config.pad is 1000000000: it must be below vocab_size"),
]


@pytest.mark.parametrize("keys, said", WRONG, ids=[next(iter(keys)) for keys, _ in WRONG])
def test_a_wrong_key_is_one_line_that_names_it(keys, said, tmp_path):
    if said is None:
        from linnet.hf import LinnetForCausalLM

        with pytest.raises(InputError, match=r"model\.options\.norm\.phi is 'exp'"):
            LinnetForCausalLM(LinnetConfig(**keys))
        return
    with pytest.raises(InputError) as error:
        LinnetConfig(**keys)
    assert said in str(error.value) and "\n" not in str(error.value)
    LinnetConfig().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))
    with pytest.raises(InputError):
        AutoConfig.from_pretrained(tmp_path)


def test_a_model_of_pictures_is_refused():
    own = preset("transnormer_t2_vit_small")
    with pytest.raises(UnsupportedError, match=r"patch is 4: linnet\.hf has classes for models of text only"):
        LinnetConfig.from_model_config(own)
