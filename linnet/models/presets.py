"""Models by name: `<system>_<lm|roberta|lra|vit>[_small|_base]`, as data; importing this file does not import torch.

The sizes are those of TransNormer's tables (arXiv 2210.10340), and reproduce its published parameter counts exactly.
`_small` is a size for a CPU, with the same proportions; all its systems are within 1 % of each other. `_vit` has the
size of LLN's vision transformer (arXiv 2311.13541), `_vit_base` that of ViT-B/16 (arXiv 2010.11929).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from linnet.config import parse_config_section
from linnet.errors import InputError, unknown_name_error
from linnet.models.config import ModelConfig, split_layer_config
from linnet.registry import ATTENTION

if TYPE_CHECKING:
    from linnet.attention.projections import Device, Type
    from linnet.models.backbone import Model

# system: the mechanisms of the first and of the second half of the layers, and their options
SYSTEMS: dict[str, tuple[str, str, dict[str, dict[str, Any]]]] = {
    "transnormer_t1": ("diag", "norm", {"diag": {"kind": "rela"}, "norm": {"phi": "elu"}}),
    "transnormer_t2": ("diag", "norm", {"diag": {"kind": "softmax"}, "norm": {"phi": "1+elu"}}),
    "diag": ("diag", "diag", {"diag": {"kind": "softmax"}}),
    "norm": ("norm", "norm", {"norm": {"phi": "1+elu"}}),
    "vanilla": ("softmax", "softmax", {}),
    "elu": ("elu", "elu", {}),
    "lln": ("lln", "lln", {}),
    "lln_diag": ("lln_diag", "lln_diag", {}),
    "performer": ("performer", "performer", {}),
    "cosformer": ("cosformer", "cosformer", {}),
    "long_short": ("long_short", "long_short", {}),
    "flash": ("flash", "flash", {}),
    "flash_quad": ("flash_quad", "flash_quad", {}),
}
# These use TransNormer's SRMS and GLU; the others use LayerNorm and FFN.
GATED = {"transnormer_t1", "transnormer_t2", "diag", "norm"}
# Gated units replace both attention and FFN: more layers of one branch each, with a norm before it and no final norm.
UNITS = {"flash", "flash_quad"}
UNIT_LAYERS = {"lm": 10, "roberta": 24, "small": 7, "lra": 4, "lra_small": 4, "vit": 24, "vit_small": 8, "vit_base": 24}
UNIT_NORM = {"lm": "scale", "roberta": "layer", "lra": "layer", "vit": "layer"}
# The default is 128 for keys and twice the width for values. The FFN of LRA is half as wide, and so are its units.
UNIT_WIDTHS = {
    "small": {"value_width": 392},
    "lra": {"key_width": 32, "value_width": 64},
    "lra_small": {"key_width": 16, "value_width": 32},
    "vit": {"key_width": 32},
    "vit_small": {"key_width": 16},
}
# Built for a maximum length, that of the model: cosFormer's cosine spans it, Linformer has a column for each token.
BOUNDED = {"cosformer", "linformer"}
NARROW_FFN = {"long_short_roberta_small": 704}  # makes up for the parameters of 32 landmarks per head

KINDS: dict[str, dict[str, Any]] = {
    "lm": {
        "causal": True,
        "norm_position": "pre",
        "positions": "sinusoidal",
        "embedding_scale": True,
        "embedding_norm": False,
        "final_norm": True,
        "output": "causal_lm",
        "init": "xavier",
    },
    "roberta": {
        "causal": False,
        "norm_position": "post",
        "positions": "learned",
        "embedding_scale": False,
        "embedding_norm": True,
        "final_norm": False,
        "output": "masked_lm",
        "init": "bert",
    },
    "lra": {  # the defaults are those of Text; the tasks set vocabulary, length, classes and output
        "causal": False,
        "norm_position": "pre",
        "positions": "learned",
        "max_length": 4096,
        "first_position": 0,
        "embedding_scale": False,
        "embedding_norm": False,
        "final_norm": True,
        "output": "classifier",
        "init": "lra",
        "pad": None,
    },
    "vit": {  # the tasks set the size of an image and of a patch, channels and classes
        "causal": False,
        "norm_position": "pre",
        "positions": "learned",
        "first_position": 0,
        "embedding_scale": False,
        "embedding_norm": False,
        "final_norm": True,
        "output": "linear_classifier",
        "init": "lra",
        "pad": None,
        "dropout": 0.0,
        "tie": False,
    },
}
# side of an image and of a patch in pixels, classes, and what a classifier reads
PICTURES: dict[str, dict[str, Any]] = {
    "vit": {"image_size": 224, "patch": 7, "classes": 2, "pool": "class"},
    "vit_small": {"image_size": 32, "patch": 4, "classes": 10, "pool": "mean"},
    "vit_base": {"image_size": 224, "patch": 16, "classes": 1000, "pool": "class"},
}
# A small image has 64 patches: with the usual sizes, nothing would be approximated. LLN's Linformer mixes 64.
PICTURE_OPTIONS: dict[str, dict[str, dict[str, Any]]] = {
    "vit": {"linformer": {"k": 64}},
    "vit_small": {
        "bigbird": {"block": 8, "random": 1},
        "flash": {"chunk": 16},
        "informer": {"factor": 4},
        "linformer": {"k": 16},
        "long_short": {"landmarks": 8},
        "nystromformer": {"landmarks": 16},
        "performer": {"features": 32},
        "reformer": {"chunk": 8},
        "skyformer": {"landmarks": 16},
    },
}
WINDOWED = {"diag", "lln_diag"}  # their blocks are windows of patches
LARGEST_WINDOW = 8  # patches along a side
FFN_ACTIVATION = {"lm": "relu", "roberta": "gelu", "lra": "gelu", "vit": "gelu"}
ATTENTION_DROPOUT = {kind: {"diag": 0.1, "softmax": 0.1} for kind in ("roberta", "lra")}  # the others have none
# In the Long Range Arena, rotation angles are fixed and there is no reflection.
RELATIVE_POSITIONS = {"lra": {"diag": "rope", "norm": "rope"}, "vit": {"diag": "rope2d", "norm": "rope2d"}}

# number of layers, width, heads, width of a GLU, width of an FFN, vocabulary
SIZES: dict[str, tuple[int, int, int, int, int, int]] = {
    "lm": (6, 512, 8, 1365, 2048, 267_744),
    "roberta": (12, 768, 12, 2048, 3072, 50_265),
    "small": (4, 192, 4, 512, 768, 8192),
    "lra": (2, 64, 2, 85, 128, 512),
    "lra_small": (2, 32, 2, 42, 64, 512),
    "vit": (12, 128, 8, 341, 512, 256),
    "vit_small": (4, 64, 4, 170, 256, 256),
    "vit_base": (12, 768, 12, 2048, 3072, 256),
}


# A table with all of these, the fields of version 0.1, belongs to a run: every field is already set.
RESOLVED = {
    *("layers", "width", "heads", "ffn_width", "vocab_size", "causal", "options", "norm", "norm_position", "ffn"),
    *("activation", "positions", "max_length", "first_position", "embedding_scale", "embedding_norm", "final_norm"),
    *("dropout", "ffn_dropout", "output", "tie", "classes", "head_width", "mean_over", "init"),
}


def list_models() -> list[str]:
    """Sorted names of the presets."""
    names = {f"{system}_{kind}" for system in SYSTEMS for kind in KINDS if kind != "vit"}
    names |= {f"{system}_{kind}" for system in _systems() for kind in ("lra", "vit")}
    bases = {f"{name}_base" for name in names if name.endswith("_vit")}
    return sorted({f"{name}{end}" for name in names for end in ("", "_small")} | bases)


def _systems() -> dict[str, tuple[str, str, dict[str, dict[str, Any]]]]:
    """The systems of the Long Range Arena and of images: SYSTEMS, and all other mechanisms in place of softmax."""
    others = set(ATTENTION.names()) - {"softmax", *SYSTEMS}  # softmax is called vanilla
    return {**SYSTEMS, **{name: (name, name, {}) for name in others}}


def preset(name: str, **overrides: Any) -> ModelConfig:
    """The configuration of a preset; `overrides` replace its fields, and options mechanism by mechanism.

    A mechanism named in `layers` gets the options of its own preset of this kind and size: softmax in `elu_roberta`
    has the dropout that it has in `vanilla_roberta`. T1 keeps its own options for `diag` and `norm`.
    """
    if name not in list_models():
        raise unknown_name_error("model", name, list_models())
    table = _table(name, overrides)
    return parse_config_section(ModelConfig, _merge(table, overrides), "model")


def preset_config(table: Mapping[str, Any]) -> ModelConfig:
    """The configuration of a recipe's [model] table: its `preset`, if it names one, and any fields.

    In the table of a run every field is set, and `preset` is only a name.
    """
    fields = {key: value for key, value in table.items() if key != "preset"}
    if "preset" not in table or is_resolved_preset(table):
        return parse_config_section(ModelConfig, fields, "model")
    if not isinstance(table["preset"], str):
        raise InputError(f"model.preset is {table['preset']!r}: it must be a name")
    return preset(table["preset"], **fields)


def is_resolved_preset(table: Mapping[str, Any]) -> bool:
    """Whether a [model] table sets every field, as that of a run does."""
    return set(table) >= RESOLVED


def create_model(name: str, *, device: Device = None, dtype: Type = None, **overrides: Any) -> Model:
    """Create a model by the name of its preset; overrides set fields of its configuration, such as vocab_size=8192."""
    from linnet.attention.projections import attention_on_device
    from linnet.models.backbone import Model

    with attention_on_device(device):
        return Model(preset(name, **overrides)).to(dtype)


def _table(name: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a preset; the options follow the overridden layers and length."""
    system, _, kind = name.removesuffix("_small").removesuffix("_base").rpartition("_")
    small = "small" if kind in ("lm", "roberta") else f"{kind}_small"
    size = small if name.endswith("_small") else f"{kind}_base" if name.endswith("_base") else kind
    L, width, heads, glu, ffn, vocab_size = SIZES[size]
    first, second, _ = _systems()[system]
    gated = system in GATED
    table = {
        "layers": [first] * (L // 2) + [second] * (L - L // 2),
        "width": width,
        "heads": heads,
        "ffn_width": glu if gated else NARROW_FFN.get(name, ffn),
        "vocab_size": vocab_size,
        "norm": "srms" if gated else "layer",
        "ffn": "glu" if gated else "ffn",
        "activation": "silu" if gated else FFN_ACTIVATION[kind],
        "max_length": 512,
        "dropout": 0.1,
        "ffn_dropout": 0.1 if kind == "lra" and not gated else 0.0,  # as in the code behind the baselines of LRA
        "tie": True,
        "pad": 1,
        **KINDS[kind],
    }
    table |= _unit(system, kind, size) if system in UNITS else {}
    table |= _picture(size, overrides, first == second == "diag") if size in PICTURES else {}
    length = overrides.get("max_length", table["max_length"])
    mechanisms = sorted({first, second, *_mechanisms(overrides.get("layers", ()))})
    options = {mechanism: _options(system, mechanism, kind, size, length) for mechanism in mechanisms}
    for mechanism in WINDOWED & set(options) if kind == "vit" else ():
        options[mechanism]["block"] = _window_block(table, overrides)
    return {**table, "options": {mechanism: own for mechanism, own in options.items() if own}}


def _picture(size: str, overrides: Mapping[str, Any], blocks: bool) -> dict[str, Any]:
    """The fields of images: as many positions as tokens, and windows; malformed overrides are refused later.

    In `blocks` alone a class token would read no patch.
    """
    fields = {**PICTURES[size], **({"pool": "mean"} if blocks else {})}
    image, patch, pool = (overrides.get(name, fields[name]) for name in ("image_size", "patch", "pool"))
    grid = image // patch if isinstance(image, int) and isinstance(patch, int) and 0 < patch <= image else 1
    return {**fields, "max_length": grid**2 + (pool == "class"), "window": _window(grid)}


def _window(grid: int) -> int:
    """The side of a window: the largest divisor of the grid below it and up to 8 or, if that is 1, the grid."""
    return max((w for w in range(2, min(grid, LARGEST_WINDOW + 1)) if grid % w == 0), default=grid)


def _window_block(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> int:
    """The tokens of a window; rows of patches have blocks as large as the usual windows."""
    given = overrides.get("window")
    return int((given if isinstance(given, int) and given > 1 else table["window"]) ** 2)


def _mechanisms(layers: Any) -> set[str]:
    """The mechanisms that `layers` name; anything but a list of strings is left to the check of the fields."""
    named = layers if isinstance(layers, list | tuple) else ()
    return {mechanism for layer in named if isinstance(layer, str) for mechanism in split_layer_config(layer)[1]}


def _options(system: str, mechanism: str, kind: str, size: str, length: Any) -> dict[str, Any]:
    """The options of a mechanism in models of one kind and size; a bounded mechanism also gets the length."""
    systems = {mechanism: ("", "", {}), **_systems()}
    found = dict(systems[system][2].get(mechanism) or systems[mechanism][2].get(mechanism, {}))
    for field, values in (("dropout", ATTENTION_DROPOUT), ("positions", RELATIVE_POSITIONS)):
        if mechanism in values.get(kind, {}):
            found[field] = values[kind][mechanism]
    if mechanism in UNITS:
        found |= UNIT_WIDTHS.get(size, {})
    found |= PICTURE_OPTIONS.get(size, {}).get(mechanism, {})
    return {**found, "max_length": length} if mechanism in BOUNDED else found


def _unit(system: str, kind: str, size: str) -> dict[str, Any]:
    """The fields that differ in a preset of gated units."""
    return {
        "layers": [system] * UNIT_LAYERS[size],
        "norm": UNIT_NORM[kind],
        "norm_position": "pre",
        "final_norm": False,
        "ffn": "none",
    }


def _merge(table: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`table` with `overrides`; malformed `options` are left to the check of the fields."""
    merged = {**table, **overrides}
    given = overrides.get("options")
    if isinstance(given, Mapping) and all(isinstance(options, Mapping) for options in given.values()):
        base = table["options"]
        merged["options"] = {k: {**base.get(k, {}), **given.get(k, {})} for k in {**base, **given}}
    return merged
