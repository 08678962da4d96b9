"""`linnet analyze`: run the instruments on the attention of a trained model."""

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from linnet.cli import Json, check_cli_folder, print_cli_json, print_cli_table
from linnet.cli.evaluate import Checkpoint
from linnet.errors import InputError, unknown_name_error
from linnet.registry import ATTENTION

if TYPE_CHECKING:
    from torch import Tensor

    from linnet.instruments.base import View
    from linnet.models.backbone import Model
    from linnet.screen import Screen
    from linnet.tasks.base import Task

BLOCKS = 4

Beyond = tuple[str, Callable[[], dict[str, Any]]]  # the name of a file about predictions, and its content
Run = Annotated[Path, typer.Argument(help="The folder of a run or of an exported model.", metavar="DIR")]
Text = Annotated[
    Path | None,
    typer.Option("--text", help="A text to read.", metavar="FILE", show_default="the run's validation split"),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--instrument", help="One of `linnet list instruments`; repeatable.", show_default="the usual ones"),
]
Tokens = Annotated[int | None, typer.Option("--tokens", min=2, help="Read only this many tokens.", show_default="all")]
Samples = Annotated[
    int | None, typer.Option("--samples", min=1, help="Validation blocks to read.", show_default=str(BLOCKS))
]
Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for the results.", metavar="DIR", show_default="analysis in DIR")
]
Hf = Annotated[bool, typer.Option("--hf", help="DIR is a Hugging Face Transformers folder.")]
Beside = Annotated[
    str | None,
    typer.Option(
        "--beside", help="With --hf, also measure this mechanism on the same queries and keys.", metavar="NAME"
    ),
]
Format = Annotated[str | None, typer.Option("--format", help="Figure format: png, pdf or svg.", show_default="png")]


def analyze_command(
    folder: Run,
    text: Text = None,
    names: Names = None,
    tokens: Tokens = None,
    samples: Samples = None,
    checkpoint: Checkpoint = "last",
    out: Out = None,
    kind: Format = None,
    hf: Hf = False,
    beside: Beside = None,
    json: Json = False,
) -> None:
    """Measure the attention of a trained model.

    Measures entropy, temperature, spectral gap, locality, the distribution of the weights and bounds on gradients.
    The table has one row per layer; analysis.json has every layer and head, with figures beside it. For an image model,
    pictures.json has predictions, the confusion matrix of the validation split, and what each patch of a few images
    reads. For a model of sentences, answers.json has the confusion matrix and the hundred worst errors with their
    texts. `linnet report` includes all of this.

    \b
    Examples:
      linnet analyze runs/mine
      linnet analyze runs/mine --text my.txt --tokens 200 --instrument entropy --instrument attention_map
      linnet analyze runs/mine --out paper --format pdf
      linnet analyze --hf models/minilm --text my.txt --tokens 256 --beside lln_diag --out minilm
    """
    from linnet.instruments.analyze import analysis_remarks, analysis_rows, analyze_views, choose_analyze_instruments
    from linnet.instruments.plots import save_analysis_plots
    from linnet.screen import Screen
    from linnet.storage import IDLE, clean_temporary_files, read_run_metrics, write_json_file

    choose_analyze_instruments(names or ())
    if text and samples:
        raise InputError("--samples counts validation blocks: it cannot be used with --text")
    _check_hf(hf, text, samples, checkpoint, beside)
    target, screen = out or folder / "analysis", Screen(quiet=json)
    check_cli_folder("--out", target)
    drawn = _can_draw(kind, screen)

    views, words, separator, beyond = (
        (*_hf_views(folder, text, tokens, beside), None)
        if hf and text
        else _run_views(folder, text, tokens, samples, checkpoint, screen)
    )
    try:
        B, _, N = views[0].shape
        show = screen.work(f"measuring {len(views)} layers on {B} x {N} tokens")
        records = read_run_metrics(folder / "metrics.jsonl")
        analysis = analyze_views(views, names or (), words, records, show)
    finally:
        screen.close()
    given: list[tuple[str, Any]] = [
        ("--text", text),
        ("--tokens", tokens),
        ("--samples", samples),
        ("--beside", beside),
    ]
    given += [("--checkpoint", checkpoint), *(("--instrument", name) for name in names or ())]
    options = [str(part) for key, value in given if value not in (None, "last") for part in (key, value)]
    analysis["separator"] = separator
    analysis["command"] = shlex.join(["linnet", "analyze", *(["--hf"] if hf else []), str(folder), *options])
    files = []
    for place, layers in _places(analysis, target, beside).items():
        place.mkdir(parents=True, exist_ok=True)
        clean_temporary_files(place, IDLE, shared=True)  # leftovers of a killed analysis
        part = {**analysis, "layers": layers}
        write_json_file(place / "analysis.json", part)
        files += [place / "analysis.json", *(save_analysis_plots(part, place, kind or "png") if drawn else ())]
    if beyond is not None:
        files.append(target / beyond[0])
        write_json_file(files[-1], beyond[1]())
    if json:
        layers = [{k: v for k, v in layer.items() if k != "maps"} for layer in analysis["layers"]]
        print_cli_json({**analysis, "layers": layers, "files": [str(file) for file in files]})
        return
    columns, lines = analysis_rows(analysis)
    if lines:
        print_cli_table(columns, lines)
    print(*analysis_remarks(analysis), *files, sep="\n")


