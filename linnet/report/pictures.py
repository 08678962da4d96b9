"""The images part of a report: predictions, a confusion matrix, and what each patch of an image reads.

`linnet analyze` writes them to `analysis/pictures.json` in the folder of a run that classifies images. The file is
read without trusting it: everything that the page uses is checked.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linnet.figures.heatmap import pack_heatmap, unpack_heatmap
from linnet.instruments.base import instrument_views_of_model
from linnet.models.backbone import Model
from linnet.models.patches import patch_order
from linnet.report.parts import (
    check_report_confusion,
    is_report_number,
    read_report_part,
    report_confusion_rows,
    require_report_field,
)

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
    return read_report_part(path, "images", FORMAT, _check)


def _check(found: Any) -> None:
    """Raise unless every field that the page uses is as it should be."""
    size, channels, grid = (found[key] for key in ("size", "channels", "grid"))
    sizes = all(type(n) is int and 0 < n <= LARGEST_SIDE for n in (size, channels, grid))
    require_report_field(sizes, "size, channels or grid")
    require_report_field(size % grid == 0, "grid")
    classes = found["classes"]
    check_report_confusion(classes, found["confusion"])
    rated = is_report_number(found["accuracy"]) and type(found["samples"]) is int
    require_report_field(rated, "accuracy or samples")
    named = all(isinstance(name, str) for name in [found["split"], *found["layers"]])
    require_report_field(named, "split or layers")
    for picture in found["pictures"]:
        pixels = base64.b64decode(picture["pixels"], validate=True)
        require_report_field(len(pixels) == channels * size**2, "pixels")
        require_report_field(type(picture["label"]) is int and 0 <= picture["label"] < len(classes), "label")
        shares = picture["shares"]
        require_report_field(len(shares) == len(classes) and all(map(is_report_number, shares)), "shares")
        maps = picture.get("maps", [])
        require_report_field(len(maps) == len(found["layers"]) or "maps" not in picture, "maps")
        for head in (head for layer in maps for head in layer):
            require_report_field(unpack_heatmap(head).shape == (grid**2, grid**2), "maps")


def picture_parts(named: Sequence[tuple[str, dict[str, Any] | None]]) -> list[dict[str, Any]]:
    """The images of each run in the form of the template and of its script."""
    parts = []
    for name, found in named:
        if found is None:
            continue
        rows = report_confusion_rows(found["classes"], found["confusion"])
        about = f"{found['accuracy']:.1%} of {found['samples']:,} images of the {found['split']} split are right"
        kept = ("size", "channels", "grid", "classes", "layers", "pictures")
        parts.append({"name": name, "about": about, "rows": rows, "data": {key: found[key] for key in kept}})
    return parts
