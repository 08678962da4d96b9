"""`linnet data`: generate the synthetic data sets, and print where to get the others."""

from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json
from linnet.errors import InputError, unknown_name_error

GENERATED = ("listops", "pathfinder")
OPTIONS = {
    "listops": ("--out", "--train", "--valid", "--test", "--seed"),
    "pathfinder": ("--out", "--count", "--preview", "--seed"),
}
FETCHED = ("text", "image", "retrieval", "retrieval_small", "cifar10", "fashion-mnist", "dogs-vs-cats-64")
What = Annotated[
    str, typer.Argument(help=f"Generated: {', '.join(GENERATED)}. Described: {', '.join(FETCHED)}.", metavar="WHAT")
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder to write to.")]
Train = Annotated[int | None, typer.Option("--train", min=1, help="Trees to train on; 96,000 by default.")]
Valid = Annotated[int | None, typer.Option("--valid", min=1, help="Trees to validate on; 2,000 by default.")]
Test = Annotated[int | None, typer.Option("--test", min=1, help="Trees to test on; 2,000 by default.")]
Pictures = Annotated[int | None, typer.Option("--count", min=3, help="Images to generate; 200,000 by default.")]
Preview = Annotated[
    Path | None,
    typer.Option("--preview", help="Also draw 32 images into a .png; a frame marks label 1.", metavar="FILE"),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="The same seed gives the same data; 0 by default.")]


def data_command(
    what: What,
    out: Out = None,
    train: Train = None,
    valid: Valid = None,
    test: Test = None,
    count: Pictures = None,
    preview: Preview = None,
    seed: Seed = None,
    json: Json = False,
) -> None:
    """Generate a data set, or print where to get it.

    The data sets are those of the Long Range Arena, and images. listops writes basic_train.tsv, basic_val.tsv and
    basic_test.tsv, named like the public files. pathfinder writes a folder of images, a thousand per file, and
    continues after a stop. The other names write nothing: they print which files to get and from where, or the path in
    LINNET_DATA.

    \b
    Examples:
      linnet data listops --out listops
      linnet data listops --out small --train 1000 --valid 100 --test 100 --seed 1
      linnet data pathfinder --out pathfinder --count 20000 --preview sheet.png
      linnet data text
    """
    if what not in (*GENERATED, *FETCHED):
        raise unknown_name_error("data set", what, (*GENERATED, *FETCHED))
    sizes = {"--train": train, "--valid": valid, "--test": test, "--count": count}
    for option, value in {"--out": out, **sizes, "--preview": preview, "--seed": seed}.items():
        if value is not None and option not in OPTIONS.get(what, ()):
            raise InputError(f"{option} is {value}: {what} does not have this option")
    if what in FETCHED:
        _print_source(what, json)
    elif out is None:
        raise InputError("--out is missing: name the folder to write to")
    elif what == "listops":
        _make_listops(out, (train or 96_000, valid or 2_000, test or 2_000), seed or 0, json)
    else:
        _make_pathfinder(out, count or 200_000, seed or 0, preview, json)


def _make_listops(out: Path, sizes: tuple[int, int, int], seed: int, json: bool) -> None:
    """Write the three files of ListOps."""
    from linnet.data.lra.listops_tsv import NAMES, score_listops_tsv_shortcuts, write_listops_tsv
    from linnet.screen import Screen

    for name in NAMES.values():
        if (out / name).exists():
            raise InputError(f"{out / name} exists: name another folder")
    screen = Screen(quiet=json)
    try:
        paths = write_listops_tsv(out, dict(zip(NAMES, sizes, strict=True)), seed, screen.work("generating ListOps"))
    finally:
        screen.close()
    found = score_listops_tsv_shortcuts(dict(zip(NAMES, paths, strict=True)))
    if json:
        print_cli_json({"files": [str(path) for path in paths], "sizes": sizes, "seed": seed, "shortcuts": found})
        return
    for split, path, size in zip(NAMES, paths, sizes, strict=True):
        print(f"{path}: {size:,} trees")
        if split in found:
            known = found[split]
            print(f"  {known['commonest']:.2%} have the value that is most common in training")
            print(f"  {known['operator']:.2%} have the value that is most common for their outermost operator")
            print(f"  the loss of predicting from that operator alone is {known['loss']:.3f}")


def _make_pathfinder(out: Path, count: int, seed: int, preview: Path | None, json: bool) -> None:
    """Write a folder of images, and optionally a sheet with some of them."""
    from linnet.data.lra.pathfinder_files import pathfinder_files_sheet, read_pathfinder_files, write_pathfinder_files
    from linnet.data.lra.png import encode_png
    from linnet.screen import Screen
    from linnet.storage import write_file_atomic

    if preview is not None and (preview.suffix.lower() != ".png" or not preview.absolute().parent.is_dir()):
        raise InputError(f"--preview is {preview}: it must be a .png in a folder that exists")
    screen = Screen(quiet=json)
    try:
        write_pathfinder_files(out, count, seed, progress=screen.work("generating Pathfinder"))
    finally:
        screen.close()
    pictures = read_pathfinder_files(out)
    if preview is not None:
        sheet = pathfinder_files_sheet(pictures.tokens.reshape(count, -1)[:32], pictures.labels[:32])
        write_file_atomic(preview, encode_png(sheet))
    if json:
        made = {"folder": str(out), "count": count, "seed": seed, "ones": int(pictures.labels.sum())}
        print_cli_json({**made, "preview": preview and str(preview)})
    else:
        print(f"{out}: {count:,} images, {pictures.labels.mean():.1%} with both dots on one path")
        if preview is not None:
            print(preview)


def _print_source(what: str, json: bool) -> None:
    """Print the path of a data set in LINNET_DATA, or where to get it."""
    from linnet.data.images import cifar10, dogs_vs_cats, fashion_mnist
    from linnet.data.lra import image, retrieval, text

    missing, find = {
        "cifar10": (cifar10.MISSING, cifar10.cifar10_path),
        "fashion-mnist": (fashion_mnist.MISSING, fashion_mnist.fashion_mnist_path),
        "dogs-vs-cats-64": (dogs_vs_cats.MISSING, dogs_vs_cats.dogs_vs_cats_path),
        "text": (text.MISSING, text.default_text_path),
        "image": (image.MISSING, image.default_image_path),
        "retrieval": (retrieval.MISSING, None),
        "retrieval_small": (retrieval.MISSING_SMALL, retrieval.default_retrieval_path),
    }[what]
    try:
        found = str(find()) if find is not None else None
    except InputError:
        found = None
    if json:
        print_cli_json({"name": what, "get": missing, "found": found})
    else:
        print(f"{what} is here: {found}" if found else missing)
