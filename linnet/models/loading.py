"""Models on disk: a trained run is loaded from its checkpoint, and a model is exported as three files.

An exported folder holds `config.json`, `model.safetensors` and, for a model of text, `tokenizer.json`. The same model
always gives the same bytes; `config.json` holds the SHA-256 of the weights, which is checked before they are read.
"""

import hashlib
import tomllib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from linnet.config import parse_section
from linnet.errors import InputError, LinnetError
from linnet.models.backbone import Model
from linnet.models.config import ModelConfig
from linnet.storage import (
    dump_json,
    newest_checkpoint,
    one_line_errors,
    pack_tensors,
    read_checkpoint,
    read_json,
    temporary_name,
    unpack_tensors,
    write_atomic,
)

FORMAT = "linnet-model-1"


def load_model(path: str | Path, step: int | None = None, warn: Callable[[str], None] | None = None) -> Model:
    """The model of a run or of an exported folder, ready for evaluation.

    Of a run: the checkpoint of `step`, or the newest valid one; `warn` is told of each damaged one passed over.
    """
    path = Path(path)
    if (path / "config.toml").is_file():
        config = _run_config(path / "config.toml")
        source, tensors = _run_weights(path, step, warn or _warn)
    elif (path / "config.json").is_file():
        if step is not None:
            raise InputError(f"step is {step}: {path} is an exported model, which has no steps")
        config, source, tensors = _exported(path)
    else:
        what = "does not exist" if not path.exists() else "is neither a run (config.toml) nor a model (config.json)"
        raise InputError(f"{path} {what}")
    model = Model(config)
    load_weights(model, tensors, source)
    return model.eval()


def load_weights(model: Model, tensors: Mapping[str, Tensor], source: Path) -> None:
    """Copy tensors into a model; the first that does not fit is named, with `source`, and nothing is changed."""
    own = model.state_dict()
    for name in sorted({*own, *tensors}):
        if name not in tensors:
            raise InputError(f"{source} does not fit this model: it has no tensor {name}")
        if name not in own:
            raise InputError(f"{source} does not fit this model, which has no tensor {name}")
        if own[name].shape != tensors[name].shape:
            shapes = f"{tuple(tensors[name].shape)}, in the model {tuple(own[name].shape)}"
            raise InputError(f"{source} does not fit this model: the shape of {name} is {shapes}")
    model.load_state_dict(dict(tensors))


def export_model(model: Model, folder: str | Path, tokenizer: str | Path | None = None) -> Path:
    """Write config.json, model.safetensors and a copy of `tokenizer` as a new folder, whole or not at all."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists: a model is exported to a new folder")
    weights, tied = pack_tensors(model.state_dict())
    about = {
        "format": FORMAT,
        "model": model.config.model_dump(mode="json"),
        "sha256": hashlib.sha256(weights).hexdigest(),
        "tied": tied,
    }
    files = {"config.json": dump_json(about, "config.json"), "model.safetensors": weights}
    if tokenizer is not None:
        with one_line_errors("read", Path(tokenizer)):
            files["tokenizer.json"] = Path(tokenizer).read_bytes()
    temporary = temporary_name(folder)
    with one_line_errors("write", folder, temporary):
        temporary.mkdir(parents=True)
        for name, data in files.items():
            write_atomic(temporary / name, data)
        temporary.replace(folder)
    return folder


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def _run_config(path: Path) -> ModelConfig:
    """The [model] table of a run, in which every field is resolved; the name of its preset is only information."""
    with one_line_errors("read", path):
        data = path.read_bytes()
    try:
        table = tomllib.loads(data.decode())
    except ValueError as error:
        raise LinnetError(f"{path} is not valid TOML: {error}") from error
    return _parsed(table.get("model"), path, drop="preset")


def _run_weights(path: Path, step: int | None, warn: Callable[[str], None]) -> tuple[Path, Mapping[str, Tensor]]:
    """The weights of one checkpoint of a run, and where they are from."""
    checkpoints = path / "checkpoints"
    if step is not None:
        if not (checkpoints / f"step-{step}").is_dir():
            raise InputError(f"step is {step}: {checkpoints} has no checkpoint of that step")
        checkpoint = read_checkpoint(checkpoints / f"step-{step}", optimizer=False)
    else:
        newest = newest_checkpoint(checkpoints, warn, optimizer=False)
        if newest is None:
            raise LinnetError(f"{checkpoints} has no valid checkpoint")
        checkpoint = newest
    return checkpoint.path, checkpoint.model


def _exported(path: Path) -> tuple[ModelConfig, Path, Mapping[str, Tensor]]:
    """Configuration and weights of an exported folder, once the weights are proven whole."""
    about, source = read_json(path / "config.json"), path / "model.safetensors"
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError(f"{path / 'config.json'} is not the configuration of an exported model ({FORMAT})")
    config = _parsed(about.get("model"), path / "config.json")
    with one_line_errors("read", source):
        weights = source.read_bytes()
    if hashlib.sha256(weights).hexdigest() != about.get("sha256"):
        raise LinnetError(f"{source} is damaged: its SHA-256 is not the one in config.json")
    return config, source, unpack_tensors(weights, about.get("tied", {}))


def _parsed(table: Any, path: Path, drop: str = "") -> ModelConfig:
    """A model's table as a ModelConfig; an error names the file."""
    if not isinstance(table, dict):
        raise InputError(f"{path} has no table `model`")
    try:
        return parse_section(ModelConfig, {key: value for key, value in table.items() if key != drop}, "model")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
