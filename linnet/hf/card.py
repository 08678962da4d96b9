"""The model card of an exported run: model, training data, scores and license."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from linnet import __version__
from linnet.errors import InputError
from linnet.figures.table import Table

_PIPELINES = {"causal_lm": "text-generation", "masked_lm": "fill-mask", "classifier": "text-classification"}
_CLASSES = {
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "classifier": "AutoModelForSequenceClassification",
}
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,40}")


def write_model_card(
    config: Mapping[str, Any], step: int, records: Sequence[Mapping[str, Any]], parameters: int, license: str | None
) -> str:
    """The text of README.md, from a run's configuration and its records up to `step`."""
    if license is not None and not _LICENSE.fullmatch(license):
        raise InputError(f"--license is {license!r}: it must be an identifier such as mit or cc-by-sa-4.0")
    model, train = config["model"], config["train"]
    output = model["output"]
    front = ["library_name: transformers", f"pipeline_tag: {_PIPELINES[output]}", "tags: [linnet, linear-attention]"]
    front += [f"license: {license}"] if license else []
    data = ", ".join(
        f"{key} = {Path(value).name if key == 'path' else value}"  # not its path on the author's disk
        for key, value in config["data"].items()
        if key != "cache"
    )
    layers = ", ".join(model["layers"])
    scores = [record for record in records if record["step"] <= step and record.get("split") not in (None, "train")]
    lines = ["---", *front, "---", "", f"# A {config['task']} model trained with linnet {__version__}", ""]
    lines += [
        f"- **Model**: {parameters:,} parameters; layers {layers}; width {model['width']}, {model['heads']} heads.",
        f"- **Data**: {data}.",
        f"- **Training**: {step:,} of {train['steps']:,} steps of {train['batch'] * train['accumulate']} samples, "
        f"learning rate {train['lr']:g}, seed {config['seed']}.",
        "",
        *_scores(scores[-1] if scores else None),
        "",
        *_terms(license),
        "",
        "```python",
        "import linnet.hf  # registers the model type",
        f"from transformers import {_CLASSES[output]}, AutoTokenizer",
        "",
        f"model = {_CLASSES[output]}.from_pretrained(FOLDER)",
        "tokenizer = AutoTokenizer.from_pretrained(FOLDER)",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _scores(record: Mapping[str, Any] | None) -> list[str]:
    """A table of the numbers of one evaluation."""
    if record is None:
        return ["The run had not been evaluated at this step."]
    numbers = {key: value for key, value in record.items() if key != "step" and isinstance(value, int | float)}
    title = f"Scores on the split `{record['split']}` at step {record['step']:,}:"
    rows = [[key, f"{value:,.4f}" if isinstance(value, float) else f"{value:,}"] for key, value in numbers.items()]
    return [title, "", Table(title, ["metric", "value"], rows).to_markdown()]


def _terms(license: str | None) -> list[str]:
    """The section on the license of the weights."""
    chosen = (
        f"The weights are licensed under {license}." if license else "No license has been chosen for these weights."
    )
    return [f"{chosen} linnet, which runs them, is MIT. The training data keep their own terms."]
