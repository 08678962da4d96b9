"""`linnet export`: write a trained model without its training state."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json
from linnet.cli.evaluate import Checkpoint
from linnet.cli.resume import Run
from linnet.errors import InputError


def export_command(
    folder: Run,
    out: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    checkpoint: Checkpoint = "last",
    hf: Annotated[bool, typer.Option("--hf", help="Write a folder for Hugging Face Transformers.")] = False,
    license: Annotated[
        str | None, typer.Option("--license", help="With --hf, the license of the weights.", show_default="none")
    ] = None,
    json: Json = False,
) -> None:
    """Export a trained model without its training state.

    The folder gets config.json, model.safetensors and, for a text model, tokenizer.json; `linnet.load_model` and
    `linnet generate` read it. The same checkpoint always gives the same bytes. With --hf the folder is for
    `AutoModel...from_pretrained` and `AutoTokenizer` after `import linnet.hf`, and has a model card.

    \b
    Examples:
      linnet export runs/mine --out models/mine
      linnet export runs/mine --hf --out models/mine-hf --license mit
    """
    if license is not None and not hf:
        raise InputError(f"--license is {license!r}: it goes into the model card, so it needs --hf")
    from linnet.train.check import check_and_read_config, check_config

    check_config(check_and_read_config(folder))

    from linnet.models.loading import export_model, load_run_model, load_run_tokenizer
    from linnet.screen import Screen
    from linnet.train.checkpoint_step import run_checkpoint_step

    model, state = load_run_model(folder, run_checkpoint_step(folder, checkpoint), Screen(quiet=json).warn)
    tokenizer = load_run_tokenizer(folder, state)
    if hf:
        from linnet.hf.export import export_run_to_hf

        export_run_to_hf(folder, model, state, out, tokenizer, license)
    else:
        export_model(model, out, tokenizer)
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir())}
    if json:
        print_cli_json({"folder": str(out), "files": files})
    else:
        print(f"{out}: {', '.join(f'{name} ({size:,} bytes)' for name, size in files.items())}")
