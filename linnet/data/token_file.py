"""A file of token ids: a header of 512 bytes in JSON, then the ids as they are in memory.

The header holds the type and number of the ids, their SHA-256, and a key that says what they are. It ends with its own
SHA-256. A file is used only if all of this is right.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

HEADER = 512


def write_token_ids(file: IO[bytes], arrays: Iterable[NDArray[Any]], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Write ids after the space for the header; returns the fields about them."""
    whole, count = hashlib.sha256(), 0
    file.seek(HEADER)
    for ids in arrays:
        data = ids.tobytes()
        file.write(data)
        whole.update(data)
        count += len(ids)
    return {"dtype": dtype.name, "count": count, "sha256": whole.hexdigest()}


def write_token_header(file: IO[bytes], fields: dict[str, Any]) -> None:
    """Write the header in front of the ids."""
    file.seek(0)
    file.write(_header(fields))
    file.flush()


def read_token_file(path: Path, key: str) -> tuple[NDArray[Any], dict[str, Any]] | None:
    """The ids, mapped into memory, and the header; None if the file is missing, damaged or has another key."""
    try:
        with path.open("rb") as file:
            header = file.read(HEADER)
            fields = json.loads(header.split()[0])
            size = HEADER + fields["count"] * np.dtype(fields["dtype"]).itemsize
            if header != _header(fields) or fields["key"] != key or file.seek(0, 2) != size:
                return None
            tokens = map_token_file(file, fields)
            if hashlib.sha256(tokens.data).hexdigest() != fields["sha256"]:
                return None
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return tokens, fields


def map_token_file(file: IO[bytes] | Path, fields: dict[str, Any]) -> NDArray[Any]:
    """The ids of a file with this header, mapped into memory."""
    if not fields["count"]:  # nothing cannot be mapped
        return np.zeros(0, np.dtype(fields["dtype"]))
    return np.memmap(file, np.dtype(fields["dtype"]), "r", HEADER, (fields["count"],))


def _header(fields: dict[str, Any]) -> bytes:
    """The fields as JSON without spaces, followed by its SHA-256."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return f"{text} {hashlib.sha256(text.encode()).hexdigest()}".ljust(HEADER - 1).encode() + b"\n"