def _places(analysis: dict[str, Any], target: Path, beside: str | None) -> dict[Path, list[dict[str, Any]]]:
    """The layers of each folder: those of the model, and those of the mechanism beside it in a folder of its name."""
    layers = analysis["layers"]
    numbers = [layer["name"].split()[1] for layer in layers]
    own = next((i for i in range(1, len(layers)) if numbers[i] in numbers[:i]), len(layers)) if beside else len(layers)
    return {target: layers[:own], **({target / beside: layers[own:]} if beside else {})}


def _check_hf(hf: bool, text: Path | None, samples: int | None, checkpoint: str, beside: str | None) -> None:
    """Raise if the options do not go together."""
    if beside is not None and not hf:
        raise InputError(f"--beside is {beside!r}: it needs --hf")
    if not hf:
        return
    if text is None:
        raise InputError("--hf needs a text: --text FILE")
    if samples is not None or checkpoint != "last":
        raise InputError("--samples and --checkpoint belong to a run: they cannot be used with --hf")


def _hf_views(folder: Path, text: Path, tokens: int | None, beside: str | None) -> "tuple[list[View], list[str], str]":
    """Views of a model of Transformers on a text, with the words of the text and their separator."""
    if beside is not None and beside not in ATTENTION:
        raise unknown_name_error("attention", beside, ATTENTION.names())

    from linnet.hf.views import views_of_folder

    return views_of_folder(folder, text, tokens, beside)


def _run_views(
    folder: Path, text: Path | None, tokens: int | None, samples: int | None, checkpoint: str, screen: "Screen"
) -> "tuple[list[View], list[str], str, Beyond | None]":
    """Views of the model of a run or export, with the words of its first sequence and their separator.

    For a model of images or sentences also a file for its predictions, and a function that describes them.
    """
    from linnet.instruments.base import instrument_views_of_model
    from linnet.models.loading import load_model
    from linnet.tasks.sentences import SentenceTask
    from linnet.train.checkpoint_step import run_checkpoint_step

    model = load_model(folder, run_checkpoint_step(folder, checkpoint), screen.warn)
    if text:
        ids, words, separator = _read(folder, text, tokens, model)
        return instrument_views_of_model(model, ids), words, separator, None
    task = _task(folder, screen)
    ids, words, separator = _validation(task, samples or BLOCKS, tokens, model)
    beyond: Beyond | None = None
    if model.config.patch is not None:
        beyond = "pictures.json", partial(_pictures, task, model, screen)
    elif isinstance(task, SentenceTask):
        beyond = "answers.json", partial(_answers, task, model, screen)
    return instrument_views_of_model(model, ids), words, separator, beyond


