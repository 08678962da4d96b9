"""`linnet audit`: the table, the JSON, the exit code."""

import json
from pathlib import Path

from linnet.cli import app, audit
from linnet.testing import audit as bench

RESULT = Path(__file__).parents[2] / "docs" / "results" / "audit.json"


def test_json(capfd):
    code = app.run_app(["audit", "elu", "--no-peers", "--json"])
    out, err = capfd.readouterr()
    report = json.loads(out)
    assert (code, err, report["passed"], report["skipped"]) == (0, "", True, [])
    assert [(row["name"], row["form"]) for row in report["rows"]] == [("elu", "causal"), ("elu", "bidirectional")]
    assert set(report["versions"]) == {"linnet", "python", "torch"}
    future = next(check for check in report["rows"][0]["checks"] if check["name"] == "reads the future")
    assert future == {"name": "reads the future", "worst": 0.0, "bound": 0.0, "passed": True}
    assert all(row["seconds"] > 0 for row in report["rows"])


def test_a_failure_of_ours_is_exit_code_1(capfd, monkeypatch):
    leaky = bench.AuditCase("mine", "ours", True, "lln", {"statistics": "tensor"})
    monkeypatch.setattr(bench, "choose_audit_cases", lambda names, peers: [leaky])
    monkeypatch.setattr("linnet.screen.PAUSE", 3600.0)  # on a slow machine it would say how far it is
    assert app.run_app(["audit"]) == 1
    out, err = capfd.readouterr()
    assert "FAILS mine, causal: reads the future: 0." in out
    assert err == "measuring 1 attentions\n"


def test_an_unknown_name_is_one_line(capfd):
    assert app.run_app(["audit", "sofmax", "--no-peers"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("linnet: unknown attention 'sofmax': did you mean 'softmax'?")
    assert err.count("\n") == 1


def test_the_table_fits_120_columns(capfd):
    result = json.loads(RESULT.read_text())
    audit._print({**result, "skipped": [{"name": "x", "form": "causal", "reason": "pip install '.[peers]'"}]})
    lines = capfd.readouterr().out.splitlines()
    table = lines[: 2 + len(result["rows"])]
    assert max(map(len, table)) <= 120
    assert [line.split("  ")[0] for line in table[2:]] == [row["name"] for row in result["rows"]]
    assert "not measured: x: pip install '.[peers]'" in lines
