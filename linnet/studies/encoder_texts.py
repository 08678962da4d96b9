"""The texts that the encoders of the GLUE studies read on a CPU: WikiText-2, IMDb's reviews and the ACL papers."""

import lzma
import os
from pathlib import Path

from linnet.errors import InputError
from linnet.screen import Screen
from linnet.storage import one_line_file_errors, write_text_file

SOURCES = {  # the file to write: the files of LINNET_DATA, and which column of a table is the text
    "wikitext-2.txt": ("wikitext-2/wiki.train.tokens", None),
    "imdb.txt": ("imdb/train.tsv.xz", 2),
    "papers.txt": ("aan-small/docs.tsv.xz", 1),
}


def collect_encoder_texts(folder: Path, screen: Screen) -> Path:
    """A folder with one plain file for each source, one review or paper per line; written once."""
    root = os.environ.get("LINNET_DATA")
    if not root:
        raise InputError("LINNET_DATA is not set: the encoders read wikitext-2, imdb and aan-small from that folder")
    for name, (source, column) in SOURCES.items():
        if not (folder / name).is_file():
            screen.say(f"collecting {folder / name}")
            folder.mkdir(parents=True, exist_ok=True)
            write_text_file(folder / name, _source_text(Path(root) / source, column))
    return folder


def _source_text(path: Path, column: int | None) -> str:
    """The text of a source, with the marks of WikiText's tokens undone."""
    with one_line_file_errors("read", path):
        data = path.read_bytes()
    text = (lzma.decompress(data) if path.suffix == ".xz" else data).decode("utf-8")
    if column is not None:
        return "".join(f"{line.split(chr(9))[column]}\n" for line in text.split("\n") if line)
    for mark, plain in ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")):
        text = text.replace(mark, plain)
    return text
