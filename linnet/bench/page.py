"""Render the page of a folder of benchmarks from its JSON: five rows, tables, figures and bounds."""

import hashlib
from pathlib import Path
from typing import Any

from linnet.bench.bounds import bench_bounds_table
from linnet.bench.headline import bench_headline_table
from linnet.bench.tables import (
    BENCHES,
    bench_crossover_table,
    bench_figures,
    bench_missing,
    bench_note,
    bench_tables,
    check_bench_result,
)
from linnet.errors import InputError
from linnet.figures.figure import save_figures
from linnet.figures.page import write_markdown_page
from linnet.storage import file_beside, read_json_file

DIGEST = "Source-SHA256"
TITLES = {
    "ops": "Ops",
    "model": "Models and layers",
    "decode": "Decoding",
    "profile": "Where the time goes",
    "vision": "Resolution",
}


def read_bench_page(folder: Path) -> dict[str, Any]:
    """The benchmarks in a folder, by name."""
    found = {name: read_json_file(folder / f"{name}.json") for name in BENCHES if (folder / f"{name}.json").exists()}
    for result in found.values():
        check_bench_result(result)
    if not found:
        raise InputError(f"{folder} holds no benchmark: linnet bench ops --out {folder}")
    return found


def render_bench_page(folder: Path) -> list[Path]:
    """Write the tables into `<folder>.md`, between its markers, and the figures into the folder."""
    results, page = read_bench_page(folder), file_beside(folder, ".md")
    pictures = []
    for name, result in results.items():
        digest = hashlib.sha256((folder / f"{name}.json").read_bytes()).hexdigest()
        for stem, figures in bench_figures(result).items():
            pictures.append(folder / f"{stem}.png")
            save_figures(figures, pictures[-1], {DIGEST: digest})
    write_markdown_page(page, "Benchmarks", bench_page_text(results, page.name.removesuffix(".md")))
    return [page, *pictures]


def bench_page_text(results: dict[str, Any], folder: str) -> str:
    """The part of the page between its markers."""
    headline = bench_headline_table(results)
    parts = [headline.to_markdown()] if headline.rows else []
    for name, result in results.items():
        parts.append(f"## {TITLES[name]}")
        parts.append(f"`{result['command']}`")
        parts += bench_note(result).split("\n")
        parts += [f"![{stem}]({folder}/{stem}.png)" for stem in bench_figures(result)]
        tables = [*bench_tables(result), *([bench_crossover_table(result)] if name == "ops" else [])]
        parts += [f"### {TITLES[name]}: {table.title}\n\n{table.to_markdown()}" for table in tables if table.rows]
        if missing := bench_missing(result):
            parts += [f"### {TITLES[name]}: not measured", "\n".join(f"- {line}" for line in missing)]
    bounds = bench_bounds_table(results)
    if any(line[-1] != "not measured" for line in bounds.rows):
        parts += ["## Appendix: targets", bounds.to_markdown()]
    return "\n" + "\n\n".join(parts) + "\n"
