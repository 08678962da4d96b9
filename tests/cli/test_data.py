"""`linnet data`: generated data are complete and can be read; for other data it prints where to get them."""

import json

import pytest

from linnet.data.lra.listops_tsv import NAMES, read_listops_tsv
from linnet.data.lra.png import decode_png


def test_listops(run, tmp_path):
    sizes = ("--train", 6, "--valid", 2, "--test", 1)
    code, out, _ = run("data", "listops", *sizes, "--seed", 3, "--out", tmp_path / "new")
    assert code == 0
    assert [line.split()[-2] for line in out.splitlines() if line.endswith(" trees")] == ["6", "2", "1"]
    assert out.count("have the value that is most common for their outermost operator") == 2
    assert [len(read_listops_tsv(tmp_path / "new" / name, 2000).values) for name in NAMES.values()] == [6, 2, 1]
    code, _, err = run("data", "listops", "--out", tmp_path / "new")
    assert code == 2
    assert "basic_train.tsv exists: name another folder" in err


def test_pathfinder_with_a_sheet(run, tmp_path):
    sheet = tmp_path / "sheet.png"
    code, out, _ = run("data", "pathfinder", "--out", tmp_path / "new", "--count", 9, "--preview", sheet, "--json")
    assert code == 0
    assert json.loads(out)["ones"] == 4
    assert decode_png(sheet.read_bytes(), "sheet").shape == (2 * 134, 8 * 134)
    code, out, _ = run("data", "pathfinder", "--out", tmp_path / "new", "--count", 9)
    assert (code, out) == (0, f"{tmp_path / 'new'}: 9 images, 44.4% with both dots on one path\n")


def test_where_retrieval_is_to_be_had(run):
    code, out, err = run("data", "retrieval")
    assert (code, err) == (0, "")
    assert "needs new_aan_pairs.{train,eval,test}.tsv: get lra_release.gz" in out


@pytest.mark.parametrize("what", ["text", "image", "retrieval_small"])
def test_where_data_are_to_be_had(run, what, tmp_path, monkeypatch):
    monkeypatch.delenv("LINNET_DATA", raising=False)
    code, out, err = run("data", what)
    assert (code, err) == (0, "")
    assert "needs" in out
    folder = {"text": "imdb", "image": "cifar10-gray", "retrieval_small": "aan-small"}[what]
    (tmp_path / folder).mkdir()
    monkeypatch.setenv("LINNET_DATA", str(tmp_path))
    assert json.loads(run("data", what, "--json")[1])["found"] == str(tmp_path / folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("listops", "--out is missing"),
        ("lisops", "did you mean 'listops'?"),
        ("text --count 5", "--count is 5: text does not have this option"),
        ("image --seed 0", "--seed is 0: image does not have this option"),
        ("listops --out x --preview y.png", "--preview is y.png: listops does not have this option"),
        ("pathfinder --out x --preview y.jpg", "--preview is y.jpg: it must be a .png in a folder that exists"),
        ("pathfinder --out x --count 2", "--count"),
    ],
)
def test_bad_usage_is_one_line_and_writes_nothing(run, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run("data", *arguments.split())
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []
