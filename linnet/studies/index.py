"""The index of a folder of results: one line per page that a study has there, rewritten whenever a study renders."""

from pathlib import Path

from linnet.figures.page import BEGIN, END, write_markdown_page
from linnet.figures.table import Table
from linnet.registry import STUDY

COLUMNS = ("page", "item", "paper", "command")


def index_of_results(folder: Path) -> str:
    """A table of the studies whose pages are in `folder`, for its README."""
    rows = []
    for name in STUDY.names():
        study = STUDY[name]()
        for page in dict.fromkeys(f"{study.place(scale)}.md" for scale in study.scales):
            if (folder / page).is_file():
                where = "linnet" if study.paper == "linnet" else study.paper.partition(",")[0]
                rows.append([f"[{study.title}]({page})", study.item, where, f"`linnet reproduce {name}`"])
    return Table("Pages", COLUMNS, rows, words=COLUMNS).to_markdown()


def update_index_of_results(folder: Path) -> None:
    """Rewrite the index in the README of `folder`, if it has one with markers."""
    readme = folder / "README.md"
    if readme.is_file() and all(marker in readme.read_text(errors="replace") for marker in (BEGIN, END)):
        write_markdown_page(readme, "Results", index_of_results(folder))
