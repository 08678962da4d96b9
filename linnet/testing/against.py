"""Compare a mechanism or a model with tensors that a user recorded from another implementation.

The file holds the inputs of a call, the parameters, the output that the other implementation gave, and optionally its
gradients. Its metadata says what to build. docs/fidelity.md describes the names.
"""

import json
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from linnet.attention.base import create_attention, create_mixer
from linnet.errors import InputError, LinnetError
from linnet.models.presets import create_model
from linnet.testing.contract_trial import contract_difference

WEIGHTS = "weights."
INPUTS = {"core": ("q", "k", "v"), "mixer": ("x",), "model": ("ids",)}
BOUNDS = {torch.float64: 1e-10, torch.float32: 1e-4}  # of the largest entry; others are compared in float32
METADATA = ("attention", "preset", "causal", "heads", "options")


class Against(TypedDict):
    """The result: the largest difference of each tensor, relative to its largest entry."""

    file: str
    name: str
    what: str
    bound: float
    differences: dict[str, float]
    passed: bool


def check_against(path: Path, name: str | None = None) -> Against:
    """Build what the file describes, call it, and compare outputs and gradients; `name` replaces its attention."""
    tensors, metadata = _read(path)
    what = next((kind for kind, names in INPUTS.items() if set(names) <= tensors.keys()), None)
    if what is None or "o" not in tensors:
        raise InputError(
            f"{path} holds {', '.join(sorted(tensors)) or 'nothing'}: it must hold o, and q, k, v or x or ids"
        )
    module, called = _built(path, what, tensors, metadata, name)
    dtype = next((x.dtype for key, x in tensors.items() if key == "o"), torch.float32)
    module = module.to(dtype).eval()
    _load(path, module, {key.removeprefix(WEIGHTS): x for key, x in tensors.items() if key.startswith(WEIGHTS)})
    inputs = [tensors[key] for key in INPUTS[what]]
    leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    masks = {key: tensors[key] for key in ("key_mask", "segments") if key in tensors}
    o = module(*leaves, **masks)
    found = {"o": o, **_gradients(path, module, dict(zip(INPUTS[what], leaves, strict=True)), o, tensors)}
    differences = {}
    for key, y in found.items():
        if y.shape != tensors[key].shape:
            raise InputError(f"{path}: {key} is {tuple(tensors[key].shape)}: linnet's is {tuple(y.shape)}")
        differences[key] = contract_difference(y.detach(), tensors[key])
    bound = BOUNDS.get(dtype, BOUNDS[torch.float32])
    passed = all(value <= bound for value in differences.values())
    return {
        "file": str(path),
        "name": called,
        "what": what,
        "bound": bound,
        "differences": differences,
        "passed": passed,
    }


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    if not path.is_file():
        raise InputError(f"{path} is not a file")
    try:
        with safe_open(path, framework="pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except SafetensorError as error:
        raise LinnetError(f"{path} is not a safetensors file: {error}") from None


def _built(
    path: Path, what: str, tensors: dict[str, Tensor], metadata: dict[str, str], name: str | None
) -> tuple[nn.Module, str]:
    """The mechanism or model, and its name."""
    for key in metadata:
        if key not in METADATA:
            raise InputError(f"{path}: metadata has {key!r}: allowed are {', '.join(METADATA)}")
    options = _options(path, metadata.get("options", "{}"))
    if what == "model":
        preset = name or metadata.get("preset")
        if preset is None:
            raise InputError(f"{path}: metadata has no preset, which names the model")
        return create_model(preset, **options), preset
    called, causal = name or metadata.get("attention"), metadata.get("causal")
    if called is None:
        raise InputError(f"{path}: metadata has no attention, which names the mechanism: give it as NAME")
    if causal not in ("true", "false"):
        raise InputError(f"{path}: metadata has causal={causal!r}: it must be 'true' or 'false'")
    if what == "core":
        q = tensors["q"]
        if q.dim() != 4:
            raise InputError(f"{path}: q is {tuple(q.shape)}: it must be (batch, heads, tokens, width)")
        return create_attention(
            called, heads=q.shape[1], head_dim=q.shape[3], causal=causal == "true", **options
        ), called
    heads = metadata.get("heads", "")
    if not heads.isdecimal():
        raise InputError(f"{path}: metadata has heads={heads!r}: it must be a whole number")
    width = tensors["x"].shape[-1]
    return create_mixer(called, width=width, heads=int(heads), causal=causal == "true", **options), called


def _options(path: Path, text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path}: metadata has options={text!r}: it must be a JSON object ({error})") from None
    if not isinstance(options, dict):
        raise InputError(f"{path}: metadata has options={text!r}: it must be a JSON object")
    return options


def _load(path: Path, module: nn.Module, weights: dict[str, Tensor]) -> None:
    """The recorded parameters and buffers, all of them."""
    own = module.state_dict()
    unknown, missing = sorted(weights.keys() - own.keys()), sorted(own.keys() - weights.keys())
    if unknown or missing:
        problem = f"has {WEIGHTS}{unknown[0]}, which linnet's lacks" if unknown else f"lacks {WEIGHTS}{missing[0]}"
        raise InputError(f"{path} {problem}: its weights must be {', '.join(sorted(own))}")
    for key, value in weights.items():
        if value.shape != own[key].shape:
            raise InputError(f"{path}: {WEIGHTS}{key} is {tuple(value.shape)}: it must be {tuple(own[key].shape)}")
    module.load_state_dict(weights)


def _gradients(
    path: Path, module: nn.Module, inputs: dict[str, Tensor], o: Tensor, tensors: dict[str, Tensor]
) -> dict[str, Tensor]:
    """The gradients that the file holds, `d` and a name: of inputs, and of weights (`dweights.NAME`)."""
    leaves = {f"d{key}": x for key, x in inputs.items() if x.requires_grad}
    leaves |= {f"d{WEIGHTS}{key}": x for key, x in module.named_parameters()}
    wanted = {key: x for key, x in leaves.items() if key in tensors}
    if not wanted:
        return {}
    if "g" not in tensors or tensors["g"].shape != o.shape:
        raise InputError(
            f"{path} holds {next(iter(wanted))}: it must hold g, the gradient of o, of shape {tuple(o.shape)}"
        )
    slopes = torch.autograd.grad(o, list(wanted.values()), tensors["g"].to(o.dtype))
    return dict(zip(wanted, slopes, strict=True))
