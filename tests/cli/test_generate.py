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
    command.append("--ignore-end")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = os.read(process.stdout.fileno(), 64)
    assert first.startswith(b"The ")
    assert process.poll() is None
    rest, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, b"")
    assert len((first + rest).decode()) > 300  # partial characters are replaced, so this is UTF-8


def test_a_seed_gives_a_text_and_the_options_matter(run, trained):
    def text(*options: str) -> str:
        code, out, err = run(
            "generate", trained, "--prompt", "The ", "--max-new-tokens", "20", "--ignore-end", "--json", *options
        )
        assert (code, err) == (0, "")
        found = json.loads(out)
        assert (found["prompt_tokens"], found["new_tokens"]) == (4, 20)
        return found["text"]

    assert text("--seed", "0") == text("--seed", "0") != text("--seed", "1")
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
        (["--prompt", ""], "the prompt is '': it has no tokens"),
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
    texts = [run("generate", place, "--prompt", "The ", "--seed", "0")[1] for place in (trained, tmp_path / "a")]
    assert texts[0] == texts[1]
    code, out, err = run("export", trained, "--out", tmp_path / "a")
    assert (code, out) == (2, "")
    assert "exists" in err


def test_each_call_has_its_own_seed_unless_given(run, trained):
    calls = [json.loads(run("generate", trained, "--prompt", "The ", "--json")[1]) for _ in range(2)]
    assert calls[0]["seed"] != calls[1]["seed"] and calls[0]["text"] != calls[1]["text"]
    again = json.loads(run("generate", trained, "--prompt", "The ", "--json", "--seed", str(calls[0]["seed"]))[1])
    assert again["text"] == calls[0]["text"]


def test_a_text_of_stop_ends_it_and_is_not_printed(run, trained):
    words = ("generate", trained, "--prompt", "The ", "--seed", "3", "--ignore-end")
    whole = run(*words)[1].removesuffix("\n")
    stop = whole[20:23]
    cut = whole.index(stop, 4)
    assert run(*words, "--stop", stop, "--stop", "never here") == (0, whole[:cut] + "\n", "")
    assert run(*words, "--stop", "")[0] == 2


def test_a_penalty_on_repetition_changes_the_text(run, trained):
    words = ("generate", trained, "--prompt", "aaaa", "--temperature", "0", "--max-new-tokens", "20")
    plain, less = (run(*words, *more)[1] for more in ((), ("--repetition-penalty", "5")))
    assert plain != less and len(set(less)) > len(set(plain))
    assert "repetition_penalty is 0.0: it must be above 0" in run(*words, "--repetition-penalty", "0")[2]


def test_the_prompt_comes_from_a_file_or_from_standard_input(run, trained, tmp_path):
    (tmp_path / "begin.txt").write_text("The \n")
    more = ["--seed", "1", "--max-new-tokens", "5"]
    expected = run("generate", trained, "--prompt", "The ", *more)
    assert run("generate", trained, "--prompt-file", tmp_path / "begin.txt", *more) == expected
    command = [sys.executable, "-m", "linnet", "generate", str(trained), "--prompt-file", "-", *more]
    done = subprocess.run(command, input="The ", capture_output=True, text=True, check=True)
    assert done.stdout == expected[1]
    assert run("generate", trained)[2].startswith("linnet: --prompt is missing: give --prompt TEXT, or --prompt-file")
    assert run("generate", trained, "--prompt", "a", "--prompt-file", "b")[0] == 2
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe")
    assert "it is not UTF-8 text" in run("generate", trained, "--prompt-file", tmp_path / "bad.txt")[2]
    code, _, said = run("generate", trained, "--prompt-file", tmp_path / "none.txt")
    assert (code, said) == (
        2,
        f"linnet: --prompt-file is {tmp_path / 'none.txt'}: it cannot be read ({os.strerror(2)})\n",
    )


def test_a_loaded_model_has_its_tokenizer_and_writes(trained):
    model = linnet.load_model(trained)
    assert model.tokenizer.decode(model.tokenizer.encode("Once")) == "Once"
    text = model.write("Once", max_new_tokens=12, seed=0, ignore_end=True)
    assert text.startswith("Once") and text.startswith(model.write("Once", max_new_tokens=12, seed=0))
    ids = model.generate(torch.tensor([model.tokenizer.encode("Once")]), max_new_tokens=12, seed=0)
    assert text == model.tokenizer.decode(ids[0].tolist())
    with pytest.raises(linnet.errors.InputError, match="this model has no tokenizer"):
        linnet.create_model("lln_lm_small", vocab_size=300, device="meta").write("Once")
