"""Progress and messages on standard error: a bar on a terminal, plain lines elsewhere."""

import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn


class Screen:
    """Progress on standard error: a bar on a terminal, plain lines elsewhere, nothing when `quiet`."""

    def __init__(self, quiet: bool = False) -> None:
        console = Console(stderr=True, highlight=False)
        self.quiet = quiet
        terminal = console.is_terminal and not quiet
        self.bar = Progress(*self.columns(), console=console, transient=True) if terminal else None

    @staticmethod
    def columns() -> tuple[ProgressColumn, ...]:
        """The parts of the bar."""
        return TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}")

    def say(self, text: str) -> None:
        """One line."""
        if not self.quiet:
            self._print(text)

    def warn(self, text: str) -> None:
        """One line that is shown even when quiet."""
        self._print(f"linnet: warning: {text}")

    def work(self, what: str) -> Callable[[int, int], None]:
        """A function to call with (done, in all) as a piece of work goes on; the first call announces it."""
        lines: list[TaskID] = []

        def show(done: int, total: int) -> None:
            if self.bar is not None:
                self.bar.start()
                lines[:] = lines or [self.bar.add_task(what, note="")]
                self.bar.update(lines[0], completed=done, total=total, note=f"{done / max(total, 1):.0%}")
            elif not lines:
                lines.append(TaskID(0))
                self.say(what)

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
            print(text, file=sys.stderr, flush=True)
