"""The configuration of a model: the backbone is built from it, and every saved model carries it."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)

from linnet.config import Settings
from linnet.errors import unknown_name_error
from linnet.registry import ATTENTION

SIGNS = {"+", "|", ">"}


def _known(name: str) -> str:
    """Check the name of a mechanism."""
    if name not in ATTENTION:
        raise unknown_name_error("attention", name, ATTENTION.names())
    return name


def split_layer_config(layer: str) -> tuple[str, list[str]]:
    """The sign that joins the mechanisms of a layer ("+" averages, "|" concatenates, ">" chains), and their names."""
    sign = next((letter for letter in layer if letter in SIGNS), "+")
    return sign, layer.split(sign)


def _known_layer(layer: str) -> str:
    """Check a layer: the name of a mechanism, or several joined by one of the signs."""
    if len(SIGNS & set(layer)) > 1:
        raise ValueError("a layer joins mechanisms by one sign: `+`, `|` or `>`")
    for name in split_layer_config(layer)[1]:
        _known(name)
    return layer


Mechanism = Annotated[str, AfterValidator(_known)]
Layer = Annotated[str, AfterValidator(_known_layer)]
Count = Annotated[int, Field(ge=1, le=2**30)]
Width = Annotated[int, Field(ge=1, le=10**7)]  # the size of a square matrix still fits in 64 bits
Share = Annotated[float, Field(ge=0, le=1)]
Pixel = Annotated[tuple[Share, ...], Field(min_length=1, strict=False, examples=[[0.5]])]  # a number for each channel
PICTURE = {"patch", "image_size", "channels", "window", "pool", "pixel_mean", "pixel_std"}  # fields of such models only


class ModelConfig(Settings):
    """One model; the defaults are those of TransNormer's language model."""

    layers: Annotated[
        tuple[Layer, ...], Field(min_length=1, max_length=2**10, strict=False, examples=[["diag", "norm"]])
    ]
    """The mechanism of each layer, from the first on, or several: "diag+norm" averages their outputs, "diag|norm" gives
    each an equal part of the heads, "diag>norm" applies one after the other."""
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
    """With "none" a layer is only its attention, and `ffn_width` and `activation` are not used."""
    activation: Literal["silu", "gelu", "relu", "identity"] = "silu"
    positions: Literal["sinusoidal", "learned", "none"] = "sinusoidal"
    max_length: Count = 512
    """Number of learned positions; the other kinds have no limit."""
    first_position: Annotated[int, Field(ge=0, le=2**30)] = 2
    """The first position. fairseq counts from the padding id + 1 and leaves that many rows of its table unused."""
    embedding_scale: bool = True
    """Multiply token embeddings by sqrt(width)."""
    embedding_norm: bool = False
    """LayerNorm after the embedding."""
    final_norm: bool = True
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Dropout of the embedding and of both branches of a block; that of attention weights is in `options`."""
    ffn_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout inside the FFN or GLU, before its last matrix."""
    output: Literal[
        "causal_lm", "masked_lm", "classifier", "linear_classifier", "sentence", "sentence_mean", "two_tower"
    ] = "causal_lm"
    """Logits of tokens, or of the classes of whole sequences or of pairs of them. A sentence is read at its first token
    or by the mean of its tokens."""
    tie: bool = True
    """Whether the output of a language model shares the weights of the embedding."""
    classes: Annotated[int, Field(ge=1, le=2**20)] = 2
    """Number of classes; 1 is a score instead, which only sentences have."""
    head_width: Width = 128
    """Width inside the output of a classifier."""
    mean_over: Literal["length", "max_length"] = "length"
    """A classifier divides the sum over a sequence's tokens by their number, or always by `max_length`."""
    init: Literal["xavier", "bert", "lra"] = "xavier"
    pad: Annotated[int, Field(ge=0)] | None = None
    """The padding id; its embedding starts at 0."""
    patch: Annotated[int, Field(ge=1, le=2**12)] | None = None
    """The side of a patch in pixels. A model with a patch reads images; the fields below belong to it."""
    image_size: Annotated[int, Field(ge=1, le=2**14)] = 32
    """The side of an image in pixels."""
    channels: Annotated[int, Field(ge=1, le=2**8)] = 3
    window: Annotated[int, Field(ge=1, le=2**12)] = 1
    """Patches stand window by window, each window x window of them row by row; 1: the whole image row by row."""
    pool: Literal["mean", "class"] = "mean"
    """A classifier reads the mean of the patches, or a class token, which stands after them."""
    pixel_mean: Pixel = (0.5,)
    """Mean of the pixels, from 0 to 1, for each channel or for all; the model subtracts it."""
    pixel_std: Pixel = (0.5,)
    """Standard deviation of the pixels; the model divides by it."""

    @property
    def grid(self) -> int:
        """Patches along a side of an image."""
        assert self.patch is not None  # the model reads images
        return self.image_size // self.patch

    @property
    def picture_tokens(self) -> int:
        """Tokens of an image: its patches, and the class token."""
        return self.grid**2 + (self.pool == "class")

    @model_serializer(mode="wrap")
    def _without_pictures(self, default: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the image fields of other models, so that their files do not change."""
        found: dict[str, Any] = default(self)
        return found if self.patch is not None else {key: found[key] for key in found if key not in PICTURE}

    @model_validator(mode="after")
    def _reads_pictures(self) -> "ModelConfig":
        if self.patch is None:
            changed = sorted(self.model_fields_set & (PICTURE - {"patch"}))
            if changed:
                raise ValueError(f"{changed[0]} belongs to an image model, which has a `patch`")
            return self
        if self.image_size % self.patch:
            raise ValueError(f"patch is {self.patch}: it must divide image_size = {self.image_size}")
        if self.grid % self.window:
            raise ValueError(f"window is {self.window}: it must divide the {self.grid} patches of a side")
        if self.causal or self.output not in ("classifier", "linear_classifier"):
            raise ValueError("a model with a patch is a classifier with causal = false")
        if self.positions == "learned" and self.max_length != self.picture_tokens:
            raise ValueError(f"max_length is {self.max_length}: an image has {self.picture_tokens} tokens")
        if self.pool == "class" and all(set(split_layer_config(layer)[1]) == {"diag"} for layer in self.layers):
            raise ValueError("pool is 'class': with diag alone a class token reads no patch; 'mean' is allowed")
        for name in ("pixel_mean", "pixel_std"):
            if len(getattr(self, name)) not in (1, self.channels):
                raise ValueError(f"{name} has {len(getattr(self, name))} entries: it needs 1 or {self.channels}")
        if not all(self.pixel_std):
            raise ValueError("pixel_std has a 0: the model divides by it")
        return self

    @field_validator("heads")
    @classmethod
    def _heads_divide_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("width")
        if width is not None and width % heads:
            raise ValueError(f"it must divide width = {width}")
        for layer in info.data.get("layers", ()):
            sign, names = split_layer_config(layer)
            if sign == "|" and heads % len(names):
                raise ValueError(f"layer {layer!r} divides them among {len(names)} mechanisms")
        return heads

    @field_validator("output")
    @classmethod
    def _output_fits(cls, output: str, info: ValidationInfo) -> str:
        if output == "causal_lm" and info.data.get("causal") is False:
            raise ValueError("with causal = false a token would see the token that it predicts")
        return output

    @field_validator("classes")
    @classmethod
    def _scores_sentences(cls, classes: int, info: ValidationInfo) -> int:
        if classes == 1 and not str(info.data.get("output")).startswith("sentence"):
            raise ValueError("it must be greater than or equal to 2, except for sentences, which may have a score")
        return classes

    @field_validator("pad")
    @classmethod
    def _pad_is_an_id(cls, pad: int | None, info: ValidationInfo) -> int | None:
        size = info.data.get("vocab_size")
        if pad is not None and size is not None and pad >= size:
            raise ValueError(f"it must be below vocab_size = {size}")
        return pad
