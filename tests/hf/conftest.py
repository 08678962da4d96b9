"""Small real models in Transformers. Every test of this folder is skipped where transformers is not installed."""

from collections.abc import Callable

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers, the extra `hf`")
TINY = {
    "vocab_size": 61,
    "width": 32,
    "heads": 2,
    "ffn_width": 40,
    "options": {"diag": {"block": 8}, "flash": {"chunk": 8}, "long_short": {"chunk": 4}},
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """Nothing may ask the network, and progress bars stay out of the captured output."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture
def tiny() -> Callable[..., torch.nn.Module]:
    """`tiny("lln_lm", LinnetForCausalLM)`: that preset with narrow layers, perturbed weights and its own output."""
    from linnet.hf import LinnetConfig

    def build(name: str, cls: type, **overrides) -> torch.nn.Module:
        model = cls(LinnetConfig.from_preset(f"{name}_small", **({"tie": False} | TINY | overrides))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    return build


SIZE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}


def _stock(name: str) -> torch.nn.Module:
    """A small model of a class of Transformers."""
    t = transformers
    if name == "distilbert":
        sizes = {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 48, "initializer_range": 0.3}
        return t.DistilBertForMaskedLM(t.DistilBertConfig(vocab_size=99, **sizes))
    if name == "modernbert":
        ids = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "cls_token_id": 0, "sep_token_id": 2}
        sizes = SIZE | {"num_hidden_layers": 4}
        config = t.ModernBertConfig(**sizes, **ids, local_attention=8, global_attn_every_n_layers=2)
        return t.ModernBertForMaskedLM(config)
    if name == "vit":
        sizes = {key: SIZE[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
        config = t.ViTConfig(**sizes, intermediate_size=48, image_size=32, patch_size=8, initializer_range=0.3)
        return t.ViTForImageClassification(config)
    if name == "bart":
        sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
        heads = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}
        return t.BartForConditionalGeneration(t.BartConfig(vocab_size=99, **sizes, **heads))
    if name == "gpt2":
        sizes = {"n_embd": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3}
        return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=99, bos_token_id=1, eos_token_id=2, **sizes))
    if name == "opt":
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48}
        return t.OPTForCausalLM(t.OPTConfig(vocab_size=99, word_embed_proj_dim=32, **sizes))
    classes = {
        "bert": (t.BertConfig, t.BertForMaskedLM),
        "bert_encoder": (t.BertConfig, t.BertModel),
        "roberta": (t.RobertaConfig, t.RobertaForSequenceClassification),
        "electra": (t.ElectraConfig, t.ElectraForMaskedLM),
        "albert": (t.AlbertConfig, t.AlbertForMaskedLM),
        "mpnet": (t.MPNetConfig, t.MPNetForMaskedLM),
        "deberta": (t.DebertaV2Config, t.DebertaV2ForMaskedLM),
        "llama": (t.LlamaConfig, t.LlamaForCausalLM),
        "qwen2": (t.Qwen2Config, t.Qwen2ForCausalLM),
        "mistral": (t.MistralConfig, t.MistralForCausalLM),
        "neox": (t.GPTNeoXConfig, t.GPTNeoXForCausalLM),
    }
    config, cls = classes[name]
    grouped = {"num_key_value_heads": 2} if name in ("llama", "qwen2", "mistral") else {}
    return cls(config(**SIZE, **grouped, **({"sliding_window": 8} if name == "mistral" else {})))


@pytest.fixture
def stock() -> Callable[[str], torch.nn.Module]:
    """`stock("bert")`: a small model of Transformers with random weights, in evaluation mode."""
    return lambda name: _stock(name).eval()
