"""Figure 2: its committed maps are complete, on their page, and empty where nothing is seen; its claims are open."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from linnet.figures.heatmap import pack_heatmap, save_heatmaps, unpack_heatmap
from linnet.registry import STUDY
from linnet.studies.base import study_maps_name
from linnet.studies.claims import OPEN

STUDIED = STUDY["transnormer-figure2"]()
FOLDER = Path(__file__).parents[2] / "docs/results/transnormer-figure2-cpu"
PICTURE = f"{FOLDER.name}.png"


def test_each_committed_system_has_its_maps():
    records = STUDIED.read(FOLDER)
    grid = STUDIED.maps(records)
    assert [row for row, _ in grid] == ["first layer", "last layer"]
    for _, maps in grid:
        assert {title.partition(": ")[0] for title in maps} == {record["row"] for record in records}
        for weights in maps.values():
            assert weights.shape == (64, 64)
            assert (np.isnan(weights) == (np.tri(64) == 0)).all()  # causal: no key of the future
            assert np.nansum(weights, axis=1) == pytest.approx(1, abs=1e-3)
    for record in records:
        kept = [layer["map"] for layer in record["analysis"]["layers"] if "map" in layer]
        assert len(json.dumps(kept)) < 60_000
        assert all(np.triu(unpack_heatmap(packed), 1).max() == 0 for packed in kept)


def test_the_committed_maps_are_on_their_page():
    records = STUDIED.read(FOLDER)
    link = f"![attention maps: first layer and last layer]({study_maps_name(PICTURE)})"
    assert link in STUDIED.rendered(records, PICTURE)
    assert link in FOLDER.with_suffix(".md").read_text()


def test_records_without_maps_have_none():
    layers = [{"name": "layer 0 softmax", "values": {}}]
    record = {"row": "vanilla", "seed": 0, "analysis": {"causal": True, "layers": layers}}
    assert STUDIED.maps([record]) == []
    layers[0]["map"] = pack_heatmap(np.full((4, 4), 0.25))
    both = {"row": "masked", "seed": 0, "analysis": {"causal": False, "layers": layers}}
    (_, first), (_, last) = STUDIED.maps([record, both])
    assert list(first) == list(last) == ["masked: softmax", "vanilla: softmax"]
    assert np.isnan(first["vanilla: softmax"]).sum() == 6
    assert not np.isnan(first["masked: softmax"]).any()


def test_what_is_not_seen_is_left_empty(tmp_path):
    seen = np.full((8, 8), 1 / 8)
    for name, weights in (("seen", seen), ("hidden", np.where(np.tri(8), seen, np.nan))):
        save_heatmaps([("$ layer", {"$ a": weights}), ("signed", {"b": -weights})], tmp_path / f"{name}.png", 16)
    white = {path.stem: (np.array(Image.open(path).convert("L")) == 255).sum() for path in tmp_path.iterdir()}
    assert white["hidden"] > 1.2 * white["seen"]


def test_one_seed_and_a_mixture_of_causes_leave_every_claim_open():
    claims = STUDIED.claims(STUDIED.read(FOLDER))
    assert {claim.verdict for claim in claims} == {OPEN}
    assert "says nothing about NormAttention alone" in claims[-1].evidence


def test_the_note_has_the_area_of_uniform_attention_over_what_a_query_sees():
    assert "uniform attention has 0.40." in STUDIED.to_markdown(STUDIED.read(FOLDER))
