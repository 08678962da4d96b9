"""Records of a study: one JSON file per run, which names its study, its kind and the code that made it."""

import contextlib
import hashlib
import json
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from linnet import __version__
from linnet.errors import InputError, LinnetError
from linnet.models.config import ModelConfig, split_layer_config
from linnet.registry import ATTENTION
from linnet.storage import read_json_file

Record = dict[str, Any]
SCHEMA = 2  # 1 had neither `schema` nor `kind`, `model` and `code`
PACKAGE = Path(__file__).parents[1]
REPRODUCE = "linnet reproduce "


def stamp_record(study: str, kind: str, command: str) -> Record:
    """The fields that identify a record."""
    return {"schema": SCHEMA, "study": study, "kind": kind, "command": command, "code": record_code_version()}


def study_of_record(record: Any) -> str | None:
    """The study that a record belongs to; early records name it only in their command."""
    if not isinstance(record, dict):
        return None
    if isinstance(record.get("study"), str):
        return str(record["study"])
    command = str(record.get("command", ""))
    return command.removeprefix(REPRODUCE).split()[0] if command.startswith(REPRODUCE) else None


def mean_core_seconds(records: Sequence[Record]) -> float:
    """The mean seconds of one core per run; early records have only the time that passed."""
    return statistics.fmean(record.get("core_seconds") or record.get("seconds", 0.0) for record in records)


def read_records(folder: Path, study: str, fields: frozenset[str] = frozenset()) -> list[Record]:
    """The records of a study in a folder; raises if there are none, or if one is damaged or foreign."""
    records = []
    for path in sorted(folder.glob("*.json")):
        try:
            record = json.loads(path.read_text())
        except (ValueError, RecursionError) as error:
            raise LinnetError(f"{path} is not a result of a study: {error}") from None
        name = study_of_record(record)
        if name is None:
            raise LinnetError(f"{path} is not a result of a study: it does not name one")
        if name != study:
            raise InputError(f"{path} is a result of {name}, not of {study}: each study needs a folder of its own")
        schema = record.get("schema", 1)
        if schema not in range(1, SCHEMA + 1):
            raise LinnetError(f"{path} has schema {schema!r}: this linnet reads records up to schema {SCHEMA}")
        missing = sorted(fields - record.keys())
        if missing:
            raise LinnetError(f"{path} is not a result of a study: it lacks {', '.join(missing)}")
        records.append(record)
    if not records:
        raise InputError(f"{folder} holds no results: run the study first")
    return records


def check_records_origin(folder: Path, command: str) -> None:
    """Raise if a folder holds results of another command, before the work that would add to them."""
    for path in sorted(folder.glob("*.json")):
        record = read_json_file(path)
        made_by = record.get("command") if isinstance(record, dict) else None
        if made_by != command:
            of = f"of `{made_by}`" if made_by else "no result of a study"
            raise InputError(f"{path} is {of}, not of `{command}`: choose another folder with --results")


@contextlib.contextmanager
def one_line_record_damage(*places: Path) -> Iterator[None]:
    """Turn errors about missing or mistyped fields of a record into one line that names the places."""
    try:
        yield
    except LinnetError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise LinnetError(f"{' or '.join(map(str, places))} is damaged: {what}") from error


def records_sha256(records: Sequence[Record]) -> str:
    """SHA-256 of the records, stored in the figure that is drawn from them."""
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def records_by_row(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by the name of their row, in alphabetical order, and by seed."""
    rows: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: (record["row"], record["seed"])):
        rows.setdefault(record["row"], []).append(record)
    return rows


def record_versions(where: Record) -> str:
    """The versions that a record was made with, for the note under a table."""
    return f"linnet {where['linnet']}, torch {where['torch']}"


@lru_cache(maxsize=1)
def record_code_version() -> str:
    """The commit of this code, with "+changes" if files differ from it; outside a checkout, the version."""
    if not (PACKAGE.parent / ".git").exists():
        return __version__
    try:
        commit, changed = _git("rev-parse", "HEAD"), _git("status", "--porcelain", "--", PACKAGE.name, "recipes")
    except (OSError, subprocess.CalledProcessError):
        return __version__
    return f"{commit}+changes" if changed else commit


def _git(*words: str) -> str:
    git = subprocess.run(["git", *words], cwd=PACKAGE.parent, check=True, capture_output=True, text=True)
    return git.stdout.strip()


def record_resolved_model(config: ModelConfig) -> Record:
    """Every field of a model and every option of its mechanisms, including defaults."""
    names = [name for name in ATTENTION.names() if any(name in split_layer_config(layer)[1] for layer in config.layers)]
    given = {name: ATTENTION[name].Options(**config.options.get(name, {})) for name in names}
    options = {name: found.model_dump(mode="json") for name, found in given.items()}
    return {**config.model_dump(mode="json"), "options": options}
