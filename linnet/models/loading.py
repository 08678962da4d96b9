"""Models on disk: load the model of a run from a checkpoint, and export a model as three files.

An exported folder holds `config.json`, `model.safetensors` and, for a text model, `tokenizer.json`. The same model
always gives the same bytes. `config.json` holds the SHA-256 of all three, which are checked before use.
"""

import hashlib
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from linnet.config import parse_config_section, read_config_toml
from linnet.errors import InputError, LinnetError
from linnet.models.backbone import Model
from linnet.models.config import ModelConfig
from linnet.models.patches import resize_patch_config, resize_patch_positions
from linnet.storage import (
    IDLE,
    Checkpoint,
    check_run_links,
    clean_temporary_files,
    dump_json_file,
    newest_checkpoint,
    one_line_file_errors,
    pack_tensors,
    read_checkpoint,
    read_hashed_file,
    read_json_file,
    temporary_file_name,
    unpack_tensors,
    write_file_atomic,
    write_new_file,
)

FORMAT = "linnet-model-1"


def load_model(
    path: str | Path,
    step: int | None = None,
    warn: Callable[[str], None] | None = None,
    image_size: int | None = None,
) -> Model:
    """The model of a run or of an exported folder, ready for evaluation.

    For a run, loads the checkpoint of `step`, or the newest valid one; `warn` gets a line for each damaged one.
    `image_size` makes an image model read images of that size, by interpolating its learned positions.
    """
    if not isinstance(path, str | Path):
        raise InputError(f"path is a {type(path).__name__}: it must be the path of a folder")
    model, tokenizer = _load(Path(path), step, warn or _warn), Path(path) / "tokenizer.json"
    model.tokenizer_file = tokenizer if tokenizer.exists() else None
    return model if image_size is None else _resized(model, image_size)


def _load(path: Path, step: int | None, warn: Callable[[str], None]) -> Model:
    """The model as it was saved."""
    if (path / "config.toml").is_file():
        return load_run_model(path, step, warn)[0]
    if not (path / "config.json").is_file():
        raise _no_model(path)
    if step is not None:
        raise InputError(f"step is {step}: {path} is an exported model, which has no steps")
    config, source, tensors = _exported(path)
    model = Model(config)
    load_model_weights(model, tensors, source, cast=True)
    return model.eval()


def _resized(model: Model, image_size: int) -> Model:
    """The same model for images of another size."""
    config = resize_patch_config(model.config, image_size)
    found = Model(config)
    found.load_state_dict(resize_patch_positions(model.state_dict(), model.config, config))
    return found.eval()


def load_model_config(path: Path) -> ModelConfig:
    """The configuration of the model of a run or of an exported folder, without its weights."""
    if (path / "config.toml").is_file():
        check_run_links(path)
        table = read_config_toml(path / "config.toml").get("model")
        return _parsed(table, path / "config.toml", drop="preset")
    if not (path / "config.json").is_file():
        raise _no_model(path)
    about = read_json_file(path / "config.json")
    return _parsed(about.get("model") if isinstance(about, dict) else None, path / "config.json")


def weights_sha256_to_load(path: Path, warn: Callable[[str], None] | None = None) -> str:
    """The SHA-256 of the weights that `load_model` would load, as their manifest or configuration records it."""
    if (path / "config.toml").is_file():
        checkpoint = _run_checkpoint(path, None, warn or _warn)
        manifest = read_json_file(checkpoint.path / "manifest.json")
        if "shards" not in manifest:
            return str(manifest["files"]["model.safetensors"]["sha256"])
        parts = [part["sha256"] for name, part in sorted(manifest["shards"].items()) if name.startswith("model-")]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()
    load_model_config(path)  # raises if there is no model
    return str(read_json_file(path / "config.json").get("sha256"))


def load_run_model(path: Path, step: int | None, warn: Callable[[str], None]) -> tuple[Model, dict[str, Any]]:
    """The model of a checkpoint, and the state that was saved with it."""
    check_run_links(path)
    table = read_config_toml(path / "config.toml")
    config = _parsed(table.get("model"), path / "config.toml", drop="preset")
    checkpoint = load_saved_checkpoint(path, step, table.get("task"), config, warn)
    model = Model(config)
    load_model_weights(model, checkpoint.model, checkpoint.path)
    return model.eval(), checkpoint.state


def load_saved_checkpoint(
    path: Path, step: int | None, task: object, config: ModelConfig, warn: Callable[[str], None]
) -> Checkpoint:
    """The checkpoint of `step`, or the newest valid one, after checking its task, model and tokenizer."""
    checkpoint = _run_checkpoint(path, step, warn)
    check_loading_checkpoint(path, checkpoint, task, config, warn)
    _check_tokenizer(path, _tokenizer_sha256(checkpoint.state))
    return checkpoint


def check_loading_checkpoint(
    folder: Path, checkpoint: Checkpoint, task: object, config: ModelConfig, warn: Callable[[str], None]
) -> None:
    """Raise if the checkpoint belongs to another task or model; warn if it does not record them."""
    saved = checkpoint.state.get("settings")
    if not isinstance(saved, dict):
        warn(f"{checkpoint.path} was written by an earlier linnet and does not record its model: trusting config.toml")
        return
    before = _parsed(saved.get("model"), checkpoint.path / "state.json")
    differing = [f"model.{name}" for name in ModelConfig.model_fields if getattr(before, name) != getattr(config, name)]
    if saved.get("task") != task:
        differing.insert(0, "task")
    if differing:
        raise InputError(f"{folder}: its checkpoints belong to another model ({differing[0]} in config.toml differs)")


