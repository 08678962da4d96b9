"""The files of GLUE (Wang et al. 2018): where each task keeps its texts and labels, and its metrics.

The files are GLUE's own. They have traps: MRPC begins with a byte-order mark, CoLA has no header, quotes inside fields
are ordinary characters, STS-B has ten columns, and MNLI has two development sets.
"""

import os
from pathlib import Path
from typing import NamedTuple

from linnet.data.labeled_texts import LabeledTexts, read_labeled_texts, split_labeled_texts
from linnet.errors import InputError

SITE = "https://gluebenchmark.com/tasks"
HELD_OUT = (0.1, 0.1)  # of a part: the shares of valid and test
ENTAILMENT = ("not_entailment", "entailment")


class GlueLayout(NamedTuple):
    """A task: its folder, the columns of its texts and of its label, its classes, and its metrics, the main one first.

    `part` names the one file of a part of a task, which is split by seed. `server` is the name of the file that the
    benchmark's server takes.
    """

    folder: str
    columns: tuple[str | int, ...]
    label: str | int
    classes: tuple[str, ...]
    metrics: tuple[str, ...]
    server: str = ""
    part: str = ""
    quoted: bool = False
    dev: str = "dev.tsv"
    test: str = "test.tsv"
    test_columns: tuple[str | int, ...] | None = None  # where they differ from `columns`


GLUE = {
    "cola": GlueLayout("CoLA", (3,), 1, ("0", "1"), ("matthews", "accuracy"), "CoLA.tsv", test_columns=("sentence",)),
    "sst2": GlueLayout("SST-2", ("sentence",), "label", ("0", "1"), ("accuracy",), "SST-2.tsv"),
    "mrpc": GlueLayout("MRPC", ("#1 String", "#2 String"), "Quality", ("0", "1"), ("f1", "accuracy"), "MRPC.tsv"),
    "qqp": GlueLayout("QQP", ("question1", "question2"), "is_duplicate", ("0", "1"), ("f1", "accuracy"), "QQP.tsv"),
    "stsb": GlueLayout("STS-B", ("sentence1", "sentence2"), "score", (), ("spearman", "pearson"), "STS-B.tsv"),
    "mnli": GlueLayout(
        *("MNLI", ("sentence1", "sentence2"), "gold_label", ("contradiction", "neutral", "entailment")),
        *(("accuracy",), "MNLI-m.tsv"),
        dev="dev_matched.tsv",
        test="test_matched.tsv",
    ),
    "qnli": GlueLayout("QNLI", ("question", "sentence"), "label", ENTAILMENT, ("accuracy",), "QNLI.tsv"),
    "rte": GlueLayout("RTE", ("sentence1", "sentence2"), "label", ENTAILMENT, ("accuracy",), "RTE.tsv"),
    "wnli": GlueLayout("WNLI", ("sentence1", "sentence2"), "label", ("0", "1"), ("accuracy",), "WNLI.tsv"),
}
GLUE |= {
    "qnli_dev": GLUE["qnli"]._replace(folder="QNLI-dev", part="dev.tsv", server=""),
    "mnli_dev": GLUE["mnli"]._replace(folder="MNLI-dev", part="dev_matched_tokenized.tsv", server=""),
    "qqp_20k": GLUE["qqp"]._replace(folder="QQP-20k", part="qqp_20k.tsv", server="", quoted=True),
}


def default_glue_path(name: str) -> Path:
    """The folder of a task in LINNET_DATA; if there is none, the error says where to get it."""
    layout, root = GLUE[name], os.environ.get("LINNET_DATA")
    folder = None if root is None else Path(root) / "glue" / layout.folder
    if folder is None or not folder.is_dir():
        where = "LINNET_DATA is not set" if folder is None else f"{folder} does not exist"
        raise InputError(
            f"data.path is missing and {where}: get {layout.folder} from {SITE} and set data.path to its folder"
        )
    return folder


def read_glue_splits(name: str, folder: Path, seed: int) -> dict[str, LabeledTexts]:
    """The three splits of a task; its score uses the development set, because the test set's labels are not public.

    A part of a task is split by `seed`.
    """
    layout = GLUE[name]
    if layout.part:
        whole = read_glue_file(name, folder / layout.part)
        return dict(zip(("train", "valid", "test"), split_labeled_texts(whole, seed, HELD_OUT), strict=True))
    dev = read_glue_file(name, folder / layout.dev)
    return {"train": read_glue_file(name, folder / "train.tsv"), "valid": dev, "test": dev}


def read_glue_file(name: str, path: Path, labels: bool = True) -> LabeledTexts:
    """One file of a task; without `labels`, the test file, whose labels are not public."""
    layout = GLUE[name]
    if not path.is_file():
        raise InputError(f"{path} does not exist: data.path must be the folder {layout.folder} of GLUE, from {SITE}")
    columns = layout.columns if labels else layout.test_columns or layout.columns
    return read_labeled_texts(path, columns, layout.label if labels else None, layout.classes, layout.quoted)
