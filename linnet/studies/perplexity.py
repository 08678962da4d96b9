"""Language models compared by perplexity: the table and curves that several studies share."""

import statistics
from collections.abc import Sequence

from linnet.errors import LinnetError
from linnet.figures.figure import Figure
from linnet.figures.spread import spread_line, spread_text
from linnet.figures.table import Table
from linnet.studies.records import Record, mean_core_seconds, record_versions, records_by_row
from linnet.studies.systems import split_systems
from linnet.studies.trained import Trained

COLUMNS = ("system", "parameters", "seeds", "valid perplexity", "test perplexity", "test perplexity per word")


def perplexity_of_test(run: Record) -> float:
    """The test perplexity of a record, per token."""
    return float(run["test"]["perplexity"])


class Perplexity(Trained):
    """Runs with one budget, the best test loss first."""

    picture = "validation perplexity against tokens"

    def parts(self, records: Sequence[Record]) -> Sequence[Table | str]:
        """One line per system: the mean over its seeds and, if there are several, the range."""
        rows = []
        for name, runs in _best_first(records).items():
            valid, test = ([run[split]["perplexity"] for run in runs] for split in ("valid", "test"))
            words = [run["test"]["word_perplexity"] for run in runs if "word_perplexity" in run["test"]]
            seconds = f"{mean_core_seconds(runs):,.0f}"
            cells = map(spread_text, (valid, test, words))
            rows.append([name, f"{runs[0]['parameters']:,}", str(len(runs)), *cells, seconds])
        return [Table(self.title, [*COLUMNS, "seconds"], rows), _budget(records)]

    def figures(self, records: Sequence[Record], note: str) -> list[Figure]:
        """Validation perplexity against tokens, the mean over seeds, with the range shaded; many systems by family."""
        lines = {}
        for name, runs in _best_first(records).items():
            found: dict[float, list[float]] = {}
            for run in runs:
                for entry in (entry for entry in run["curve"] if entry["split"] == "valid"):
                    tokens = entry["step"] * run["tokens"] / run["config"]["train"]["steps"]  # equal in each step
                    found.setdefault(tokens / 1e6, []).append(entry["perplexity"])
            lines[name] = spread_line(name, found)
        return [
            Figure(
                title or "Validation perplexity",
                "million tokens",
                "validation perplexity per token",
                [lines[name] for name in names],
                log_y=True,
                note=note,
                behind=[line for name, line in lines.items() if name not in names],
            )
            for title, names in split_systems(list(lines)).items()
        ]


def _best_first(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by row, the best test loss first."""
    return dict(
        sorted(records_by_row(records).items(), key=lambda row: statistics.fmean(r["test"]["loss"] for r in row[1]))
    )


def _budget(records: Sequence[Record]) -> str:
    """The budget of a run, and the command; raises if the runs had different budgets."""
    budgets = {(r["tokens"], r["config"]["data"]["context"], r["environment"]["threads"]) for r in records}
    if len(budgets) != 1:
        raise LinnetError(f"the runs had different budgets: {sorted(budgets)}")
    ((tokens, context, threads),) = budgets
    first = records[0]
    train = first["config"]["train"]
    return (
        f"Each run: {tokens:,} tokens in blocks of {context}, {train['steps']} steps of {train['batch']} blocks, "
        f"learning rate {train['lr']:g}, {threads} thread, {record_versions(first['environment'])}. The range is "
        f"over seeds. Times were taken on a busy machine; do not compare them. Command: `{first['command']}`."
    )
