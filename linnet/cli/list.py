"""`linnet list`: print the available names, read from the registries."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from linnet.cli import Json, print_cli_json, print_cli_table
from linnet.errors import InputError, unknown_name_error

Row = dict[str, Any]


def _attention() -> list[Row]:
    import linnet

    return [{"name": name, **linnet.describe_attention(name)} for name in linnet.list_attention()]


def _models() -> list[Row]:
    import linnet

    return [{"name": name} for name in linnet.list_models()]


def _tasks() -> list[Row]:
    from linnet.registry import TASK

    return [{"name": name} for name in TASK.names()]


def _instruments() -> list[Row]:
    from linnet.registry import INSTRUMENT

    classes = [(name, INSTRUMENT[name]) for name in INSTRUMENT.names()]
    return [{"name": name, "what": cls.what, "reads": cls.reads, "paper": cls.paper} for name, cls in classes]


def _studies() -> list[Row]:
    from linnet.registry import STUDY

    return [STUDY[name]().describe() for name in STUDY.names()]


def _recipes() -> list[Row]:
    from linnet.config import config_recipe_names

    return [{"name": name} for name in config_recipe_names()]


KINDS: dict[str, Callable[[], list[Row]]] = {
    "attention": _attention,
    "models": _models,
    "tasks": _tasks,
    "instruments": _instruments,
    "recipes": _recipes,
    "studies": _studies,
}
COLUMNS = {
    "attention": {
        "name": "name",
        "what": "what",
        "causal": "causal",
        "recurrent": "recurrent state",
        "cost": "cost",
        "packed": "packed",
    },
    "instruments": {"name": "name", "what": "what"},
    "studies": {
        "name": "name",
        "item": "item",
        "kind": "kind",
        "scales": "scales",
        "runs": "runs",
        "core_hours": "estimated core-hours",
        "paper": "paper",
    },
}
Kind = Annotated[
    str,
    typer.Argument(
        help="attention, models, tasks, instruments, recipes or studies.", metavar="KIND", show_default=False
    ),
]


def list_command(
    kind: Kind = "",
    json: Json = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
) -> None:
    """List mechanisms, models, tasks, recipes, studies and more.

    create_mixer, create_model, recipes, `linnet train` and `linnet reproduce` accept the names in the first column. For
    a study, `runs` and `core_hours` refer to its CPU scale. `core_hours` is the time of all its runs: measured if they
    are recorded, otherwise estimated as 6 * parameters * tokens at 2e10 operations per second on one core; null if
    nothing is trained.

    \b
    Examples:
      linnet list attention
      linnet list models --json
    """
    if not kind:
        raise InputError(f"KIND is missing: one of {', '.join(KINDS)}")
    if kind not in KINDS:
        raise unknown_name_error("kind", kind, KINDS)
    if json and markdown:
        raise InputError("--json and --markdown: give one of them, not both")
    rows = KINDS[kind]()
    if json:
        print_cli_json(rows)
        return
    columns = COLUMNS.get(kind, {"name": "name"})
    cells = [[_cell(row[key]) for key in columns] for row in rows]
    if markdown:
        from linnet.figures.table import Table

        heads = list(columns.values())
        print(Table(kind, heads, [[f"`{name}`", *rest] for name, *rest in cells], heads).to_markdown())
    else:
        print_cli_table(list(columns.values()), cells)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)
