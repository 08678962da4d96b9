"""What a model is made of: the settings that the backbone is built from, and that every saved model carries."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from linnet.config import Settings
from linnet.errors import unknown
from linnet.registry import ATTENTION


def _known(name: str) -> str:
    """The name of a mechanism."""
    if name not in ATTENTION:
        raise unknown("attention", name, ATTENTION.names())
    return name


def _known_layer(layer: str) -> str:
    """A layer is a mechanism's name, or several joined by `+`, which run in parallel."""
    for name in layer.split("+"):
        _known(name)
    return layer


Mechanism = Annotated[str, AfterValidator(_known)]
Layer = Annotated[str, AfterValidator(_known_layer)]
Count = Annotated[int, Field(ge=1, le=2**30)]
Width = Annotated[int, Field(ge=1, le=10**7)]  # the size of a matrix of them is still a number of 64 bits


class ModelConfig(Settings):
    """One model; the defaults are those of TransNormer's language model."""

    layers: Annotated[tuple[Layer, ...], Field(min_length=1, strict=False, examples=[["diag", "norm"]])]
    """First layer first: a mechanism's name each; in "diag+norm" two run in parallel and their outputs are averaged."""
    width: Width
    heads: Width
    ffn_width: Width
    vocab_size: Count
    causal: bool
    options: dict[Mechanism, dict[str, Any]] = Field(default_factory=dict)
    """Options by mechanism: {"norm": {"phi": "elu"}}; those of a mechanism that no layer uses are ignored."""
    norm: Literal["srms", "scale", "rms", "layer"] = "srms"
    norm_position: Literal["pre", "post"] = "pre"
    ffn: Literal["glu", "ffn", "none"] = "glu"
    """With "none" a layer is its attention alone, and `ffn_width` and `activation` are of no use."""
    activation: Literal["silu", "gelu", "relu"] = "silu"
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_length: Count = 512
    """Number of learned positions; the other kinds have no end."""
    first_position: Annotated[int, Field(ge=0, le=2**30)] = 2
    """Where positions begin. fairseq counts from the padding id + 1; its tables have that many rows that are unused."""
    embedding_scale: bool = True
    """Multiply token embeddings by sqrt(width)."""
    embedding_norm: bool = False
    """LayerNorm after the embedding."""
    final_norm: bool = True
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Of the embedding and of both branches of a block; attention weights have their own, in `options`."""
    ffn_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Inside the FFN or GLU, before its last matrix."""
    output: Literal["causal_lm", "masked_lm", "classifier", "two_tower"] = "causal_lm"
    """Logits of tokens, or of the classes of whole sequences or of pairs of them."""
    tie: bool = True
    """The output of a language model shares the embedding's weights."""
    classes: Annotated[int, Field(ge=2, le=2**20)] = 2
    head_width: Width = 128
    """Of a classifier: inside its output."""
    mean_over: Literal["length", "max_length"] = "length"
    """What a classifier divides the sum over a sequence's tokens by: their true number, or `max_length` always."""
    init: Literal["xavier", "bert", "lra"] = "xavier"
    pad: Annotated[int, Field(ge=0)] | None = None
    """Padding's id: its embedding starts at 0."""

    @field_validator("heads")
    @classmethod
    def _heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width")
        if width is not None and width % heads:
            raise ValueError(f"it must divide width = {width}")
        return heads

    @field_validator("output")
    @classmethod
    def _output_fits(cls, output: str, info: ValidationInfo) -> str:
        if output == "causal_lm" and info.data.get("causal") is False:
            raise ValueError("with causal = false a token would see the one that it is to predict")
        return output

    @field_validator("pad")
    @classmethod
    def _pad_is_an_id(cls, pad: int | None, info: ValidationInfo) -> int | None:
        size = info.data.get("vocab_size")
        if pad is not None and size is not None and pad >= size:
            raise ValueError(f"it must be below vocab_size = {size}")
        return pad
