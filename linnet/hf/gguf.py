"""Load a GGUF file as a model of Transformers: its quantized weights become float32."""

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from linnet.errors import InputError, LinnetError
from linnet.hf.interface import quiet_transformers
from linnet.storage import one_line_file_errors, open_regular_file


def load_gguf(file: str | Path) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The language model of a GGUF file, ready for evaluation, and its tokenizer; both can be saved with
    `save_pretrained`. Transformers reads the file, which cannot hold code, with the package `gguf`.
    """
    path = Path(file)
    if not path.is_file():
        raise InputError(f"{path} is not a file: name a GGUF file")
    with one_line_file_errors("read", path), open(open_regular_file(path), "rb") as opened:
        magic = opened.read(4)
    if magic != b"GGUF":
        raise InputError(f"{path} is not a GGUF file: it starts with {magic!r}")
    if find_spec("gguf") is None:
        raise InputError("reading GGUF needs a package: pip install gguf")
    try:
        with quiet_transformers():
            how = {"gguf_file": path.name, "local_files_only": True, "trust_remote_code": False}
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **how)
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path.parent, **how)
    except LinnetError:
        raise
    except Exception as error:  # noqa: BLE001  a damaged file gives many kinds
        raise InputError(f"{path}: {' '.join(str(error).split())[:300]}") from None
    model.__dict__.pop("hf_quantizer", None)  # they are plain weights from here on, and can be saved
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    return model.eval(), tokenizer
