"""Write a linnet model as a folder that Transformers loads: configuration, weights, tokenizer, card."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import GenerationConfig

from linnet.config import read_config_toml
from linnet.data.tokenizer import Tokenizer
from linnet.errors import InputError, UnsupportedError
from linnet.hf.card import write_model_card
from linnet.hf.config import LinnetConfig
from linnet.hf.interface import writing_transformers
from linnet.hf.modeling import (
    LinnetForCausalLM,
    LinnetForMaskedLM,
    LinnetForSequenceClassification,
    LinnetPreTrainedModel,
)
from linnet.hf.tokenizer import convert_tokenizer
from linnet.models.backbone import Model, count_backbone_parameters
from linnet.storage import (
    IDLE,
    clean_temporary_files,
    one_line_file_errors,
    read_run_metrics,
    temporary_file_name,
    write_text_file,
)

_CLASSES: dict[str, type[LinnetPreTrainedModel]] = {
    "causal_lm": LinnetForCausalLM,
    "masked_lm": LinnetForMaskedLM,
    "classifier": LinnetForSequenceClassification,
}


def wrap_for_export(model: Model, tokenizer: Tokenizer | None = None) -> LinnetPreTrainedModel:
    """The Transformers model with the weights of a linnet model, which it shares."""
    output = model.config.output
    if output not in _CLASSES:
        raise UnsupportedError(f"the output of this model is {output}: --hf exports {', '.join(_CLASSES)}")
    config = LinnetConfig.from_model_config(model.config)
    if tokenizer is not None:
        config.pad_token_id, config.bos_token_id = tokenizer.pad, tokenizer.bos
        config.eos_token_id = None if tokenizer.kind == "word" else tokenizer.eos
    wrapped = _CLASSES[output](config)
    wrapped.model.load_state_dict(model.state_dict(), assign=True)
    if output == "causal_lm":  # like `model.generate`, `generate` does not stop by itself
        wrapped.generation_config = GenerationConfig(pad_token_id=config.pad_token_id, bos_token_id=config.bos_token_id)
    return wrapped.train(model.training)


def export_to_hf(
    model: Model, folder: str | Path, tokenizer: str | Path | None = None, card: str | None = None
) -> Path:
    """Write the model, its tokenizer and its card to a new folder, atomically."""
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} exists: a model is exported to a new folder")
    own = None if tokenizer is None else Tokenizer.load(tokenizer)
    wrapped = wrap_for_export(model, own)
    clean_temporary_files(folder.absolute().parent, IDLE, shared=True)
    temporary = temporary_file_name(folder)
    with one_line_file_errors("write", folder, temporary), writing_transformers():
        wrapped.save_pretrained(temporary)
        if own is not None:
            convert_tokenizer(own).save_pretrained(temporary)
        if card is not None:
            write_text_file(temporary / "README.md", card)
        temporary.replace(folder)
    return folder


def export_run_to_hf(
    run: Path, model: Model, state: Mapping[str, Any], folder: Path, tokenizer: Path | None, license: str | None
) -> Path:
    """`export_to_hf` for the checkpoint of a run, with a card made from its files."""
    records = read_run_metrics(run / "metrics.jsonl")
    card = write_model_card(
        read_config_toml(run / "config.toml"),
        state["position"]["step"],
        records,
        count_backbone_parameters(model),
        license,
    )
    return export_to_hf(model, folder, tokenizer, card)
