"""`linnet report`: write one HTML page about one or more runs."""

from pathlib import Path
from typing import Annotated, Any

import typer

from linnet.cli import Json, print_cli_json

PROMPT, NEW_TOKENS = "The ", 100
DRAW: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "seed": 0}

Runs = Annotated[list[Path], typer.Argument(help="The folder of a run, or of several to compare.", metavar="DIR...")]
Out = Annotated[
    Path | None, typer.Option("--out", help="The file to write.", metavar="FILE", show_default="report.html")
]


def report_command(folders: Runs, out: Out = None, json: Json = False) -> None:
    """Write an HTML report about one or more runs.

    The report shows curves, text that a language model writes, configuration and environment; the runs need not be
    finished. It is one file that opens offline and loads nothing else. By default it goes to the folder of the run, or
    to the current folder if there are several runs.

    \b
    Examples:
      linnet report runs/mine
      linnet report runs/mine runs/other --out compared.html
    """
    from linnet.report.page import check_report_page_extra, write_report_page

    check_report_page_extra()
    path = write_report_page(folders, out, [_sample(folder) for folder in folders])
    if json:
        print_cli_json({"report": str(path), "bytes": path.stat().st_size})
    else:
        print(path)


def _sample(folder: Path) -> dict[str, Any] | None:
    """Text that the run's newest checkpoint writes; None without a checkpoint, or if the run is no language model."""
    import torch

    from linnet.data.tokenizer import Tokenizer
    from linnet.errors import LinnetError
    from linnet.models.generate import Sampling
    from linnet.models.loading import load_model

    if (folder / "sample.json").exists() or not (folder / "tokenizer.json").exists():
        return None
    try:
        model, tokenizer = load_model(folder), Tokenizer.load(folder / "tokenizer.json")
        ids = tokenizer.encode(PROMPT)
        tokens = [int(token) for token in model.stream(torch.tensor([ids]), NEW_TOKENS, Sampling(**DRAW))]
    except LinnetError:  # no checkpoint yet, or a model that is not causal: the report has no text then
        return None
    text = tokenizer.decode([token for token in tokens if token < tokenizer.vocab_size])
    return {"prompt": PROMPT, "text": PROMPT + text, **DRAW}
