"""Promise 20: no command uses the network, and a report loads nothing and runs no text of a run."""

import json
import os
import tempfile
from pathlib import Path

from linnet.cli.app import run_app
from linnet.config import dump_config
from linnet.report.page import write_report_page
from linnet.storage import read_json_file, write_json_file
from tests.prove.code import every_command, watched_command
from tests.prove.promise import Trials, promise
from tests.prove.runs import child, small_run
from tests.report.browser import browser, program

EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostby", "socket.bind", "socket.sendto", "urllib.Request")
PARTS = ("<script>H</script>", "<img src=x onerror='H'>", "<svg/onload=H>", '"><script>H</script>', "' onmouseover='H'")
PARTS += (
    "javascript:H",
    "</style><script>H</script>",
    "<!--<script>H</script>-->",
    "{{H}}",
    "${H}",
    "<iframe srcdoc='H'>",
)
PARTS += (
    "\u202e<script>H</script>",
    "</title><script>H</script>",
    "<a href='javascript:H'>x</a>",
    "\\u003cscript\\u003eH",
)
PARTS += (
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<img src=//evil.example/x.png>",
    "&lt;script&gt;H",
    "]]>H",
)
PARTS += ("<base href=//evil.example/>", "<meta http-equiv=refresh content='0;url=//evil.example'>", "<form action=x>")
PARTS += ("</script><script>H</script>", "<math><script>H</script>", "\x00<script>H</script>")


@promise(
    "20",
    "Everything works offline, and a report loads nothing and runs no text of a run.",
    "An audit hook ends the process at any use of a socket while every command runs; 50 hostile strings in the names, "
    "settings, tokens and texts of runs, whose reports are opened in a real browser.",
)
def offline_and_inert(trials: Trials) -> None:
    """All commands, then 50 pages."""
    folder = trials.folder
    recipe = folder / "recipe.toml"
    recipe.write_text(dump_config(small_run(folder, steps=2)))
    for command in every_command(folder, recipe)[: 4 if trials.short else None]:
        code = os.waitstatus_to_exitcode(os.waitpid(child(lambda c=command: watched_command(c, EVENTS)), 0)[1])
        trials.check(code == 0, f"linnet {' '.join(command)}: exit code {code}")
    if program() is None:
        trials.skipped.append("reports in a browser: chromium is not installed")
        return
    run = folder / "run"
    if not (run / "analysis/analysis.json").exists():
        os.waitpid(child(lambda: run_app(["analyze", str(run), "--samples", "1"])), 0)
    whole = {path: path.read_text() for path in (run / "analysis/analysis.json", run / "environment.json")}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, browser(Path(profile)) as chromium:
        for i in range(trials.number(50, 2)):
            hostile = PARTS[i % len(PARTS)].replace("H", f"window.hacked={i + 1}")
            _spoil(run, hostile, into_name=i >= len(PARTS))
            with trials.survives(f"hostile text {hostile!r}"):
                page = write_report_page([run], folder / "page.html")
                chromium.requests.clear()
                chromium.open(page)
                tabs = "document.querySelectorAll('[role=tab]')"
                for tab in range(int(chromium.script(f"{tabs}.length"))):
                    chromium.script(f"{tabs}[{tab}].click()")
                assert chromium.script("typeof window.hacked") == "undefined", "the text ran"
                asked = [url for url in chromium.requests if not url.startswith(("data:", "blob:", "file:"))]
                assert not asked, asked
                assert chromium.errors == [], chromium.errors
            for path, text in whole.items():
                path.write_text(text)


def _spoil(run: Path, hostile: str, into_name: bool) -> None:
    """Put a text into every place of a run that a report shows."""
    analysis = read_json_file(run / "analysis/analysis.json")
    analysis["tokens"] = [hostile] * len(analysis["tokens"])
    for layer in analysis["layers"]:
        layer["name"] = f"{layer['name']} {hostile}"
        layer["notes"] = dict.fromkeys(layer["notes"], hostile) if into_name else layer["notes"]
    write_json_file(run / "analysis/analysis.json", analysis)
    about = {key: hostile if isinstance(value, str) else value for key, value in _table(run).items()}
    write_json_file(run / "environment.json", {**about, hostile: hostile})
    write_json_file(
        run / "sample.json", {"prompt": hostile, "text": hostile, "command": hostile, "checkpoint": hostile}
    )


def _table(run: Path) -> dict[str, object]:
    return dict(json.loads((run / "environment.json").read_text()))
