"""Table 7 on torch alone: the backend is torch while it measures, and what it was before afterwards."""

import os

from linnet.registry import STUDY
from linnet.screen import Screen


def test_every_system_is_measured_on_torch(monkeypatch):
    seen = []

    class Watching(Screen):
        def work(self, text):
            seen.append(os.environ.get("LINNET_BACKEND"))
            return super().work(text)

    study = STUDY["transnormer-table7-torch"]()
    monkeypatch.setattr(type(study), "systems", {"T2": "transnormer_t2"})
    monkeypatch.setenv("LINNET_BACKEND", "reference")
    found = study.result("n64", Watching(quiet=True))
    assert (seen, found["backend"], found["tokens"]) == (["torch"], "torch", 64)
    assert found["rows"][0]["training"] > 0
    assert os.environ.get("LINNET_BACKEND") == "reference"
