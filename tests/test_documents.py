"""The documents are true: their Python runs, their commands succeed, their links lead somewhere.

Blocks of one document run in order, in one folder, Python ones in one namespace. A block that takes long is
preceded by `<!-- smoke: linnet ... -->`, one comment for each command to run in its place.
"""

import os
import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import NamedTuple

import pytest

from linnet import __version__
from linnet.cli.app import run_app
from linnet.registry import ATTENTION, STUDY, TASK

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NOT_RUN = ("make", "git", "pip", "cd")  # these change the machine or need the network
FOLDERS = "linnet|docs|tests|recipes"


class Block(NamedTuple):
    """A fenced block of a document: its language, its text, and the smoke commands that stand in for it."""

    line: int
    language: str
    text: str
    smoke: list[str]


def blocks(path: Path) -> list[Block]:
    found: list[Block] = []
    smoke: list[str] = []
    fence, language, start, body = "", "", 0, []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        opening = re.match(r"\s*(```+)\s*(\w*)", line)
        comment = re.fullmatch(r"<!-- smoke: (.+?) -->", line.strip())
        if fence and line.strip() == fence:
            found.append(Block(start, language, textwrap.dedent("\n".join(body)), smoke))
            fence, smoke = "", []
        elif fence:
            body.append(line)
        elif opening:
            fence, language, start, body = opening[1], opening[2], number, []
        elif comment:
            smoke.append(comment[1])
        elif line.strip():
            assert not smoke, f"{path.name}:{number}: a smoke comment stands right before its block"
    assert not fence, f"{path.name}:{start}: a block without an end"
    return found


def commands(block: Block) -> list[str]:
    """The commands of a shell block; in a `console` block they are the lines after `$ `."""
    if block.smoke:
        return block.smoke
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def run_command(command: str) -> None:
    program = command.split()[0]
    if program in NOT_RUN:
        return
    assert program == "linnet", f"no rule for {command!r}: a document shows linnet, {', '.join(NOT_RUN)}"
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    run = ["bash", "-euo", "pipefail", "-c", command]
    done = subprocess.run(run, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


def prose(path: Path) -> str:
    return re.sub(r"^\s*```.*?^\s*```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_document = pytest.mark.parametrize("path", DOCUMENTS, ids=name)


@each_document
def test_every_block_runs(path, tmp_path, monkeypatch):
    if path.name == "huggingface.md":
        pytest.importorskip("transformers", reason="needs transformers, the extra `hf`")
    monkeypatch.chdir(tmp_path)
    ours = {each: ATTENTION[each] for each in ATTENTION.names()}
    monkeypatch.setattr(ATTENTION, "_added", dict(ours))  # what a document registers goes with it
    monkeypatch.setattr(TASK, "_added", {each: TASK[each] for each in TASK.names()})
    monkeypatch.setattr(STUDY, "_added", {each: STUDY[each] for each in STUDY.names()})
    namespace: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(path):
        if block.language == "python":
            assert not block.smoke, f"{name(path)}:{block.line}: smoke comments are for commands"
            numbered = "\n" * block.line + block.text  # so that a traceback names the document's line
            exec(compile(numbered, str(path), "exec"), namespace)
        elif block.language in {"bash", "console", "sh", "shell"}:
            for command in commands(block):
                run_command(command)


@each_document
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)|<img[^>]* src=\"([^\"]+)\"", prose(path)):
        link = "".join(target)
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        place = (path.parent / file).resolve() if file else path
        assert place.exists(), f"{name(path)}: {link}"
        assert place.is_relative_to(ROOT), f"{name(path)}: {link} leaves the project"
        if anchor:
            assert anchor in anchors(place), f"{name(path)}: {link}"


def anchors(path: Path) -> set[str]:
    """The anchors that a Markdown viewer gives to headings: lower case, words joined by hyphens."""
    headings = re.findall(r"^#+\s+(.*)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@each_document
def test_files_mentioned_exist(path):
    """`linnet/ops/linear.py` in backticks is a file; `linnet/ops/linear.py:linear_attention` is defined there.

    `linnet/attention/<name>.py` is a pattern and passes.
    """
    for file, defined in re.findall(rf"`((?:{FOLDERS})/[\w./-]+)(?:::?(\w+))?`", prose(path)):
        assert (ROOT / file).exists(), f"{name(path)}: {file}"
        if defined:
            found = re.search(rf"^\s*(?:def|class) {defined}\b", (ROOT / file).read_text(), flags=re.MULTILINE)
            assert found, f"{name(path)}: {file} does not define {defined}"


def test_every_name_on_the_walk_of_one_batch_really_runs(recipe, tmp_path):
    """docs/design.md follows a batch from `linnet train` to the report; a name that is never called misleads."""
    walk = (ROOT / "docs/design.md").read_text().split("## One batch")[1].split("\n## ")[0]
    named = set(re.findall(r"`(linnet/[\w/]+\.py):(\w+)`", walk))
    hops = [int(hop) for hop in re.findall(r"^(\d+)\. ", walk, flags=re.MULTILINE)]
    assert hops == list(range(1, len(hops) + 1))
    assert len(hops) <= 12
    called = set()

    def note(frame, event, _):
        if event == "call":
            file = frame.f_code.co_filename.removeprefix(f"{ROOT}/")
            called.update((file, part) for part in frame.f_code.co_qualname.split("."))

    before = sys.getprofile()
    threading.setprofile(note)  # checkpoints are written by a thread
    sys.setprofile(note)
    try:
        assert run_app(["train", str(recipe), "--out", str(tmp_path / "run"), "--set", "train.steps=2", "--json"]) == 0
        assert run_app(["report", str(tmp_path / "run"), "--out", str(tmp_path / "report.html")]) == 0
    finally:
        sys.setprofile(before)
        threading.setprofile(None)
    assert named
    assert named <= called, f"never called: {sorted(named - called)}"


def test_the_table_of_mechanisms_matches_the_registry(capfd):
    assert run_app(["list", "attention", "--markdown"]) == 0
    table = capfd.readouterr().out.strip()
    readme = (ROOT / "README.md").read_text()
    shown = re.search(r"<!-- attention table -->\n(.*?)\n<!-- end -->", readme, re.DOTALL)
    assert shown, "README.md has no <!-- attention table --> ... <!-- end -->"
    head, rows = shown[1].strip().splitlines()[:2], shown[1].strip().splitlines()[2:]
    assert rows[0].startswith("| `norm` "), "what to try first comes first"
    assert sorted([*head, *rows]) == sorted(table.splitlines()), (
        "paste the output of `linnet list attention --markdown`"
    )


def test_the_citation_names_this_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_reference_lists_every_public_name():
    import linnet
    from linnet import instruments, ops, testing

    listed = set(re.findall(r"^::: [\w.]*\.(\w+)$", (ROOT / "docs" / "api.md").read_text(), flags=re.MULTILINE))
    public = {*linnet.__all__, *ops.__all__, *instruments.__all__, *testing.__all__} - {"__version__", "LENGTHS"}
    assert public <= listed, f"docs/api.md lacks {sorted(public - listed)}"


@pytest.mark.slow
def test_the_website_builds_without_warnings(tmp_path):
    pytest.importorskip("mkdocstrings", reason="the extra `docs` is not installed")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    page = (tmp_path / "site" / "api" / "index.html").read_text()
    assert page.count("doc-heading") > 40
