"""A table: text in cells, for a terminal or a page, and its one Markdown form."""

from collections.abc import Collection, Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """Columns and rows of text; the columns named in `words` align left (None: only the first), numbers align right."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Collection[str] | None = None

    def to_markdown(self) -> str:
        """The table for a Markdown page, without its title."""
        left = {self.columns[0]} if self.words is None else self.words
        rule = ["---" if column in left else "--:" for column in self.columns]
        rows = ([cell.replace("|", "\\|") for cell in row] for row in self.rows)
        return "\n".join(f"| {' | '.join(line)} |" for line in (self.columns, rule, *rows))
