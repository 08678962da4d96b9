"""Try every promise, two at a time, each in a process of its own, and write the record and its page.

`python -m tests.prove` tries all of them; after a stop, the next call continues with those that were not tried.
`python -m tests.prove NAME...` tries some; the others keep their record.
"""

import argparse
import json
import sys
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Any

from tests.prove.process import Working, try_in_process, try_promise
from tests.prove.promises import ordered_promises
from tests.prove.record import Record

EVERY = 60.0  # seconds between two lines about what is being tried


def main() -> int:
    """Run the program; the exit code is 1 if a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.prove", description=__doc__)
    parser.add_argument("names", nargs="*", help="promises to try; all if none is given")
    parser.add_argument("--short", action="store_true", help="few trials of each; nothing is written")
    parser.add_argument("--again", action="store_true", help="try all, also those tried before a stop")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--render", action="store_true", help="only write the page again, from the record")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(try_promise(given.one, given.short, lambda count: print(count, flush=True))))
        return 0
    names = [each.name for each in ordered_promises()]
    unknown = [name for name in given.names if name not in names]
    if unknown:
        parser.error(f"{unknown[0]} is not a promise: {', '.join(names)}")
    record = Record(whole=not (given.names or given.short or given.again or given.render))
    if given.render:
        record.render()
        return 0
    if given.again and not given.names:
        record.whole = not given.short
    if record.done:
        print(f"continuing: {len(record.done)} of {len(names)} promises have been tried; --again tries all", flush=True)
    failed = _try_all([name for name in given.names or names if name not in record.done], record, given.short)
    return int(failed or (record.whole and any(each["failed"] for each in record.content["promises"])))


def _try_all(names: list[str], record: Record, short: bool) -> bool:
    """Try promises two at a time, the longest first, so that both cores are used to the end; whether any failed."""
    names = sorted(names, key=record.expected, reverse=True)
    total = sum(map(record.expected, names))
    print(f"{len(names)} promises, two at a time: about {max(total / 2, 1):.0f} minutes of two free cores", flush=True)
    failed, left, working = False, list(names), Working()
    with ThreadPoolExecutor(max_workers=2) as pool:
        tasks = [pool.submit(try_in_process, name, short, working) for name in names]
        try:
            while tasks:
                done = wait(tasks, timeout=EVERY, return_when=FIRST_COMPLETED).done
                for task in done:
                    found = task.result()
                    left.remove(found["name"])
                    failed = failed or bool(found["failed"])
                    if not short:
                        record.add(found)
                    _print(found, f"{len(names) - len(left)}/{len(names)}")
                tasks = [task for task in tasks if task not in done]
                if not done:
                    share = 1 - sum(map(record.expected, left)) / total
                    rest = f", about {record.minutes * (1 - share) / share:.0f} minutes left" if share > 0.1 else ""
                    print(f"        {record.minutes:.1f} minutes{rest}; now {working}", flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            working.end()
            raise
    return failed


def _print(each: dict[str, Any], place: str) -> None:
    status = "FAILED" if each["failed"] else "ok" if each["trials"] else "skipped"
    print(f"{place:>7} {status:8}{each['number']:>4}  {each['name']}: {each['trials']:,} trials, ", end="")
    print(f"{each['failed']} failed, {each['minutes']} minutes, {each['cpu_minutes']} of a core", flush=True)
    for line in (*each["failures"], *(f"skipped: {reason}" for reason in each["skipped"])):
        print(f"              {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
