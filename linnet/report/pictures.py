"""The images part of a report: predictions, a confusion matrix, and what each patch of an image reads.

`linnet analyze` writes them to `analysis/pictures.json` in the folder of a run that classifies images. The file is
read without trusting it: everything that the page uses is checked.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from linnet.errors import LinnetError
from linnet.figures.heatmap import pack_heatmap, unpack_heatmap
from linnet.instruments.base import instrument_views_of_model
from linnet.models.backbone import Model
from linnet.models.patches import patch_order
from linnet.report.answers import confusion_rows
from linnet.storage import read_json_file

FORMAT = "linnet-pictures-1"
CELLS = 2 * 10**6  # weights in a file; with more, heads are averaged, then fewer images have maps
SHOWN = 24  # images with their predictions
MAPPED = 6  # images with maps
LARGEST_SIDE = 1 << 12


def describe_pictures(model: Model, pixels: Tensor, labels: Sequence[int], metrics: dict[str, Any]) -> dict[str, Any]:
    """Predictions for pixels (B,C,S,S), maps of the first of them, and the confusion matrix of `metrics`."""
    config = model.config
    with torch.no_grad():
        shares = torch.cat([model(part).float().softmax(dim=1) for part in pixels.split(8)])
    layers, maps = _maps(model, pixels)
    pictures = []
    for i, (picture, label, chances) in enumerate(zip(pixels, labels, shares.tolist(), strict=True)):
        found = {
            "pixels": base64.b64encode(picture.contiguous().numpy().tobytes()).decode(),
            "label": int(label),
            "shares": [round(chance, 4) for chance in chances],
        }
        pictures.append({**found, "maps": maps[i]} if i < len(maps) else found)
    return {
        "format": FORMAT,
        **{key: metrics[key] for key in ("split", "accuracy", "samples", "classes", "confusion")},
        "size": config.image_size,
        "channels": config.channels,
        "grid": config.grid,
        "layers": layers,
        "pictures": pictures,
    }


def _maps(model: Model, pixels: Tensor) -> tuple[list[str], list[list[list[dict[str, Any]]]]]:
    """The names of the layers, and for the first images the packed weights by layer and head, in rows of patches."""
    config = model.config
    P = config.grid**2
    views = instrument_views_of_model(model, pixels[:1])
    heads = sum(view.shape[1] for view in views)
    average = P * P * heads > CELLS
    count = min(len(pixels), MAPPED, CELLS // (P * P * (len(views) if average else heads)))
    if not count:
        return [], []
    back = patch_order(config.grid, config.window).argsort()
    found: list[list[list[dict[str, Any]]]] = [[] for _ in range(count)]
    for view in instrument_views_of_model(model, pixels[:count]):
        A = torch.cat([rows for _, rows in view.stochastic()], dim=2)[:, :, :P, :P].nan_to_num()
        A = A[:, :, back][..., back]  # (B, H, P, P), row by row
        for i, own in enumerate(A.abs().mean(dim=1, keepdim=True) if average else A):
            found[i].append([pack_heatmap(head.numpy()) for head in own])
    return [view.name for view in views], found


def read_pictures(path: Path) -> dict[str, Any] | None:
    """The content of a file, or None if there is no file; raises if it is not what `describe_pictures` returns."""
    if not path.exists():
        return None
    found = read_json_file(path)
    try:
        _check(found)
    except LinnetError:
        raise
    except (KeyError, TypeError, ValueError, AssertionError) as error:
        raise LinnetError(f"{path} is not a file of images ({FORMAT}): {error or 'a field is wrong'}") from None
    return dict(found)


def _check(found: Any) -> None:
    """Raise unless every field that the page uses is as it should be."""
    assert found["format"] == FORMAT, "format"
    size, channels, grid = (found[key] for key in ("size", "channels", "grid"))
    assert all(type(n) is int and 0 < n <= LARGEST_SIDE for n in (size, channels, grid)), "size, channels or grid"
    assert size % grid == 0, "grid"
    classes = found["classes"]
    assert isinstance(classes, list) and all(isinstance(name, str) for name in classes), "classes"
    confusion = np.asarray(found["confusion"], np.int64)
    assert confusion.shape == (len(classes), len(classes)), "confusion"
    assert isinstance(found["accuracy"], float) and type(found["samples"]) is int, "accuracy or samples"
    assert all(isinstance(name, str) for name in [found["split"], *found["layers"]]), "split or layers"
    for picture in found["pictures"]:
        assert len(base64.b64decode(picture["pixels"], validate=True)) == channels * size**2, "pixels"
        assert type(picture["label"]) is int and 0 <= picture["label"] < len(classes), "label"
        assert np.asarray(picture["shares"], np.float64).shape == (len(classes),), "shares"
        assert len(picture.get("maps", found["layers"])) == len(found["layers"]), "maps"
        for head in (head for layer in picture.get("maps", []) for head in layer):
            assert unpack_heatmap(head).shape == (grid**2, grid**2), "maps"


def picture_parts(named: Sequence[tuple[str, dict[str, Any] | None]]) -> list[dict[str, Any]]:
    """The images of each run in the form of the template and of its script."""
    parts = []
    for name, found in named:
        if found is None:
            continue
        rows = confusion_rows(found["classes"], found["confusion"])
        about = f"{found['accuracy']:.1%} of {found['samples']:,} images of the {found['split']} split are right"
        kept = ("size", "channels", "grid", "classes", "layers", "pictures")
        parts.append({"name": name, "about": about, "rows": rows, "data": {key: found[key] for key in kept}})
    return parts
