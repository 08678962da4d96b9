"""Find what a broken run folder still holds, and what to do with it."""

from pathlib import Path
from typing import Any, NamedTuple

from linnet.config import dump_config_settings
from linnet.errors import InputError
from linnet.storage.run import RUN_FILES, check_run_links
from linnet.storage.verify import Finding, Load, verify_checkpoints, verify_run_logs


class Salvage(NamedTuple):
    """The parts of a run, intact or not, and advice: commands, and settings that a lost configuration had."""

    parts: list[Finding]
    advice: list[str]


def salvage_run(folder: str | Path, load: Load) -> Salvage:
    """What is left of a run, even if its configuration is lost; `load` loads its model at a step. Changes nothing."""
    folder = Path(folder)
    if not folder.is_dir() or not any((folder / name).exists() for name in (*RUN_FILES, "checkpoints")):
        raise InputError(f"{folder} {'has no file of a run' if folder.is_dir() else 'is not a folder'}")
    check_run_links(folder)
    parts: list[Finding] = []
    states: dict[int, dict[str, Any]] = {}
    configured = (folder / "config.toml").is_file()
    for found, state in verify_checkpoints(folder, load):
        if state is not None:
            states[int(found.name.removeprefix("checkpoints/step-"))] = state
            found = found if configured else found._replace(found="all hashes are right; it needs config.toml")
        parts.append(found)
    if not configured:
        parts.insert(0, Finding("config.toml", False, "missing"))
    if not any(part.name.startswith("checkpoints/") for part in parts):
        parts.append(Finding("checkpoints", False, "none"))
    parts += verify_run_logs(folder, list(states.values()))
    left = sorted(str(path.relative_to(folder)) for place in ("", "checkpoints") for path in _leftovers(folder / place))
    if left:
        parts.append(Finding("leftovers", False, f"{len(left)} of killed processes, such as {left[0]}"))
    return Salvage(parts, list(_advice(folder, parts, states)))


def _leftovers(folder: Path) -> list[Path]:
    return [*folder.glob(".linnet-*.tmp"), *folder.glob(".linnet-*.old")]


def _advice(folder: Path, parts: list[Finding], states: dict[int, dict[str, Any]]) -> list[str]:
    """What to do, in order; nothing if all is intact."""
    if all(part.ok for part in parts):
        return []
    loads = [int(p.name.removeprefix("checkpoints/step-")) for p in parts if p.ok and p.name.startswith("checkpoints/")]
    lines, wrong = [], {part.name for part in parts if not part.ok}
    if states and not (folder / "config.toml").is_file():
        newest = states[max(states)]
        lines.append(
            "write config.toml again: these settings are in the newest checkpoint; paths and train.steps are not:"
        )
        lines += dump_config_settings(newest.get("settings") or {}).splitlines()
    damaged = [name for name in wrong if name.startswith("checkpoints/")]
    if "leftovers" in wrong or (damaged and loads):
        lines.append(f"`linnet repair {folder}` removes leftovers and sets damaged checkpoints aside")
    if loads and "metrics.jsonl" not in wrong:
        lines.append(f"`linnet resume {folder}` continues from step {max(loads)}")
    if loads:
        lines.append(
            f"`linnet export {folder} --checkpoint {max(loads)} --out MODEL` saves the model of step {max(loads)}"
        )
    if "metrics.jsonl" in wrong:
        lines.append("metrics.jsonl is not the one of the checkpoints: put a copy back to resume or evaluate")
    if not states:
        lines.append("no checkpoint is intact: start again in another folder")
    return lines
