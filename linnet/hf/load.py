"""Load a folder of Transformers without running code or unpickling: a linnet model, a patched one, or a stock one."""

import os
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers.models.auto import modeling_auto

from linnet.config import short_config_value
from linnet.errors import InputError, LinnetError
from linnet.hf.interface import NAME, quiet_transformers
from linnet.hf.patch import patch
from linnet.storage import one_line_file_errors, open_regular_file, read_json_file

# Keys that would make Transformers run or fetch code that the folder names.
_HOSTILE = ("auto_map", "trust_remote_code", "attn_implementation", "experts_implementation")
_PICKLED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def load(folder: str | Path, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The model of a folder, ready for evaluation; an attention that `patch` chose is restored."""
    path = Path(folder)
    about = check_folder_to_load(path)
    config = _config(path)
    chosen = about.get(NAME)
    if chosen is not None:
        delattr(config, NAME)
    model = _weights(path, _model_class(path, about, config), config, dtype)
    if chosen is not None:
        _restore(model, path, chosen)
    return model.eval()


def check_folder_to_load(path: Path) -> dict[str, Any]:
    """The content of config.json; raises for a folder that cannot or should not be read."""
    file = path / "config.json"
    if not file.is_file():
        raise InputError(f"{path} has no config.json: it is not a folder of Transformers")
    about = read_json_file(file)
    if not isinstance(about, dict) or not isinstance(about.get("model_type"), str):
        raise InputError(f"{file} names no model_type: it is not a configuration of Transformers")
    for key in about:
        if key.lstrip("_").removesuffix("_internal") in _HOSTILE:
            raise InputError(f"{file} has the key {key!r}, which names code to run: remove it if you trust the rest")
    _check_version(file, about.get("transformers_version"))
    if not list(path.glob("*.safetensors")):
        pickled = [found.name for kind in _PICKLED for found in sorted(path.glob(kind))]
        if pickled:
            raise InputError(
                f"{path} has only pickled weights ({pickled[0]}), which can run code: convert them where you trust "
                "them, with from_pretrained and save_pretrained of Transformers"
            )
        raise InputError(f"{path} has no weights: model.safetensors is missing")
    _check_files(path)
    return about


def _check_files(path: Path) -> None:
    """Raise unless each file that Transformers opens is a regular one, and each part of the weights in the folder."""
    for file in sorted((*path.glob("*.safetensors"), *path.glob("*.json"))):
        with one_line_file_errors("read", file):
            os.close(open_regular_file(file))
    index = path / "model.safetensors.index.json"
    parts = read_json_file(index).get("weight_map", {}) if index.exists() else {}
    for name in set(parts.values()) if isinstance(parts, dict) else ():
        if not isinstance(name, str) or name != Path(name).name:
            raise InputError(f"{index} names {short_config_value(name)}, which is not a file in this folder")


def _check_version(file: Path, version: object) -> None:
    """Raise if a newer Transformers wrote the configuration."""
    if not isinstance(version, str):
        return
    own = transformers.__version__
    try:
        newer = tuple(map(int, version.split(".")[:2])) > tuple(map(int, own.split(".")[:2]))
    except ValueError:
        raise InputError(
            f"{file}: transformers_version is {short_config_value(version)}, which is no version"
        ) from None
    if newer:
        raise InputError(
            f"{file} was written by transformers {short_config_value(version)}: the installed version is {own}"
        )


def _config(path: Path) -> PreTrainedConfig:
    """The configuration; any error of Transformers becomes one line."""
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except LinnetError:
        raise
    except Exception as error:  # noqa: BLE001  Transformers raises many kinds for a wrong value
        raise InputError(f"{path / 'config.json'}: {_first_line(error)}") from None


def _model_class(path: Path, about: dict[str, Any], config: PreTrainedConfig) -> type[PreTrainedModel]:
    """The class that the configuration names, if it is one of those that Transformers lists for this model type."""
    names = about.get("architectures")
    wanted = names[0] if isinstance(names, list) and names else None
    mappings = [value for key, value in vars(modeling_auto).items() if key.endswith("_MAPPING")]
    known: dict[str, type[PreTrainedModel]] = {}
    for mapping in mappings:
        found = mapping.get(type(config), None)
        for cls in found if isinstance(found, tuple | list) else [found]:
            if isinstance(cls, type):
                known.setdefault(cls.__name__, cls)
    if wanted is None and known:
        return next(iter(known.values()))
    if wanted not in known:
        raise InputError(
            f"{path / 'config.json'}: architectures names {short_config_value(wanted)}, which is not a known class"
        )
    return known[wanted]


def _weights(
    path: Path, cls: type[PreTrainedModel], config: PreTrainedConfig, dtype: torch.dtype | None
) -> PreTrainedModel:
    """The model with its weights loaded; raises if one is missing."""
    found: Any
    try:
        with quiet_transformers():
            found = cls.from_pretrained(
                path, config=config, dtype=dtype, use_safetensors=True, local_files_only=True, output_loading_info=True
            )
    except LinnetError:
        raise
    except Exception as error:  # noqa: BLE001  a damaged file gives many kinds
        raise InputError(f"{path}: {_first_line(error)}") from None
    model, info = found
    missing = sorted(info["missing_keys"]) + sorted(str(key[0]) for key in info.get("mismatched_keys", ()))
    if missing:
        raise InputError(f"{path} does not fit {cls.__name__}: {len(missing)} weights are missing, first {missing[0]}")
    return model


def _restore(model: PreTrainedModel, path: Path, chosen: Any) -> None:
    """Patch a model as its configuration says, and give the mechanism its saved weights."""
    place = f"{path / 'config.json'}: {NAME}"
    if not isinstance(chosen, dict) or set(chosen) != {"attention", "options", "layers"}:
        raise InputError(f"{place} is {short_config_value(chosen)}: it must have attention, options and layers")
    if not isinstance(chosen["options"], dict) or not isinstance(chosen["layers"], list):
        raise InputError(f"{place} is {short_config_value(chosen)}: options must be a table and layers a list")
    if not isinstance(chosen["attention"], str) or {"layers", "name", "model"} & set(chosen["options"]):
        raise InputError(f"{place} is {short_config_value(chosen)}: attention must be a name")
    patch(model, chosen["attention"], layers=chosen["layers"], **chosen["options"])
    own = {key: tensor for key, tensor in model.state_dict().items() if f".{NAME}." in key}
    found = _core_tensors(path)
    if own.keys() != found.keys():
        odd = sorted(own.keys() ^ found.keys())[0]
        raise InputError(f"{path}: the weights of {chosen['attention']} do not fit; {odd} is missing or unknown")
    for key, tensor in found.items():
        if own[key].shape != tensor.shape:
            raise InputError(f"{path}: {key} has shape {tuple(tensor.shape)}, the model {tuple(own[key].shape)}")
        own[key].copy_(tensor)


def _core_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors that belong to linnet's cores, from every weights file of a folder."""
    found: dict[str, Tensor] = {}
    for file in sorted(path.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as tensors:
                found |= {key: tensors.get_tensor(key) for key in tensors.keys() if f".{NAME}." in key}  # noqa: SIM118
        except SafetensorError as error:
            raise InputError(f"{file} is damaged: {error}") from None
    return found


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
