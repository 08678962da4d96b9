"""GLUE's own files: every task at hand has its public sizes, and missing ones say where to get them."""

import pytest

from linnet.data.glue import GLUE, default_glue_path, read_glue_file, read_glue_splits
from linnet.errors import InputError

SIZES = {
    "cola": (8551, 1043, 1063),
    "sst2": (67349, 872, 1821),
    "mrpc": (3667, 408, 1725),
    "stsb": (5749, 1500, 1379),
    "rte": (2490, 277, 3000),
    "wnli": (635, 71, 146),
}
PARTS = {"qnli_dev": 5463, "mnli_dev": 9815, "qqp_20k": 20212}


@pytest.mark.parametrize("name", SIZES)
def test_a_whole_task(data_dir, name):
    folder = data_dir(f"glue/{GLUE[name].folder}")
    splits = read_glue_splits(name, folder, 0)
    test = read_glue_file(name, folder / GLUE[name].test, labels=False)
    assert (len(splits["train"]), len(splits["valid"]), len(test)) == SIZES[name]
    assert splits["test"] is splits["valid"]
    labels = set(splits["train"].labels.tolist())
    assert labels == ({0.0, 1.0} if GLUE[name].classes else labels)
    assert not len(test.labels)


@pytest.mark.parametrize("name", PARTS)
def test_a_part_is_split_by_seed(data_dir, name):
    folder = data_dir(f"glue/{GLUE[name].folder}")
    splits = read_glue_splits(name, folder, 3)
    assert sum(map(len, splits.values())) == PARTS[name]
    assert len(splits["valid"]) == len(splits["test"]) == round(PARTS[name] / 10)
    assert read_glue_splits(name, folder, 4)["valid"].first != splits["valid"].first


def test_missing_files_say_where_to_get_them(tmp_path, monkeypatch):
    monkeypatch.setenv("LINNET_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"get MNLI from https://gluebenchmark.com/tasks and set data.path"):
        default_glue_path("mnli")
    monkeypatch.delenv("LINNET_DATA")
    with pytest.raises(InputError, match="LINNET_DATA is not set"):
        default_glue_path("rte")
    with pytest.raises(InputError, match=r"dev.tsv does not exist: data.path must be the folder RTE of GLUE"):
        read_glue_splits("rte", tmp_path, 0)
