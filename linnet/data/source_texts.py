"""The texts in a part of a source file: plain text, JSON lines or Parquet, read as a stream in little memory.

A position in text and JSON lines is a byte, and in Parquet a row. What is read is checked: UTF-8 without NUL bytes in
plain text, an object with a string in each line of JSON, and a string in each row of Parquet.
"""

import codecs
import io
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from linnet.config import short_config_value
from linnet.errors import InputError, missing_extra_error_text

WINDOW = 1 << 16  # bytes
PIECE = 1 << 16  # characters
LONGEST_LINE = 1 << 26  # characters of plain text in which there is no place to cut
LONGEST_ROW = 1 << 28  # bytes of JSON
ROWS = 256  # of Parquet, read at once
# Where a text, with either kind of line end, can be cut without changing its ids: byte-level BPE keeps the last white
# space before a word apart from white space before that, and never merges across these line ends.
# Python takes U+001C to U+001F for white space too; Unicode, and so the tokenizer, does not.
CUT = re.compile(r"(?<=\S)\r?\n(?=\S)|(?<=[^\S\r\x1c-\x1f])(?=[^\S\r\n\x1c-\x1f]\S)|(?<=\n)(?=\r?\n\S)")

Bad = Callable[[str, str], None]  # called with the place of a bad row and the reason; raises to refuse the row
Texts = Iterator[tuple[str, bool]]  # parts of documents, each with whether it is the last of its document


def refuse_source_row(path: str) -> Bad:
    """A function that raises for a bad row; the default, unless bad rows are skipped."""

    def refuse(place: str, why: str) -> None:
        raise InputError(f"{path}, {place}: {why}")

    return refuse


def read_source_texts(path: str, kind: str, field: str, start: int, stop: int, bad: Bad) -> Texts:
    """The text from `start` to `stop`, line ends as `\\n`; the last part of plain text ends a document.

    Texts of only white space are skipped.
    """
    if kind == "text":
        return _read_plain(path, start, stop)
    texts = _read_json_lines if kind == "jsonl" else _read_parquet
    rows = texts(path, field, start, stop, bad)
    return ((row.replace("\r\n", "\n").replace("\r", "\n"), True) for row in rows if row.strip())


def _read_plain(path: str, start: int, stop: int) -> Texts:
    """Plain text, cut where that does not change its tokens."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    ends = io.IncrementalNewlineDecoder(decoder=None, translate=True)
    held, at = "", start
    with open(path, "rb") as file:
        file.seek(start)
        while at < stop:
            data = file.read(min(WINDOW, stop - at))
            if not data:
                raise InputError(f"{path} has become shorter")
            at += len(data)
            if at == len(data):  # the start of the file
                data = data.removeprefix(codecs.BOM_UTF8)
            held += ends.decode(_decoded(path, decoder, data, at, at == stop), at == stop)
            parts = list(_cut(held))
            held = parts.pop() if parts else ""
            yield from ((part, False) for part in parts)
            if len(held) > LONGEST_LINE:
                yield held, False
                held = ""
    if held:
        yield held, True


def _decoded(path: str, decoder: codecs.IncrementalDecoder, data: bytes, at: int, final: bool) -> str:
    """The text of these bytes, which end at `at` in the file; an error names the line."""
    where, what = data.find(b"\0"), "a NUL byte: it is binary, not text"
    where += at - len(data) if where >= 0 else 0
    try:
        text = decoder.decode(data, final)
    except UnicodeDecodeError as error:
        place = at - len(error.object) + error.start
        if not 0 <= where < place:
            where, what = place, f"the byte 0x{error.object[error.start]:02x}: it is not UTF-8 text"
    if where >= 0:
        raise InputError(f"{path}, line {_line(path, where)}: the file holds {what}")
    return text


def _line(path: str, where: int) -> int:
    """The number of the line of a byte."""
    ends = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("latin-1")(), translate=True)
    lines = 1
    with open(path, "rb") as file:
        for start in range(0, where, WINDOW):
            lines += ends.decode(file.read(min(WINDOW, where - start)), start + WINDOW >= where).count("\n")
    return lines


def _cut(text: str) -> Iterator[str]:
    """A text in parts of at least PIECE characters; the last may have fewer, and more may follow it."""
    start = 0
    while start < len(text):
        cut = CUT.search(text, start + PIECE) if start + PIECE < len(text) else None
        end = cut.end() if cut else len(text)
        yield text[start:end]
        start = end


def _read_json_lines(path: str, field: str, start: int, stop: int, bad: Bad) -> Iterator[str]:
    """The field of each line that begins before `stop`; lines are counted if `start` is that of the file."""
    at, number = start, 0
    with open(path, "rb") as file:
        file.seek(start)
        while at < stop:
            line = file.readline(LONGEST_ROW + 1)
            if not line:
                raise InputError(f"{path} has become shorter")
            place, number = f"line {number + 1}" if start == 0 else f"the line at byte {at:,}", number + 1
            if len(line) > LONGEST_ROW:
                raise InputError(f"{path}, {place}: it has more than {LONGEST_ROW:,} bytes, the most that are allowed")
            at += len(line)
            if line.strip(b"\xef\xbb\xbf" + b" \t\r\n"):
                text, why = _json_text(line, field)
                if why:
                    bad(place, why)
                else:
                    yield text


def _json_text(line: bytes, field: str) -> tuple[str, str]:
    """The text in a line of JSON, or what is wrong with the line."""
    try:
        row = json.loads(line.removeprefix(codecs.BOM_UTF8).rstrip().decode())
    except UnicodeDecodeError as error:
        return "", f"it holds the byte 0x{error.object[error.start]:02x}, which is not UTF-8 text"
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith(b"\n") else ", and the file ends in it: it was cut short"
        why = f"{error.msg} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else str(error)
        return "", f"it is not JSON ({why}){cut}"
    if not isinstance(row, dict):
        return "", f"it is {short_config_value(row)}, not an object with the field {field!r}"
    if field not in row:
        has = ", ".join(map(short_config_value, list(row)[:5])) or "none"
        return "", f"it has no field {field!r} (data.field); its fields are {has}"
    return _checked(row[field], field)


def _checked(text: Any, field: str) -> tuple[str, str]:
    """A text, or what is wrong with it."""
    if not isinstance(text, str):
        return "", f"the field {field!r} is {'null' if text is None else short_config_value(text)}, not text"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "", f"the field {field!r} holds half of a surrogate pair, which is not text"
    return text, ""


def open_parquet_source(path: str, field: str) -> Any:
    """A Parquet file that has this column of text; needs the extra `data`."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{path}: Parquet files need pyarrow: {missing_extra_error_text('data')}") from None
    try:
        file = parquet.ParquetFile(path, memory_map=True)
    except (pyarrow.ArrowException, OSError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"{path} is not a Parquet file, or was cut short: {why}") from None
    columns = {column.name: column.type for column in file.schema_arrow}
    if field not in columns:
        has = ", ".join(map(repr, list(columns)[:5]))
        raise InputError(f"{path} has no column {field!r} (data.field); its columns are {has}")
    types = pyarrow.types
    if not (types.is_string(columns[field]) or types.is_large_string(columns[field])):
        raise InputError(f"{path}: the column {field!r} is of the type {columns[field]}, not text (data.field)")
    return file


def parquet_source_groups(path: str, field: str) -> list[int]:
    """Where the row groups of a Parquet file end, in rows."""
    found = open_parquet_source(path, field).metadata
    ends, total = [], 0
    for group in range(found.num_row_groups):
        total += found.row_group(group).num_rows
        ends.append(total)
    return ends


def _read_parquet(path: str, field: str, start: int, stop: int, bad: Bad) -> Iterator[str]:
    """The column of text in these rows."""
    file, ends = open_parquet_source(path, field), parquet_source_groups(path, field)
    import pyarrow

    groups = [i for i, end in enumerate(ends) if end > start and (ends[i - 1] if i else 0) < stop]
    row = ends[groups[0] - 1] if groups and groups[0] else 0
    try:
        for batch in file.iter_batches(ROWS, groups, [field]) if groups else ():
            for data in batch.column(0).cast(pyarrow.large_binary()).to_pylist():
                row += 1
                if start < row <= stop:
                    text, why = _parquet_text(data, field)
                    if why:
                        bad(f"row {row:,}", why)
                    else:
                        yield text
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path}, after row {row:,}: it is damaged: {str(error).splitlines()[0]}") from None


def _parquet_text(data: bytes | None, field: str) -> tuple[str, str]:
    """The text of a cell, or what is wrong with it."""
    if data is None:
        return _checked(None, field)
    try:
        return data.decode(), ""
    except UnicodeDecodeError as error:
        return "", f"the field {field!r} holds the byte 0x{data[error.start]:02x}, which is not UTF-8 text"
