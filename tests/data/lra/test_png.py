"""Grey PNG images: readable by and from other libraries, with every row filter; damage is one line."""

import io

import numpy as np
import pytest

from linnet.data.lra.png import SIGNATURE, _chunk, _rows, decode_png, encode_png
from linnet.errors import InputError


def picture(height: int = 9, width: int = 7) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width), dtype=np.uint8)


def test_a_picture_comes_back():
    assert np.array_equal(decode_png(encode_png(picture()), "x.png"), picture())


@pytest.mark.parametrize("rule", range(5))
def test_rows_by_every_rule(rule):
    """By the definition of the format: each stored value is a pixel minus a prediction from its neighbors."""
    pixels = picture().astype(int)
    around = np.pad(pixels, ((1, 0), (1, 0)))
    left, up, corner = around[1:, :-1], around[:-1, 1:], around[:-1, :-1]
    plane = left + up - corner
    distances = np.stack([abs(plane - left), abs(plane - up), abs(plane - corner)])
    paeth = np.choose(distances.argmin(axis=0), [left, up, corner])
    guess = [0, left, up, (left + up) // 2, paeth][rule]
    stored = ((pixels - guess) % 256).astype(np.uint8)
    raw = b"".join(bytes([rule]) + row.tobytes() for row in stored)
    assert np.array_equal(_rows(raw, 9, 7, "x.png"), picture())


def test_what_another_program_writes(tmp_path):
    image = pytest.importorskip("PIL.Image", reason="needs Pillow, which matplotlib brings")
    for size in ((32, 32), (5, 60)):
        smooth = np.add.outer(np.arange(size[0]) * 3, np.arange(size[1]) * 2).astype(np.uint8)
        file = io.BytesIO()
        image.fromarray(smooth).save(file, "png")
        assert np.array_equal(decode_png(file.getvalue(), "x.png"), smooth)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: b"GIF89a" + data, "is not a PNG image"),
        (lambda data: data[:40], "is cut short or damaged"),
        (lambda data: data[:-12], "is cut short or damaged"),
        (lambda data: data[:45] + bytes([data[45] ^ 1]) + data[46:], "is cut short or damaged"),
        (lambda data: SIGNATURE + _chunk(b"IEND", b""), "is cut short or damaged"),
        (lambda data: data[:8] + _chunk(b"IHDR", b"\0\0\0\x07\0\0\0\x09\x08\x02\0\0\0") + data[33:], "is not a grey"),
        (lambda data: data[:8] + _chunk(b"IHDR", b"\0\0\0\x07\0\0\0\x08\x08\0\0\0\0") + data[33:], "is cut short"),
        (lambda data: data[:33] + _chunk(b"IDAT", b"junk") + data[-12:], "is cut short or damaged"),
    ],
)
def test_damage_is_one_line(change, message):
    with pytest.raises(InputError, match=f"^x.png {message}"):
        decode_png(change(encode_png(picture())), "x.png")
