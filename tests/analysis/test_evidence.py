"""Attention maps among the evidence: those that records hold, empty where nothing is seen."""

import numpy as np
from PIL import Image

from linnet.analysis.evidence import EVIDENCE
from linnet.analysis.heatmaps import pack, save_maps

NAME = "transnormer-figure2"


def test_records_without_maps_have_none():
    layers = [{"name": "layer 0 softmax", "values": {}}]
    record = {"row": "vanilla", "seed": 0, "analysis": {"causal": True, "layers": layers}}
    assert EVIDENCE[NAME].maps([record]) == []
    layers[0]["map"] = pack(np.full((4, 4), 0.25))
    both = {"row": "masked", "seed": 0, "analysis": {"causal": False, "layers": layers}}
    (_, first), (_, last) = EVIDENCE[NAME].maps([record, both])
    assert list(first) == list(last) == ["masked: softmax", "vanilla: softmax"]
    assert np.isnan(first["vanilla: softmax"]).sum() == 6
    assert not np.isnan(first["masked: softmax"]).any()


def test_what_is_not_seen_is_left_empty(tmp_path):
    seen = np.full((8, 8), 1 / 8)
    for name, weights in (("seen", seen), ("hidden", np.where(np.tri(8), seen, np.nan))):
        save_maps([("$ layer", {"$ a": weights}), ("signed", {"b": -weights})], tmp_path / f"{name}.png", 16)
    white = {path.stem: (np.array(Image.open(path).convert("L")) == 255).sum() for path in tmp_path.iterdir()}
    assert white["hidden"] > 1.2 * white["seen"]
