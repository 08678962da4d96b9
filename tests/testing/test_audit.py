"""The audit finds leaks, its verdict covers only linnet, and docs/audit.md shows its result."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import linnet
from linnet.errors import InputError
from linnet.testing.audit import (
    AuditCase,
    AuditRow,
    audit_cell,
    audit_failures,
    audit_markdown,
    choose_audit_cases,
    run_audit,
)
from linnet.testing.peers import Peer

DOCS = Path(__file__).parents[2] / "docs"
LEAKY = {"statistics": "tensor"}


class Softmax(nn.Module):
    """A correct bidirectional attention."""

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return nn.functional.scaled_dot_product_attention(q, k, v)


class Noisy(Softmax):
    """The same, but it drops random keys, even in evaluation mode."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        mask = torch.rand(q.shape[2]) < 0.5
        mask[0] = True
        if key_mask is not None:
            mask = (mask & key_mask)[:, None, None]
        return nn.functional.scaled_dot_product_attention(q, k, v, mask.expand(*q.shape[:3], -1))


class Broken(Softmax):
    """It runs except in bfloat16."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return super().forward(q, k, v) * {torch.float32: 1}[q.dtype]


def peer_case(name: str, adapter: type[nn.Module], causal: bool = False, random: bool = False) -> AuditCase:
    return AuditCase(name, "peer", causal, peer=Peer(name, "torch", causal, adapter, random=random))


def checks(row: AuditRow) -> dict[str, float | None]:
    return {check["name"]: check["worst"] for check in row["checks"]}


def test_every_form_of_every_mechanism_is_a_row():
    cases = choose_audit_cases(peers=False)
    about = {name: linnet.describe_attention(name) for name in linnet.list_attention()}
    wanted = {(name, form) for name in about for form in ("causal", "bidirectional") if about[name][form]}
    assert {(case.name, case.form) for case in cases if case.group == "ours"} == wanted
    names = [case.name for case in cases]
    assert names == sorted(names)


def test_names_choose_mechanisms_and_packages():
    assert {case.name for case in choose_audit_cases(["lln"])} == {"lln", "lln statistics=tensor"}
    chosen = choose_audit_cases(["linformer", "elu"])
    assert [(case.name, case.group) for case in chosen] == [
        ("elu", "ours"),
        ("elu", "ours"),
        ("linformer", "ours"),  # a mechanism and a package
        ("linformer", "peer"),
    ]
    with pytest.raises(InputError, match=r"unknown attention 'llm': did you mean 'lln'\?"):
        choose_audit_cases(["llm"])
    with pytest.raises(InputError, match="unknown attention 'performer-pytorch'"):
        choose_audit_cases(["performer-pytorch"], peers=False)


def test_ours_pass_and_the_released_statistics_leak():
    told: list[tuple[int, int]] = []
    audit = run_audit(choose_audit_cases(["lln"], peers=False), lambda done, total: told.append((done, total)))
    assert told == [(done, 4) for done in range(5)]
    assert audit["passed"]
    assert not audit_failures(audit)
    clean, _, released, _ = audit["rows"]
    assert (clean["name"], clean["form"], clean["passed"]) == ("lln", "causal", True)
    assert audit_cell(clean, "reads future") == ("0", True)
    assert (released["group"], released["form"], released["passed"]) == ("by design", "causal", False)
    assert checks(released)["reads the future"] > 0.1
    assert checks(released)["reads batch mates"] > 0.1
    assert audit_cell(released, "recurrent form") == ("-", None)
    json.dumps(audit, allow_nan=False)


def test_the_same_numbers_again():
    first, second = (run_audit([AuditCase("norm", "ours", True, "norm")])["rows"][0] for _ in range(2))
    assert first["checks"] == second["checks"]


def test_a_mechanism_of_linnet_that_fails_is_reported():
    audit = run_audit([AuditCase("mine", "ours", True, "lln", LEAKY)])
    assert not audit["passed"]
    assert any(line.startswith("mine, causal: reads the future: 0.") for line in audit_failures(audit))


def test_peers_are_measured_and_never_change_the_verdict():
    missing = AuditCase("absent", "peer", False, peer=Peer("absent", "a-package-that-nobody-wrote", False, Softmax))
    cases = [peer_case("good", Softmax), peer_case("leaky", Softmax, causal=True), peer_case("broken", Broken), missing]
    audit = run_audit(cases)
    good, leaky = audit["rows"]
    assert audit["passed"]
    assert audit["versions"]["torch"] == torch.__version__
    assert good["passed"]
    assert not leaky["passed"]
    assert audit_cell(leaky, "reads future")[1] is False
    assert audit_cell(good, "reads future") == audit_cell(good, "padding") == ("-", None)
    reasons = {skip["name"]: skip["reason"] for skip in audit["skipped"]}
    assert reasons["absent"] == "pip install '.[peers]' in a checkout, else pip install 'linnet-attention[peers]'"
    assert reasons["broken"].startswith("failed while it was measured: KeyError")


def test_chance_is_not_called_a_leak():
    """Random draws are fixed for every check except the one about repeated calls."""
    (row,) = run_audit([peer_case("noisy", Noisy, random=True)])["rows"]
    assert checks(row)["reads batch mates"] <= 1e-6
    assert audit_cell(row, "second call")[1] is False


def test_infinity_is_written_as_valid_json():
    class NotANumber(Softmax):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return super().forward(q, k, v) * (torch.nan if q.dtype == torch.bfloat16 else 1)

    audit = run_audit([peer_case("nan", NotANumber)])
    assert checks(audit["rows"][0])["bfloat16 differs from float32"] is None
    assert "| **inf** | 0 | fails |" in audit_markdown(audit, ["peer"])
    json.dumps(audit, allow_nan=False)


def test_the_document_shows_the_stored_result():
    audit = json.loads((DOCS / "results" / "audit.json").read_text())
    shown = dict(re.findall(r"<!-- audit (\w+) -->\n(.*?)\n<!-- end -->", (DOCS / "audit.md").read_text(), re.DOTALL))
    versions = ", ".join(f"{package} {version}" for package, version in audit["versions"].items())
    assert shown == {
        "ours": audit_markdown(audit, ["ours", "by design"]),
        "peers": audit_markdown(audit, ["peer"]),
        "versions": f"{versions}.",
    }
    assert audit["passed"]
    told = (DOCS / "audit.md").read_text()
    assert all(f"`{skip['name']}`" in told for skip in audit["skipped"]), "the page names what was not measured"
