"""Progress and messages on standard error: a bar on a terminal, plain lines elsewhere.

Output never stops a run. If the reader is gone (`linnet train ... 2>&1 | head`), the terminal is closed or the disk is
full, the output is lost, but training continues and its exit code does not change.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import IO, Any, Literal, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn

Name = Literal["stderr", "stdout"]
PAUSE = 30.0  # seconds between two lines about the same work, where there is no bar


def _stream(name: Name) -> Any:
    """The real standard stream, even if rich has put a proxy in its place; None if it was closed before the start."""
    found = getattr(sys, name)
    return getattr(found, "rich_proxied_file", found)


@contextmanager
def forgiving_screen(name: Name) -> Iterator[None]:
    """Print inside this block; if printing fails, this and all later output of the stream is discarded."""
    try:
        yield
        if _stream(name) is not None:
            _stream(name).flush()
    except (OSError, ValueError):  # a ValueError: the stream has been closed
        # Flushing the rest of the buffer at exit would fail again and change the exit code.
        with suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, _stream(name).fileno())
            os.close(null)


class Output:
    """A standard stream as a file that never fails."""

    def __init__(self, name: Name) -> None:
        self.name = name

    def write(self, text: str) -> int:
        """Write at once, or discard."""
        with forgiving_screen(self.name):
            if _stream(self.name) is not None:
                _stream(self.name).write(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing: `write` flushes."""

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return _stream(self.name) is not None and bool(_stream(self.name).isatty())

    @property
    def encoding(self) -> str:
        """The encoding of the stream."""
        return getattr(_stream(self.name), "encoding", None) or "utf-8"


class Screen:
    """Progress on standard error: a bar on a terminal, plain lines elsewhere, only warnings when `quiet`.

    A `silent` one prints nothing: of the ranks of a run, one speaks.
    """

    def __init__(self, quiet: bool = False, silent: bool = False) -> None:
        self.output, self.silent, quiet = Output("stderr"), silent, quiet or silent
        console = Console(file=cast(IO[str], self.output), highlight=False)
        self.quiet = quiet
        terminal = console.is_terminal and not quiet
        self.bar = Progress(*self.columns(), console=console, transient=True) if terminal else None

    @staticmethod
    def columns() -> tuple[ProgressColumn, ...]:
        """The columns of the bar."""
        return TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}")

    def say(self, text: str) -> None:
        """Print one line."""
        if not self.quiet:
            self._print(text)

    def warn(self, text: str) -> None:
        """Print a warning, even when quiet."""
        if not self.silent:
            self._print(f"linnet: warning: {text}")

    def work(self, what: str) -> Callable[[int, int], None]:
        """A function to call with (done, total) as work proceeds; its first call announces the work.

        Without a bar, work that takes long is said again from time to time, with the part that is done.
        """
        lines: list[TaskID] = []
        said = 0.0

        def show(done: int, total: int) -> None:
            nonlocal said
            part = f"{done / max(total, 1):.0%}"
            if self.bar is not None:
                self.bar.start()
                lines[:] = lines or [self.bar.add_task(what, note="")]
                self.bar.update(lines[0], completed=done, total=total, note=part)
            elif not said or time.monotonic() - said >= PAUSE:
                self.say(f"{what}: {part}" if said else what)
                said = time.monotonic()

        return show

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.stop()
            for line in list(self.bar.task_ids):
                self.bar.remove_task(line)

    def _print(self, text: str) -> None:
        if self.bar is not None:
            self.bar.console.print(text, markup=False, soft_wrap=True)
        else:
            self.output.write(f"{text}\n")
