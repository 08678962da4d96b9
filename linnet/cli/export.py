"""`linnet export`: a trained model, without what only training needs."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_json
from linnet.cli.evaluate import Checkpoint
from linnet.cli.resume import Run


def command(
    folder: Run,
    out: Annotated[Path, typer.Option("--out", help="New folder of the model.")],
    checkpoint: Checkpoint = "last",
    json: Json = False,
) -> None:
    """Export a trained model, without what only training needs.

    The folder has config.json, model.safetensors and, of a model of text, tokenizer.json; `linnet.load_model` and
    `linnet generate` read it. The same checkpoint gives the same bytes.

    \b
    Example:
      linnet export runs/mine --out models/mine
    """
    from linnet.train.check import check_config, run_config

    check_config(run_config(folder))

    from linnet.models.loading import export_model, load_run, run_tokenizer
    from linnet.screen import Screen
    from linnet.train.run import checkpoint_step

    model, state = load_run(folder, checkpoint_step(folder, checkpoint), Screen(quiet=json).warn)
    export_model(model, out, run_tokenizer(folder, state))
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    if json:
        print_json({"folder": str(out), "files": files})
    else:
        print(f"{out}: {', '.join(f'{name} ({size:,} bytes)' for name, size in files.items())}")
