"""`linnet convert`: replace the softmax of a pretrained encoder or decoder and train the replacement to imitate it."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json, print_cli_table
from linnet.errors import InputError

Folder = Annotated[Path, typer.Argument(help="A Transformers folder with an encoder or a decoder.", metavar="DIR")]
Attention = Annotated[str, typer.Option("--attention", help="One of `linnet list attention`.", metavar="NAME")]
Text = Annotated[Path, typer.Option("--text", help="A text to learn from, without labels.", metavar="FILE")]
Out = Annotated[Path, typer.Option("--out", help="New folder for the converted model.", metavar="DIR")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="A setting, or an option as options.KEY=VALUE.", metavar="KEY=VALUE")
]


def convert_command(
    folder: Folder, attention: Attention, text: Text, out: Out, sets: Sets = None, json: Json = False
) -> None:
    """Convert a pretrained encoder or decoder to linear attention.

    First each layer's new attention learns to imitate the old one on your text (transfer_steps), then, with tune_steps,
    the model learns to reproduce its old hidden states. The folder gets the model for `linnet.hf.load`, the curve in
    conversion.json, and the error per layer in README.md. The same command continues an interrupted conversion.

    \b
    Examples:
      linnet convert minilm --attention hedgehog --text my.txt --out minilm-linear
      linnet convert minilm --attention lln_diag --text my.txt --out minilm-lln --set tune_steps=200
    """
    from linnet.config import parse_config_assignments, parse_config_section

    table = parse_config_assignments(sets or ())
    if "attention" in table:
        raise InputError("--set attention: the option --attention names it")

    from linnet.hf.convert import ConversionSettings, convert_folder
    from linnet.screen import Screen

    settings = parse_config_section(ConversionSettings, {"attention": attention, **table}, "convert")
    record = convert_folder(folder, text, out, settings, Screen(quiet=json))
    if json:
        print_cli_json(record)
        return
    errors = record["layer_errors"]
    layers = [f"layer {i}" for i in range(len(next(iter(errors.values()))))]
    print_cli_table(["relative error", *layers], [[stage, *(f"{x:.4f}" for x in row)] for stage, row in errors.items()])
    print(out)
