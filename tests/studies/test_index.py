"""The index of results: the committed one is current, and rendering a study rewrites it."""

import re
import shutil
from pathlib import Path

import pytest

from linnet.figures.page import BEGIN, END
from linnet.registry import STUDY
from linnet.studies.index import index_of_results, update_index_of_results

RESULTS = Path(__file__).parent.parent.parent / "docs" / "results"


def test_the_committed_index_lists_every_page():
    text = (RESULTS / "README.md").read_text()
    rendered = text.partition(BEGIN)[2].partition(END)[0].strip()
    assert rendered == index_of_results(RESULTS)
    pages = {page.name for page in RESULTS.glob("*.md")} - {"README.md"}
    assert all(f"({page})" in text for page in pages)


def test_no_page_lists_studies_by_hand():
    """A new study has a page of its own, and the rendered list: no other page has to be changed for it."""
    for page in RESULTS.glob("*.md"):
        before, _, rest = page.read_text().partition(BEGIN)
        rows = re.findall(r"^\| \[?`?([a-z0-9-]+)", before + rest.partition(END)[2], re.MULTILINE)
        assert not set(rows) & set(STUDY.names()), page.name


@pytest.mark.parametrize("text", ["# Results\n", f"{END} {BEGIN[:5]}", None])
def test_a_readme_without_markers_is_left_alone(tmp_path, text):
    readme = tmp_path / "README.md"
    if text is not None:
        readme.write_text(text)
    update_index_of_results(tmp_path)
    assert (readme.read_text() if readme.exists() else None) == text


def test_rendering_a_study_adds_its_page(tmp_path):
    folder = tmp_path / "lln-distribution"
    shutil.copytree(RESULTS / "lln-distribution", folder)
    (tmp_path / "README.md").write_text(f"# Results\n\nBefore.\n\n{BEGIN}\n{END}\nAfter.\n")
    STUDY["lln-distribution"]().render(folder, "cpu")
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("# Results\n\nBefore.\n")
    assert text.endswith("After.\n")
    assert "(lln-distribution.md)" in text
