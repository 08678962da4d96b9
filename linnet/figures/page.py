"""A Markdown page: the part between two markers is rendered, and the rest stays as it is."""

from pathlib import Path

from linnet.errors import InputError
from linnet.storage import write_text_file

BEGIN, END = "<!-- rendered from JSON -->", "<!-- end -->"


def write_markdown_page(page: Path, title: str, block: str) -> None:
    """Write `block` between the markers of a page; creates the page if it does not exist."""
    try:
        text = page.read_text() if page.exists() else f"# {title}\n\n{BEGIN}\n{END}\n"
    except UnicodeDecodeError:
        raise InputError(f"{page} is not UTF-8 text") from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{page} must have the lines {BEGIN} and {END}")
    write_text_file(page, f"{before}{BEGIN}\n{block}\n{END}{after}")
