"""The page on long texts: ratios to the original, and the crossover."""

import json

from linnet.registry import STUDY
from linnet.studies.conversion_length import SYSTEMS


def test_the_page_names_the_crossover(tmp_path):
    about = {"threads": 1, "cores": 2, "machine": "cpu", "torch": "2", "linnet": "0.2"}
    seconds = {512: (1.0, 2.0, 1.5), 1024: (3.0, 2.0, 4.0), 2048: (9.0, 3.0, 12.0)}
    for tokens, values in seconds.items():
        rows = [
            {"attention": name, "seconds": s, "low": s, "high": s, "others": 0.5, "memory": 10**6}
            for name, s in zip(SYSTEMS, values, strict=True)
        ]
        record = {"study": "conversion-length", "schema": 2, "command": "linnet reproduce conversion-length"}
        record |= {"tokens": tokens, "rows": rows, "settings": {}, "environment": about}
        (tmp_path / f"n{tokens}.json").write_text(json.dumps(record))
    study = STUDY["conversion-length"]()
    page = study.to_markdown(study.read(tmp_path))
    assert "| hedgehog | 2.00 (0.50x) | 2.00 (1.50x) | 3.00 (3.00x) | 1,024 tokens |" in page
    assert "| lln_diag | 1.50 (0.67x) | 4.00 (0.75x) | 12.00 (0.75x) | not up to 2,048 |" in page
    assert [line.name for line in study.figures(study.read(tmp_path), "")[0].series] == list(SYSTEMS.values())