def load_model_weights(model: Model, tensors: Mapping[str, Tensor], source: Path, cast: bool = False) -> None:
    """Copy tensors into a model; if one does not fit, the error names it and `source`, and nothing is changed.

    With `cast`, floating-point tensors may have another precision than the model.
    """
    own = model.state_dict()
    for name in sorted({*own, *tensors}):
        if name not in tensors:
            raise InputError(f"{source} does not fit this model: it has no tensor {name}")
        if name not in own:
            raise InputError(f"{source} does not fit this model, which has no tensor {name}")
        if own[name].shape != tensors[name].shape:
            shapes = f"{tuple(tensors[name].shape)}, in the model {tuple(own[name].shape)}"
            raise InputError(f"{source} does not fit this model: the shape of {name} is {shapes}")
        found, wanted = tensors[name].dtype, own[name].dtype
        if found != wanted and not (cast and found.is_floating_point and wanted.is_floating_point):
            raise InputError(f"{source} does not fit this model: {name} is of type {found}, in the model {wanted}")
    model.load_state_dict(dict(tensors))


def export_model(model: Model, folder: str | Path, tokenizer: str | Path | None = None) -> Path:
    """Write config.json, model.safetensors and a copy of `tokenizer` to a new folder, atomically."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists: a model is exported to a new folder")
    clean_temporary_files(folder.absolute().parent, IDLE, shared=True)
    own = None
    if tokenizer is not None:
        with one_line_file_errors("read", Path(tokenizer)):
            own = read_hashed_file(tokenizer)
    temporary = temporary_file_name(folder)
    with one_line_file_errors("write", folder, temporary):
        temporary.mkdir(parents=True)
        parts, tied = pack_tensors(model.state_dict())
        about: dict[str, Any] = {
            "format": FORMAT,
            "model": model.config.model_dump(mode="json"),
            "sha256": write_new_file(temporary / "model.safetensors", parts)["sha256"],
            "tied": tied,
        }
        if own is not None:
            write_file_atomic(temporary / "tokenizer.json", bytes(own[0]))
            about["tokenizer_sha256"] = own[1]
        about["config_sha256"] = _own_sha256(about)
        write_file_atomic(temporary / "config.json", dump_json_file(about, "config.json"))
        temporary.replace(folder)
    return folder


def load_run_tokenizer(folder: Path, state: Mapping[str, Any]) -> Path | None:
    """The tokenizer of a run, given the state of its checkpoint; None if it has none. Raises if the file is missing."""
    path = folder / "tokenizer.json"
    if path.exists():
        return path
    if _tokenizer_sha256(state) is not None:
        raise LinnetError(f"{path} is missing: `linnet evaluate {folder}` rebuilds it from the data of the run")
    return None


def _no_model(path: Path) -> InputError:
    what = "does not exist" if not path.exists() else "is neither a run (config.toml) nor a model (config.json)"
    return InputError(f"{path} {what}")


def _tokenizer_sha256(state: Mapping[str, Any]) -> str | None:
    """The SHA-256 of the tokenizer that a checkpoint was trained with."""
    return (state.get("data") or {}).get("tokenizer")


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=5)


def _check_tokenizer(folder: Path, sha256: object) -> None:
    """Raise if this is not the model's tokenizer: its ids would mean other words. The caller handles a missing file."""
    path = folder / "tokenizer.json"
    if sha256 is None or not path.exists():
        return
    with one_line_file_errors("read", path):
        found = read_hashed_file(path)[1]
    if found != sha256:
        raise LinnetError(f"{path} is not the tokenizer of this model: its SHA-256 differs; put it back")


def _run_checkpoint(path: Path, step: int | None, warn: Callable[[str], None]) -> Checkpoint:
    """One checkpoint of a run, without the optimizer."""
    checkpoints = path / "checkpoints"
    if step is not None:
        if not (checkpoints / f"step-{step}").is_dir():
            raise InputError(f"step is {step}: {checkpoints} has no checkpoint of that step")
        return read_checkpoint(checkpoints / f"step-{step}", optimizer=False)
    newest = newest_checkpoint(checkpoints, warn, optimizer=False)
    if newest is None:
        raise LinnetError(f"{checkpoints} has no valid checkpoint")
    return newest


def _exported(path: Path) -> tuple[ModelConfig, Path, Mapping[str, Tensor]]:
    """Configuration and weights of an exported folder, after verifying both."""
    about, source = read_json_file(path / "config.json"), path / "model.safetensors"
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise InputError(f"{path / 'config.json'} is not the configuration of an exported model ({FORMAT})")
    if about.get("config_sha256") != _own_sha256(about):
        raise LinnetError(f"{path / 'config.json'} has been changed: its SHA-256 is not the one in it; export it again")
    config = _parsed(about.get("model"), path / "config.json")
    with one_line_file_errors("read", source):
        weights, found = read_hashed_file(source)
    if found != about.get("sha256"):
        raise LinnetError(f"{source} is damaged: its SHA-256 is not the one in config.json")
    _check_tokenizer(path, about.get("tokenizer_sha256"))
    return config, source, unpack_tensors(weights, about.get("tied", {}))


def _own_sha256(about: Mapping[str, Any]) -> str:
    """The SHA-256 of the content of config.json: the hashes of the files, the model and the ties."""
    said = {key: value for key, value in about.items() if key != "config_sha256"}
    return hashlib.sha256(dump_json_file(said, "config.json")).hexdigest()


def _parsed(table: Any, path: Path, drop: str = "") -> ModelConfig:
    """A model's table as a ModelConfig; an error names the file."""
    if not isinstance(table, dict):
        raise InputError(f"{path} has no table `model`")
    try:
        return parse_config_section(ModelConfig, {key: value for key, value in table.items() if key != drop}, "model")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
