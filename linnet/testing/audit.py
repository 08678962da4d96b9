"""The audit: `check_attention` on every registered mechanism and on the peers that are installed.

The result is plain data, so the table on the screen, the table in docs/audit.md and the JSON agree.
"""

import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import torch

from linnet.attention.base import describe_attention
from linnet.errors import unknown_name_error
from linnet.figures.table import Table
from linnet.registry import ATTENTION
from linnet.testing.contract import Check, check_attention
from linnet.testing.contract_trial import contract_difference
from linnet.testing.peers import PEERS, MissingPeerError, Peer, Seeded

HEADS, HEAD_DIM = 2, 8
REPEAT = "a second call differs"
COLUMNS = {  # heading -> name of the check
    "reads future": "reads the future",
    "batch mates": "reads batch mates",
    "padding": "padding changes the result",
    "packing": "packing changes the result",
    "recurrent form": "recurrent form differs",
    "bfloat16": "bfloat16 differs from float32",
    "second call": REPEAT,
}
Group = Literal["ours", "by design", "peer"]  # only "ours" must pass; "by design" leaks and documents it


class _AuditCheck(TypedDict):
    """One check of a row; `worst` is None if a result was not finite or the call failed."""

    name: str
    worst: float | None
    bound: float
    passed: bool


class AuditRow(TypedDict):
    """One attention in one form."""

    name: str
    group: Group
    form: str
    passed: bool
    seconds: float
    checks: list[_AuditCheck]


class Audit(TypedDict):
    """The result of an audit; `passed` refers only to linnet's own mechanisms."""

    passed: bool
    versions: dict[str, str]
    rows: list[AuditRow]
    skipped: list[dict[str, str]]


@dataclass(frozen=True)
class AuditCase:
    """One row to measure."""

    name: str
    group: Group
    causal: bool
    mechanism: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    peer: Peer | None = None

    @property
    def form(self) -> str:
        return "causal" if self.causal else "bidirectional"


def choose_audit_cases(names: Sequence[str] = (), peers: bool = True) -> list[AuditCase]:
    """The rows in order: ours by name, then the peers. `names` are mechanisms or packages; by default all."""
    forms = {"causal": True, "bidirectional": False}
    ours = [
        AuditCase(name, "ours", causal, name)
        for name in ATTENTION.names()
        for form, causal in forms.items()
        if describe_attention(name)[form]
    ]
    tensor = {"statistics": "tensor"}  # as in the code of the LLN paper
    released = [AuditCase("lln statistics=tensor", "by design", causal, "lln", tensor) for causal in forms.values()]
    foreign = [AuditCase(peer.name, "peer", peer.causal, peer=peer) for peer in PEERS] if peers else []
    cases = sorted([*ours, *released], key=lambda case: case.name) + foreign
    keys = [case.peer.package if case.peer else case.mechanism for case in cases]
    for name in names:
        if name not in keys:
            raise unknown_name_error("attention", name, set(keys))
    return [case for case, key in zip(cases, keys, strict=True) if not names or key in names]


def run_audit(cases: Sequence[AuditCase], show: Callable[[int, int], None] = lambda done, total: None) -> Audit:
    """Measure every case, calling `show` with progress; a peer that is absent or fails is skipped with the reason."""
    rows: list[AuditRow] = []
    skipped: list[dict[str, str]] = []
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for done, case in enumerate(cases):
        show(done, len(cases))
        if case.peer is None:
            rows.append(_row(case, _measure_ours))
            continue
        try:
            rows.append(_row(case, _measure_peer))
            versions[case.peer.package] = str(case.peer.version)
        except MissingPeerError as error:
            skipped.append({"name": case.name, "form": case.form, "reason": str(error)})
        except Exception as error:  # noqa: BLE001  another library may raise anything, and that is its result, not our failure
            reason = f"failed while it was measured: {type(error).__name__}: {error}"
            skipped.append({"name": case.name, "form": case.form, "reason": reason})
    show(len(cases), len(cases))
    passed = all(row["passed"] for row in rows if row["group"] == "ours")
    return {"passed": passed, "versions": versions, "rows": rows, "skipped": skipped}


def _row(case: AuditCase, measure: Callable[[AuditCase], list[Check]]) -> AuditRow:
    start = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # for the mechanism's own parameters
        checks = measure(case)
    return {
        "name": case.name,
        "group": case.group,
        "form": case.form,
        "passed": all(check.passed for check in checks),
        "seconds": round(time.perf_counter() - start, 2),
        "checks": [
            {
                "name": check.name,
                "worst": check.worst if math.isfinite(check.worst) else None,
                "bound": check.bound,
                "passed": check.passed,
            }
            for check in checks
        ],
    }


def _measure_ours(case: AuditCase) -> list[Check]:
    return check_attention(
        case.mechanism, causal=case.causal, heads=HEADS, head_dim=HEAD_DIM, raises=False, options=case.options
    ).checks


def _measure_peer(case: AuditCase) -> list[Check]:
    """Measure a peer. If it draws random numbers, they are fixed, except in the check of a second call."""
    peer = case.peer
    assert peer is not None
    attention = peer.load(HEADS, HEAD_DIM)
    if not peer.random:
        return check_attention(attention, causal=peer.causal, heads=HEADS, head_dim=HEAD_DIM, raises=False).checks
    seeded = Seeded(attention)
    checks = check_attention(seeded, causal=peer.causal, heads=HEADS, head_dim=HEAD_DIM, raises=False).checks
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        q, k, v = (torch.randn(2, HEADS, 256, HEAD_DIM) for _ in range(3))
        worst = contract_difference(attention(q, k, v), attention(q, k, v))
    return [Check(REPEAT, worst, check.bound) if check.name == REPEAT else check for check in checks]


def audit_cell(row: AuditRow, heading: str) -> tuple[str, bool | None]:
    """The text of a table cell, and whether the check passed (None if the attention does not promise it)."""
    for check in row["checks"]:
        if check["name"] == COLUMNS[heading]:
            return _number(check["worst"]), check["passed"]
    return "-", None


def _number(worst: float | None) -> str:
    if worst is None:
        return "inf"
    return "0" if worst == 0 else f"{worst:.2g}" if worst >= 1e-3 else f"{worst:.0e}"


def audit_verdict(row: AuditRow) -> str:
    """The verdict on a row, in one word."""
    return "passes" if row["passed"] else "fails"


def audit_markdown(audit: Audit, groups: Sequence[Group]) -> str:
    """The Markdown table of these groups; failed checks are bold."""
    columns, lines = ["attention", "form", *COLUMNS, "verdict"], []
    for row in audit["rows"]:
        if row["group"] in groups:
            cells = [audit_cell(row, heading) for heading in COLUMNS]
            shown = [f"**{text}**" if passed is False else text for text, passed in cells]
            lines.append([f"`{row['name']}`", row["form"], *shown, audit_verdict(row)])
    return Table("", columns, lines, columns).to_markdown()


def audit_failures(audit: Audit) -> list[str]:
    """One line per failed check of our own mechanisms, including checks without a column."""
    return [
        f"{row['name']}, {row['form']}: {check['name']}: {_number(check['worst'])} (allowed {_number(check['bound'])})"
        for row in audit["rows"]
        for check in row["checks"]
        if row["group"] == "ours" and not check["passed"]
    ]
