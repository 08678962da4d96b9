"""The scripts in `examples` run as shown, are short, and print what they promise."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from linnet.registry import ATTENTION

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
NAMES = (
    "classify_long_sequences",
    "own_mechanism",
    "stream_tokens",
    "swap_attention",
    "train_long_sequence",
    "train_on_text",
)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """`run("name", *arguments)` runs a script as its own program and returns what it prints."""
    monkeypatch.setattr(ATTENTION, "_added", {each: ATTENTION[each] for each in ATTENTION.names()})
    places = {path.stem: path for path in EXAMPLES}

    def script(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(places[name]), *arguments])
        runpy.run_path(str(places[name]), run_name="__main__")
        return capsys.readouterr().out

    return script


def test_there_are_six_short_scripts() -> None:
    assert tuple(path.stem for path in EXAMPLES) == NAMES
    assert all(len(path.read_text().splitlines()) <= 60 for path in EXAMPLES)


def test_swapped_softmax_computes_the_same(run) -> None:
    out = run("swap_attention")
    softmax, lln = (float(each) for each in re.findall(r"largest difference (\S+)", out))
    assert softmax < 1e-5 < lln < 1


def test_a_linear_state_has_a_constant_size(run) -> None:
    sizes = {
        name: (before, after)
        for name, before, after in re.findall(r"(\w+) +(\d+) KiB.*? (\d+) KiB", run("stream_tokens"))
    }
    assert sizes["norm"][0] == sizes["norm"][1] and sizes["lln"][0] == sizes["lln"][1]
    assert int(sizes["softmax"][1]) == pytest.approx(1.5 * int(sizes["softmax"][0]), rel=0.01)


def test_an_own_mechanism_keeps_the_contract_and_a_wrong_one_is_caught(run) -> None:
    out = run("own_mechanism")
    assert out.count(" checks passed\n") == 2 and "wrote 10 tokens" in out
    assert "that reads the future is caught" in out and "FAIL" in out


def test_a_model_learns_a_text(run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("to be or not to be, that is the question. " * 30)
    out = run("train_on_text", str(tmp_path / "text"), "20")
    bits = [float(each) for each in re.findall(r"(\S+) bits per byte", out)]
    assert len(bits) == 5 and bits[-1] < bits[0] < 8
    (tmp_path / "text").write_text("tiny")
    with pytest.raises(SystemExit, match="has 4 bytes: more than 128 are needed"):
        run("train_on_text", str(tmp_path / "text"))


def test_a_classifier_trains_on_long_sequences(run) -> None:
    assert re.fullmatch(
        r"norm: accuracy \d+\.\d% on held-out files, chance 25\.0%\n", run("classify_long_sequences", "1")
    )


@pytest.mark.slow
def test_a_classifier_beats_chance_on_held_out_files(run) -> None:
    out = run("classify_long_sequences", "60", "lln")
    assert float(re.search(r"accuracy (\S+)%", out)[1]) > 40


def test_a_long_sequence_trains_alike_on_one_and_two_processes(run, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("to be or not to be, that is the question. " * 8)
    arguments = [str(tmp_path / "text"), "256", "4"]
    alone = [float(each) for each in re.findall(r"loss (\S+)", run("train_long_sequence", *arguments))]
    script = Path(__file__).parent.parent / "examples" / "train_long_sequence.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run([*launch, *arguments], capture_output=True, text=True, check=True)
    together = [float(each) for each in re.findall(r"loss (\S+)", done.stdout)]
    assert len(alone) == 4 and alone[-1] < alone[0]
    assert together == pytest.approx(alone, abs=1e-3)
