"""`linnet export`: write a trained model without its training state."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json
from linnet.cli.evaluate import Checkpoint
from linnet.cli.resume import Run


def export_command(
    folder: Run,
    out: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    checkpoint: Checkpoint = "last",
    json: Json = False,
) -> None:
    """Export a trained model without its training state.

    The folder gets config.json, model.safetensors and, for a text model, tokenizer.json; `linnet.load_model` and
    `linnet generate` read it. The same checkpoint always gives the same bytes.

    \b
    Example:
      linnet export runs/mine --out models/mine
    """
    from linnet.train.check import check_and_read_config, check_config

    check_config(check_and_read_config(folder))

    from linnet.models.loading import export_model, load_run_model, load_run_tokenizer
    from linnet.screen import Screen
    from linnet.train.run import run_checkpoint_step

    model, state = load_run_model(folder, run_checkpoint_step(folder, checkpoint), Screen(quiet=json).warn)
    export_model(model, out, load_run_tokenizer(folder, state))
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    if json:
        print_cli_json({"folder": str(out), "files": files})
    else:
        print(f"{out}: {', '.join(f'{name} ({size:,} bytes)' for name, size in files.items())}")
