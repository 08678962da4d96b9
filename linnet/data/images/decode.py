"""Decode a PNG or JPEG image by Pillow into a square of pixels, after checking what it is.

Pixels are 8 bits of grey or of red, green and blue. Images that need a silent conversion are refused: transparency,
16 bits, palettes, animations. So is an image that unpacks to too many pixels, before it is unpacked.
"""

import io
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from linnet.errors import InputError, missing_extra_error_text

LARGEST = 1 << 26  # pixels of one image, 8,192 x 8,192
FORMATS = ("PNG", "JPEG")
CHANNELS = {"L": 1, "RGB": 3}
DEEP = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def check_decoder() -> None:
    """Raise if Pillow is not installed."""
    if find_spec("PIL") is None:
        raise InputError(f"images in files need Pillow: {missing_extra_error_text('vision')}")


def decode_picture(data: bytes, place: str, size: int, color: str = "auto") -> NDArray[np.uint8]:
    """(channels, size, size): the middle square of an image, resized; an error names the `place`.

    `color` is "gray" or "rgb", which convert, or "auto", which keeps the channels of the image.
    """
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from Pillow, about images that are refused below
            with Image.open(io.BytesIO(data), formats=FORMATS) as picture:
                _check(picture, place)
                picture.load()
                upright = ImageOps.exif_transpose(picture)
    except InputError:
        raise
    except Image.DecompressionBombError:
        raise InputError(f"{place} has more than {LARGEST:,} pixels, which is too large") from None
    except Exception as error:  # noqa: BLE001  each decoder of Pillow raises its own errors for damage
        raise InputError(f"{place} is not an intact PNG or JPEG image: {_reason(error)}") from None
    square = ImageOps.fit(upright, (size, size), Image.Resampling.BICUBIC) if upright.size != (size, size) else upright
    if color != "auto":
        square = square.convert("L" if color == "gray" else "RGB")
    pixels = np.asarray(square, np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _check(picture: Any, place: str) -> None:
    """Raise unless the header describes one image of 8 bits that is not too large."""
    width, height = picture.size
    if width * height > LARGEST:
        raise InputError(f"{place} has {width} x {height} pixels: at most {LARGEST:,} are read")
    if getattr(picture, "n_frames", 1) > 1:
        raise InputError(f"{place} is animated, with {picture.n_frames} frames: save one of them")
    if picture.mode in DEEP:
        raise InputError(f"{place} has more than 8 bits per channel (mode {picture.mode}): save it with 8 bits")
    if picture.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in picture.info:
        raise InputError(f"{place} has transparency (mode {picture.mode}): save it without alpha")
    if picture.mode not in CHANNELS:
        raise InputError(f"{place} has mode {picture.mode}: save it as grey (L) or color (RGB)")


def _reason(error: Exception) -> str:
    """What a decoder says, without the representation of a file in memory."""
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return "it is of another kind or damaged" if "BytesIO" in text else text
