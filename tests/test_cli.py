"""The command line: useful help, one-line errors with the right exit code, valid JSON."""

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from linnet import __version__
from linnet.cli import app as cli
from linnet.cli import doctor, print_cli_json
from linnet.cli import list as list_command
from linnet.errors import InputError, LinnetError


@pytest.fixture
def run(capfd):
    """Run a command line in this process: (exit code, standard output, standard error)."""

    def call(*args: str) -> tuple[int, str, str]:
        code = cli.run_app(args)
        return code, *capfd.readouterr()

    return call


def one_line(err: str) -> str:
    assert err.startswith("linnet: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    return err


each_command = pytest.mark.parametrize("command", cli.COMMANDS)


def test_help_names_every_command(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert all(f"\n  {command} " in out for command in cli.COMMANDS)
    assert run()[:2] == (0, out)


@each_command
def test_help_shows_every_summary_in_full_at_80_columns(run, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    (line,) = [line for line in run("--help")[1].splitlines() if line.startswith(f"  {command} ")]
    assert line.endswith(".")
    assert not line.endswith("...")
    assert len(line) <= 80


@each_command
def test_help_of_a_command_teaches(run, command):
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert "Example" in out
    assert f"\n    linnet {command}" in out
    assert "--json" in out


@each_command
def test_a_bad_option_is_one_line_with_the_nearest(run, command):
    code, out, err = run(command, "--jsn")
    assert (code, out) == (2, "")
    assert "--jsn" in one_line(err)
    assert "--json" in err


@pytest.mark.parametrize("command", ["", *cli.COMMANDS])
def test_help_names_debug(run, command):
    code, out, _ = run(*filter(None, [command]), "--help")
    assert code == 0
    assert "--debug" in out


def test_a_bad_command_offers_the_nearest(run):
    code, out, err = run("lst", "attention")
    assert (code, out) == (2, "")
    assert "'lst'" in one_line(err)
    assert "'list'" in err


def test_a_missing_argument_is_named(run):
    code, out, err = run("list")
    assert (code, out) == (2, "")
    assert "KIND" in one_line(err)
    assert "attention, models, tasks, instruments, recipes, studies" in err


def test_a_bad_kind_offers_the_nearest(run):
    code, out, err = run("list", "atention")
    assert (code, out) == (2, "")
    assert "'atention': did you mean 'attention'?" in one_line(err)


def test_version(run):
    assert run("--version") == (0, f"linnet {__version__}\n", "")


@pytest.mark.parametrize("kind", list_command.KINDS)
def test_lists(run, kind):
    code, out, err = run("list", kind, "--json")
    rows = json.loads(out)
    names = [row["name"] for row in rows]
    assert (code, err) == (0, "")
    assert names
    assert names == sorted(names)
    code, out, err = run("list", kind)
    assert (code, err) == (0, "")
    assert [line.split()[0] for line in out.splitlines()] == ["name", *names]


def test_the_markdown_table_of_attention(run):
    code, out, _ = run("list", "attention", "--markdown")
    header, rule, *rows = out.splitlines()
    assert code == 0
    assert header == "| name | what | causal | recurrent state | cost | packed |"
    assert rule == "| --- | --- | --- | --- | --- | --- |"
    assert any(row.startswith("| `lln` | ") for row in rows)
    assert all(row.replace("\\|", "").count("|") == 7 for row in rows)


def test_two_formats_at_once_are_refused(run):
    code, out, err = run("list", "attention", "--json", "--markdown")
    assert (code, out) == (2, "")
    assert "--markdown" in one_line(err)


def test_doctor_names_each_part(run, monkeypatch, tmp_path):
    (tmp_path / "wikitext-2").mkdir()
    monkeypatch.setenv("LINNET_DATA", str(tmp_path))
    monkeypatch.delenv("LINNET_BACKEND", raising=False)
    code, out, err = run("doctor", "--json")
    report = json.loads(out)
    checks = {check["name"]: check for check in report["checks"]}
    assert (code, err, report["ok"]) == (0, "", True)
    assert checks["torch"]["found"].startswith("2.")
    assert checks["LINNET_DATA"]["found"].endswith("wikitext-2")
    assert checks["linear_attention"]["found"].startswith("backends reference, torch")
    assert all(check["advice"] for check in report["checks"] if check["status"] != "ok")
    code, out, _ = run("doctor")
    assert code == 0
    assert len(out.splitlines()) == len(report["checks"]) + 1


@pytest.mark.parametrize("variable", ["LINNET_DATA", "LINNET_BACKEND"])
def test_doctor_says_what_is_wrong(run, monkeypatch, variable):
    monkeypatch.setenv(variable, "nowhere")
    code, out, _ = run("doctor", "--json")
    (wrong,) = [check for check in json.loads(out)["checks"] if check["status"] == "wrong"]
    assert code == 1
    assert wrong["name"] == variable
    assert "nowhere" in wrong["found"]


def test_doctor_builds_the_kernels_or_says_why_not(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LINNET_BACKEND", "torch")
    found = {check["name"]: check for check in json.loads(run("doctor", "--json")[1])["checks"]}
    assert found["cpu kernels"]["found"] == "not compiled yet" and "--build" in found["cpu kernels"]["advice"]
    monkeypatch.setenv("PATH", str(tmp_path))  # which has no compiler
    code, out, _ = run("doctor", "--build", "--json")
    (wrong,) = [check for check in json.loads(out)["checks"] if check["status"] == "wrong"]
    assert (code, wrong["name"]) == (1, "cpu kernels")
    assert "no C++ compiler" in wrong["found"] and "install" in wrong["advice"]


def test_doctor_says_that_there_is_no_compiler(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("LINNET_BACKEND", "torch")
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, _ = run("doctor", "--json")
    found = {check["name"]: check for check in json.loads(out)["checks"]}["cpu kernels"]
    assert (code, found["status"]) == (0, "missing")
    assert "no C++ compiler" in found["found"] and "install g++ or clang" in found["advice"]
    assert list(tmp_path.iterdir()) == []


def test_doctor_without_data(monkeypatch, tmp_path):
    assert doctor._data(None).status == "missing"
    assert doctor._data(str(tmp_path)).status == "missing"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InputError("width: 7 is odd"), 2, "linnet: width: 7 is odd\n"),
        (LinnetError("stopped\nat step 3"), 1, "linnet: stopped at step 3\n"),
        (OSError(errno.ENOSPC, "No space left", "a/b"), 1, "linnet: No space left: a/b\n"),
        (PermissionError(errno.EACCES, "Permission denied", "c"), 1, "linnet: Permission denied: c\n"),
        (KeyboardInterrupt(), 130, ""),
        (
            ZeroDivisionError("oops"),
            1,
            "linnet: ZeroDivisionError: oops (a bug in linnet; `linnet --debug list models` shows the traceback)\n",
        ),
    ],
)
def test_a_failure_is_one_line_and_a_code(run, monkeypatch, error, code, line):
    def fail():
        raise error

    monkeypatch.setitem(list_command.KINDS, "models", fail)
    assert run("list", "models") == (code, "", line)
    if not isinstance(error, KeyboardInterrupt):
        with pytest.raises(type(error)):
            cli.run_app(["--debug", "list", "models"])


NO_MEMORY = "linnet: not enough memory: a smaller model, train.batch or data.context needs less\n"


def test_running_out_of_memory_is_not_reported_as_a_bug(run, monkeypatch):
    import torch

    for ask in (lambda: bytearray(1 << 60), lambda: torch.empty(1 << 58)):
        monkeypatch.setitem(list_command.KINDS, "models", ask)
        assert run("list", "models") == (1, "", NO_MEMORY)


def test_a_limit_on_memory_that_torch_does_not_fit_into_is_no_defect(tmp_path):
    limited = f"ulimit -v 400000; exec {sys.executable} -m linnet audit norm"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", NO_MEMORY)


def test_a_limit_on_processes_is_one_line():
    program = """
import os, resource, sys
import linnet.screen
from linnet.cli.app import run_app as run
resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
if os.getuid() == 0:
    os.setuid(65534)  # the limit does not bind root
sys.exit(run(["audit", "norm"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the limit is 1 (ulimit -u)" in one_line(done.stderr)


def test_a_folder_whose_name_is_not_utf8(tmp_path):
    """It is an ordinary folder: JSON has it escaped, and standard output has its bytes."""
    folder = os.fsdecode(bytes(tmp_path) + b"/a\xff")
    program = [sys.executable, "-m", "linnet"]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}

    def call(*args):
        return subprocess.run([*program, *args], capture_output=True, check=True, env=environment).stdout

    out = call("train", "smoke", "--out", folder, "--set", "train.steps=1", "--set", "train.eval_every=0", "--json")
    assert json.loads(out)["folder"] == folder
    assert call("report", folder) == os.fsencode(f"{folder}/report.html\n")
    assert "a\\udcff" in Path(folder, "report.html").read_text()
    assert json.loads(call("verify", folder, "--json"))["folder"] == folder
    assert os.fsencode(folder) in call("resume", folder)


def test_json_has_null_for_a_number_that_is_not_finite(capsys):
    print_cli_json({"a": math.inf, "b": [math.nan, (1.5, -math.inf)], "c": {"d": 2}})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, [1.5, None]], "c": {"d": 2}}


def test_the_installed_program_and_the_module_agree():
    for program in ([Path(sys.executable).with_name("linnet")], [sys.executable, "-m", "linnet"]):
        done = subprocess.run([*program, "list", "nothing"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        one_line(done.stderr)


def test_a_closed_pipe_is_not_an_error():
    command = f"{sys.executable} -m linnet list attention --markdown | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["list attention", "--version", "list nothing"])
def test_closed_streams_are_not_an_error(command):
    redirected = f"{sys.executable} -m linnet {command} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", redirected], check=False).returncode == (2 if "nothing" in command else 0)
