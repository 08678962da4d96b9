"""What a promise is: a sentence, how it is tried, and a function that counts trials and failures."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from linnet.errors import LinnetError

FIRST = 5  # failures that are recorded in words


class Skip(Exception):
    """This machine cannot try the promise; the message says why."""


@dataclass
class Trials:
    """The trials of one promise: how many there were, and what failed. `folder` is theirs alone."""

    folder: Path
    short: bool
    tell: Callable[[int], None] | None = None  # hears the number of trials, at most once in a second
    count: int = 0
    failed: int = 0
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)
    told: float = 0.0

    def number(self, whole: int, short: int) -> int:
        """How many trials to do: `whole` in `make prove`, `short` in `make test`."""
        return short if self.short else whole

    def check(self, kept: bool, what: object) -> None:
        """Count a trial; `what` describes it if the promise was not kept."""
        self.count += 1
        self.go_on()
        if not kept:
            self.failed += 1
            if len(self.failures) < FIRST:
                self.failures.append(" ".join(str(what).split())[:400])

    def go_on(self) -> None:
        """Say that the trials have not stopped; a long one calls it now and then."""
        if self.tell is not None and time.monotonic() > self.told + 1:
            self.tell(self.count)
            self.told = time.monotonic()

    @contextlib.contextmanager
    def survives(self, what: object) -> Iterator[None]:
        """Count a trial that fails if the block raises."""
        error = None
        try:
            yield
        except Skip:
            raise
        except Exception as caught:  # noqa: BLE001  whatever it is, the promise was not kept
            error = caught
        self.check(error is None, f"{what}: {type(error).__name__}: {error}")

    def one_line(self, action: Callable[[], object], what: object) -> bool:
        """Count a trial: `action` succeeds, or raises a LinnetError of one line. Returns whether it succeeded."""
        start, done, kept, said = time.perf_counter(), False, False, ""
        try:
            action()
            done = kept = True
        except LinnetError as error:
            said = str(error)
            kept = "\n" not in said and 0 < len(said) < 2000
        except Exception as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}"
        self.check(kept and time.perf_counter() - start < 60, f"{what}: {said}")
        return done


@dataclass(frozen=True)
class Promise:
    """A promise by its number in the list, its name, a sentence, how it is tried, and the function that tries it."""

    number: str
    name: str
    sentence: str
    how: str
    prove: Callable[[Trials], None]


PROMISES: dict[str, Promise] = {}


def promise(number: str, sentence: str, how: str) -> Callable[[Callable[[Trials], None]], Callable[[Trials], None]]:
    """Register a function as the trials of a promise; its name becomes that of the promise."""

    def add(function: Callable[[Trials], None]) -> Callable[[Trials], None]:
        assert function.__name__ not in PROMISES
        PROMISES[function.__name__] = Promise(number, function.__name__, sentence, how, function)
        return function

    return add
