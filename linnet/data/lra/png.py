"""A minimal PNG reader and writer for grey images: 8 bits per pixel, one channel, not interlaced."""

import itertools
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from linnet.errors import InputError

SIGNATURE = b"\x89PNG\r\n\x1a\n"
LARGEST = 1 << 14  # pixels per side


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """An image (height, width) as the bytes of a PNG file."""
    height, width = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: an unfiltered row
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def decode_png(data: bytes, place: str) -> NDArray[np.uint8]:
    """The image (height, width) in a PNG file; an error about a damaged or other file names its `place`."""
    if not data.startswith(SIGNATURE):
        raise InputError(f"{place} is not a PNG image")
    header, parts = b"", []
    at, ended = len(SIGNATURE), False
    while at + 12 <= len(data) and not ended:
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body, crc = data[at + 8 : at + 8 + size], data[at + 8 + size : at + 12 + size]
        if crc != struct.pack(">I", zlib.crc32(kind + body)):
            raise InputError(f"{place} is cut short or damaged")
        header = body if kind == b"IHDR" else header
        parts += [body] if kind == b"IDAT" else []
        at, ended = at + 12 + size, kind == b"IEND"
    if not ended or len(header) != 13:
        raise InputError(f"{place} is cut short or damaged")
    width, height, *kinds = struct.unpack(">IIBBBBB", header)
    if kinds != [8, 0, 0, 0, 0] or not 0 < width <= LARGEST or not 0 < height <= LARGEST:
        raise InputError(f"{place} is not a grey image with 8 bits per pixel")
    try:
        raw = zlib.decompressobj().decompress(b"".join(parts), height * (width + 1) + 1)
    except zlib.error:
        raise InputError(f"{place} is cut short or damaged") from None
    if len(raw) != height * (width + 1):
        raise InputError(f"{place} is cut short or damaged")
    return _rows(raw, height, width, place)


def _rows(raw: bytes, height: int, width: int, place: str) -> NDArray[np.uint8]:
    """Undo the filters: each stored row begins with the number of its filter."""
    above, rows = [0] * width, []
    for start in range(0, height * (width + 1), width + 1):
        rule, stored = raw[start], raw[start + 1 : start + 1 + width]
        if rule == 0:
            above = list(stored)
        elif rule == 1:
            above = list(itertools.accumulate(stored, lambda left, x: (left + x) & 255))
        elif rule == 2:
            above = [(up + x) & 255 for up, x in zip(above, stored, strict=True)]
        elif rule in (3, 4):
            above = _from_both(rule, above, stored)
        else:
            raise InputError(f"{place} is cut short or damaged")
        rows.append(bytes(above))
    return np.frombuffer(b"".join(rows), np.uint8).reshape(height, width)


def _from_both(rule: int, above: list[int], stored: bytes) -> list[int]:
    """Undo filter 3 (mean of the left and upper pixels) or 4 (Paeth)."""
    row, left, corner = [], 0, 0
    for up, x in zip(above, stored, strict=True):
        if rule == 3:
            guess = (left + up) // 2
        else:
            plane = left + up - corner
            guess = min((left, up, corner), key=lambda value: abs(plane - value))
        left, corner = (guess + x) & 255, up
        row.append(left)
    return row
