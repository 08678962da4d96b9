"""Lets the website show pages at the root of the project, and the source files that pages link to."""

import os
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages at the root, then whatever a page links to."""
    pages = {path: path.name for path in ROOT.glob("*.md")}
    pages |= {ROOT / "docs" / file.src_uri: file.src_uri for file in files.documentation_pages()}
    linked = {(page.parent / link).resolve() for page in pages for link in LINK.findall(page.read_text())}
    for path in sorted({*pages, *linked}):
        if path.is_file() and not path.is_relative_to(ROOT / "docs"):
            files.append(File.generated(config, str(path.relative_to(ROOT)), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point links, which are right in the repository, to the same files on the website, where docs/ is the root."""
    uri = page.file.src_uri
    here = ROOT / uri if (ROOT / uri).is_file() else ROOT / "docs" / uri

    def moved(link: re.Match[str]) -> str:
        target = (here.parent / link[1]).resolve()
        place = target.relative_to(ROOT / "docs" if target.is_relative_to(ROOT / "docs") else ROOT)
        return os.path.relpath(place, Path(uri).parent)

    return LINK.sub(moved, markdown)
