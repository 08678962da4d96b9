"""The configuration of a linnet model in Transformers: the fields of `ModelConfig`, under its names."""

from typing import Any, ClassVar

from transformers import PreTrainedConfig

from linnet.config import parse_config_section
from linnet.errors import InputError, UnsupportedError, unknown_name_error
from linnet.models.config import PICTURE, ModelConfig
from linnet.models.presets import preset_config

# Fields that Transformers names itself. `max_length` would be taken for a setting of `generate`.
_MEANT = {
    "tie": "tie_word_embeddings",
    "classes": "num_labels",
    "pad": "pad_token_id",
    "max_length": "max_position_embeddings",
    "output": "the class of the model",
}
FIELDS = tuple(name for name in ModelConfig.model_fields if name not in {*_MEANT, *PICTURE})
# Keys that Transformers itself writes into a config.json or passes on; anything else is a mistake.
_PASSED = {
    *("name_or_path", "_name_or_path", "_commit_hash", "torch_dtype", "num_labels", "model_type", "per_layer_config"),
    *("attn_implementation", "experts_implementation", "output_attentions", "_attn_implementation"),
    *("tokenizer_class", "is_decoder", "task_specific_params", "finetuning_task"),
}


class LinnetConfig(PreTrainedConfig):
    """One linnet model. The default is a small TransNormer T2; unknown keys are refused."""

    model_type: ClassVar[str] = "linnet"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "width",
        "num_attention_heads": "heads",
        "intermediate_size": "ffn_width",
    }

    layers: list[str] | tuple[str, ...] = ("diag", "diag", "norm", "norm")
    width: int = 256
    heads: int = 4
    ffn_width: int = 680
    vocab_size: int = 50265
    causal: bool = True
    options: dict[str, dict[str, Any]] | None = None
    norm: str = "srms"
    norm_position: str = "pre"
    ffn: str = "glu"
    activation: str = "silu"
    positions: str = "sinusoidal"
    max_position_embeddings: int = 512
    first_position: int = 2
    embedding_scale: bool = True
    embedding_norm: bool = False
    final_norm: bool = True
    dropout: float = 0.1
    ffn_dropout: float = 0.0
    head_width: int = 128
    mean_over: str = "length"
    init: str = "xavier"
    tie_word_embeddings: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    use_cache: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        for key in kwargs:
            if key in _MEANT:
                raise InputError(f"{key} is not a key of LinnetConfig: Transformers has {_MEANT[key]} for it")
            if key not in _PASSED:
                raise unknown_name_error("key of LinnetConfig", key, FIELDS)
        self.layers = list(self.layers)
        self.options = dict(self.options or {})
        super().__post_init__(**kwargs)
        self.model_config("causal_lm" if self.causal else "masked_lm")

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    def model_config(self, output: str) -> ModelConfig:
        """The model's `ModelConfig`, with this output; a wrong field raises a one-line error."""
        table = {name: getattr(self, name) for name in FIELDS}
        own = {"tie": self.tie_word_embeddings, "pad": self.pad_token_id, "output": output}
        own["max_length"] = self.max_position_embeddings
        if output == "classifier":
            own["classes"] = self.num_labels
        return parse_config_section(ModelConfig, table | own, "config")

    @classmethod
    def from_model_config(cls, config: ModelConfig, **others: Any) -> "LinnetConfig":
        """The configuration of a linnet model; `others` are keys of Transformers, such as `id2label`."""
        if config.patch is not None:
            raise UnsupportedError(f"patch is {config.patch}: linnet.hf has classes for models of text only")
        if config.output == "classifier":
            others.setdefault("num_labels", config.classes)
        others.setdefault("pad_token_id", config.pad)
        others |= {"tie_word_embeddings": config.tie, "max_position_embeddings": config.max_length}
        return cls(**{name: getattr(config, name) for name in FIELDS}, **others)

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "LinnetConfig":
        """The configuration of a preset of `linnet list models`: from_preset("lln_lm_small", vocab_size=8000)."""
        return cls.from_model_config(preset_config({"preset": name, **overrides}))
