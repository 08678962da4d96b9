"""`linnet generate` and `linnet export`: the same model, from a run and from three files."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

import linnet


def test_text_streams_as_it_is_written(trained):
    """The first piece is printed before the last one is computed."""
    command = [sys.executable, "-m", "linnet", "generate", str(trained), "--prompt", "The ", "--max-new-tokens", "600"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = os.read(process.stdout.fileno(), 64)
    assert first.startswith(b"The ")
    assert process.poll() is None
    rest, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")
    assert len((first + rest).decode()) > 300  # partial characters are replaced, so this is UTF-8


def test_a_seed_gives_a_text_and_the_options_matter(run, trained):
    def text(*options: str) -> str:
        code, out, err = run("generate", trained, "--prompt", "The ", "--max-new-tokens", "20", "--json", *options)
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert (found["prompt_tokens"], found["new_tokens"]) == (4, 20)
        return found["text"]

    assert text() == text("--seed", "0") != text("--seed", "1")
    greedy = text("--temperature", "0")
    assert greedy == text("--top-k", "1", "--seed", "5") == text("--top-p", "0.0001")
    code, out, _ = run("generate", trained, "--prompt", "The ", "--max-new-tokens", "20", "--temperature", "0")
    assert (code, out) == (0, greedy + "\n")


def test_no_new_tokens_leave_the_prompt(run, trained):
    assert run("generate", trained, "--prompt", "The ", "--max-new-tokens", "0") == (0, "The \n", "")
    found = json.loads(run("generate", trained, "--prompt", "The ", "--max-new-tokens", "0", "--json")[1])
    assert (found["text"], found["new_tokens"]) == ("The ", 0)


def test_another_tokenizer_than_the_models_is_one_line(run, trained, tmp_path):
    assert run("export", trained, "--out", tmp_path / "a")[0] == 0
    shutil.copytree(trained, tmp_path / "b")
    for folder in (tmp_path / "a", tmp_path / "b"):
        path = folder / "tokenizer.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "merges": None}))
        code, out, err = run("generate", folder, "--prompt", "The ")
        assert (code, out) == (1, "")
        assert err == f"linnet: {path} is not the tokenizer of this model: its SHA-256 differs; put it back\n"
    assert run("export", tmp_path / "b", "--out", tmp_path / "c")[0] == 1
    assert not (tmp_path / "c").exists()


def test_greedy_text_is_that_of_the_parallel_model(run, trained):
    out = run("generate", trained, "--prompt", "The ", "--max-new-tokens", "30", "--temperature", "0", "--json")[1]
    ids = torch.tensor([[4 + byte for byte in b"The "]])
    model = linnet.load_model(trained)
    with torch.no_grad():
        for _ in range(30):
            ids = torch.cat([ids, model(ids)[:, -1].argmax(-1, keepdim=True)], dim=1)
    expected = bytes(int(i) - 4 for i in ids[0] if 4 <= i < 260).decode(errors="replace")
    assert json.loads(out)["text"] == expected


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--prompt", ""], "--prompt is '': it has no tokens"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--prompt", "a", "--top-k", "0"], "top_k"),
        (["--prompt", "a", "--top-p", "2"], "top_p"),
        (["--prompt", "a", "--max-new-tokens", "-1"], "max_new_tokens"),
        ([], "--prompt"),
    ],
)
def test_a_mistake_is_one_line(run, trained, options, line):
    code, out, err = run("generate", trained, *options)
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1


def test_a_masked_model_does_not_write(run, recipe, tmp_path):
    sets = ("--set", "task=masked_lm", "--set", "model.preset=transnormer_t2_roberta_small", "--set", "train.steps=2")
    assert run("train", recipe, *sets, "--out", tmp_path / "run", "--json")[0] == 0
    code, out, err = run("generate", tmp_path / "run", "--prompt", "a")
    assert (code, out) == (2, "")
    assert "bidirectional" in err
    assert json.loads(run("evaluate", tmp_path / "run", "--json")[1])["perplexity"] > 1


def test_export_then_load(run, trained, tmp_path):
    code, out, err = run("export", trained, "--out", tmp_path / "a", "--json")
    assert (code, err) == (0, "")
    assert set(json.loads(out)["files"]) == {"config.json", "model.safetensors", "tokenizer.json"}
    ids = torch.arange(4, 24)[None]
    assert torch.equal(linnet.load_model(tmp_path / "a")(ids), linnet.load_model(trained)(ids))
    code, out, _ = run("export", trained, "--out", tmp_path / "b")
    assert code == 0
    assert "model.safetensors" in out
    for file in (tmp_path / "a").iterdir():
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
    texts = [run("generate", place, "--prompt", "The ")[1] for place in (trained, tmp_path / "a")]
    assert texts[0] == texts[1]
    code, out, err = run("export", trained, "--out", tmp_path / "a")
    assert (code, out) == (2, "")
    assert "exists" in err
