"""Try every promise, two at a time, each in a process of its own, and write the record and its page.

`python -m tests.prove` tries all of them. `python -m tests.prove NAME...` tries some; the others keep their record.
"""

import argparse
import contextlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from linnet.storage import read_json_file, write_json_file
from tests.prove.page import render_reliability
from tests.prove.promise import Skip, Trials
from tests.prove.promises import ordered_promises

ROOT = Path(__file__).parent.parent.parent
RECORD = ROOT / "docs/reliability.json"
PAGE = ROOT / "docs/reliability.md"
LIMIT = 2400.0  # seconds


def try_promise(name: str, short: bool) -> dict[str, Any]:
    """Try one promise in this process."""
    (found,) = (each for each in ordered_promises() if each.name == name)
    folder = Path(tempfile.mkdtemp(prefix=f"linnet-prove-{name}-"))
    trials, start = Trials(folder, short), time.perf_counter()
    try:
        found.prove(trials)
    except Skip as reason:
        trials.skipped.append(str(reason))
    except Exception as error:  # noqa: BLE001  a promise that cannot be tried is not kept
        trials.check(False, f"the trials ended: {type(error).__name__}: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "number": found.number,
        "name": name,
        "sentence": found.sentence,
        "how": found.how,
        "trials": trials.count,
        "failed": trials.failed,
        "failures": trials.failures,
        "skipped": trials.skipped,
        "measured": trials.measured,
        "minutes": round((time.perf_counter() - start) / 60, 2),
        "cpu_minutes": round(sum(each.ru_utime + each.ru_stime for each in used) / 60, 2),
    }


def _in_process(name: str, short: bool) -> dict[str, Any]:
    """Try one promise in a process of its own, which may crash."""
    command = [sys.executable, "-m", "tests.prove", "--one", name, *(["--short"] if short else [])]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with contextlib.suppress(subprocess.TimeoutExpired, ValueError, IndexError):
        done = subprocess.run(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT
        )
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    (found,) = (each for each in ordered_promises() if each.name == name)
    lost = {"trials": 1, "failed": 1, "failures": ["the process of the trials crashed or never ended"], "skipped": []}
    about = {"number": found.number, "name": name, "sentence": found.sentence, "how": found.how}
    return {**about, **lost, "measured": {}, "minutes": 0.0, "cpu_minutes": 0.0}


def main() -> int:
    """The program; its exit code is 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("names", nargs="*", help="promises to try; all if none is given")
    parser.add_argument("--short", action="store_true", help="few trials of each; nothing is written")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--render", action="store_true", help="only write the page again, from the record")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(try_promise(given.one, given.short)))
        return 0
    names = [each.name for each in ordered_promises()]
    unknown = [name for name in given.names if name not in names]
    if unknown:
        parser.error(f"{unknown[0]} is not a promise: {', '.join(names)}")
    record = read_json_file(RECORD) if RECORD.exists() else {"promises": []}
    start, results = time.perf_counter(), []
    with ThreadPoolExecutor(max_workers=2) as pool:
        chosen = [] if given.render else given.names or names
        for each in pool.map(lambda name: _in_process(name, given.short), chosen):
            _print(each)
            results.append(each)
            if not given.short:
                known = {other["name"]: other for other in (*record["promises"], *results)}
                minutes = round((time.perf_counter() - start) / 60, 1)
                record = {
                    "promises": [known[name] for name in names if name in known],
                    "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[2]:.1f}",
                    "minutes": record.get("minutes", minutes) if given.names else minutes,
                    "date": time.strftime("%Y-%m-%d", time.gmtime()),
                }
                write_json_file(RECORD, record)  # after each: what has been tried is kept if this is stopped
    if given.short:
        return int(any(each["failed"] for each in results))
    PAGE.write_text(render_reliability(record, ordered_promises(), PAGE.read_text()))
    return int(any(each["failed"] for each in record["promises"]))


def _print(each: dict[str, Any]) -> None:
    status = "FAILED" if each["failed"] else "ok" if each["trials"] else "skipped"
    print(f"{status:8}{each['number']:>4}  {each['name']}: {each['trials']} trials, {each['failed']} failed, ", end="")
    print(f"{each['minutes']} minutes, {each['cpu_minutes']} of a core", flush=True)
    for line in (*each["failures"], *(f"skipped: {reason}" for reason in each["skipped"])):
        print(f"              {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