def _can_draw(kind: str | None, screen: "Screen") -> bool:
    """Whether figures can be drawn. Without matplotlib they cannot, which is an error if --format asks for them."""
    from linnet.figures.figure import check_figure_matplotlib
    from linnet.instruments.plots import check_plot_format

    if kind is not None:
        check_plot_format(kind)
    try:
        check_figure_matplotlib()
    except InputError as error:
        if kind is not None:
            raise
        screen.warn(f"no figures: {error}")
        return False
    return True


def _read(folder: Path, text: Path, tokens: int | None, model: "Model") -> "tuple[Tensor, list[str], str]":
    """The ids (1,N) of a text, its tokens as words, and the separator between them.

    Raises if the text does not fit the model.
    """
    import torch

    from linnet.config import read_config_toml
    from linnet.data.tokenizer import Tokenizer
    from linnet.storage import read_text_file

    content = read_text_file(text)
    if not (folder / "tokenizer.json").exists():
        raise InputError(f"{folder} has no tokenizer, so it is not a text model: leave out --text")
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    ids = tokenizer.encode(content)
    if len(ids) < 2:
        raise InputError(f"{text} has {len(ids)} tokens: it needs at least two")
    ids = ids[:tokens]
    context = read_config_toml(folder / "config.toml")["data"]["context"] if (folder / "config.toml").exists() else None
    limit = model.config.max_length if model.config.positions == "learned" else context
    if limit is not None and tokens is None and len(ids) > limit:
        raise InputError(f"{text} has {len(ids)} tokens, the model's context {limit}: set --tokens to at most {limit}")
    if model.config.positions == "learned" and len(ids) > model.config.max_length:
        raise InputError(f"--tokens is {tokens}: the model has {model.config.max_length} positions")
    return torch.tensor([ids]), *tokenizer.words(ids)


def _task(folder: Path, screen: "Screen") -> "Task":
    """The task of a run, with its data."""
    from linnet.train.run import open_run

    if not (folder / "config.toml").exists():
        raise InputError(f"{folder} is an exported model, which has no data: give a text with --text FILE")
    return open_run(folder, screen).task


def _validation(task: Any, samples: int, tokens: int | None, model: "Model") -> "tuple[Tensor, list[str], str]":
    """The first full blocks (B,N) or images of the validation split; words and separator as in `_read`."""
    from linnet.train.watch import watch_blocks

    ids = watch_blocks(task, samples)
    if model.config.patch is None:
        ids = ids[:, :tokens]
        return ids, *task.words(ids[0].tolist())
    if tokens is not None:
        raise InputError(f"--tokens is {tokens}: an image is read whole")
    from linnet.models.patches import patch_places

    names = [f"{row},{column}" for row, column in patch_places(model.config).tolist()]
    return ids, [*names[: model.config.grid**2], *["class"] * (model.config.pool == "class")], " "


def _pictures(task: Any, model: "Model", screen: "Screen") -> dict[str, Any]:
    """Predictions for images of the validation split, and the confusion matrix of all of it."""
    import numpy as np

    from linnet.report.pictures import SHOWN, describe_pictures

    try:
        metrics = task.evaluate(model, "valid", progress=screen.work("predicting the validation split"))
    finally:
        screen.close()
    chosen = task.sample("valid", min(SHOWN, task.count("valid")))
    batch = task.batch("valid", chosen, np.zeros_like(chosen))
    return describe_pictures(model, batch["pixels"], batch["labels"].tolist(), metrics)


def _answers(task: Any, model: "Model", screen: "Screen") -> dict[str, Any]:
    """The answers to the texts of the validation split: the confusion matrix and the worst errors."""
    from linnet.report.answers import describe_answers

    try:
        metrics = task.evaluate(model, "valid", progress=screen.work("evaluating on the validation split"))
        judged = task.judge_texts(model, "valid")
    finally:
        screen.close()
    return describe_answers(judged, task.classes, metrics)
