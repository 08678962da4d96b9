"""The `linnet` program: collects the commands and turns every failure into one line and an exit code.

To add a command, write `linnet/cli/<name>.py` with a function `<name>_command` and add the name to COMMANDS.
"""

import io
import os
import resource
import shlex
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer
from typer.main import get_command

from linnet import __version__
from linnet.distributed.ranks import launched_ranks
from linnet.errors import InputError, LinnetError

# In the order of `linnet --help`.
COMMANDS = (
    *("demo", "train", "finetune", "resume", "evaluate", "predict", "generate", "export", "convert"),
    *("verify", "repair"),
    *("data", "analyze", "report", "bench", "audit", "reproduce", "sweep", "list", "doctor"),
)

TRAINING = ("train", "resume", "finetune")  # what torchrun may start
FEW_THREADS = 4096  # limits above this need no check

app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings={"max_content_width": 100})


def _version(wanted: bool) -> None:
    if wanted:
        print(f"linnet {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def linnet_app(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print the traceback of a failure; before COMMAND.")] = False,
) -> None:
    """Transformers whose cost grows linearly with length.

    Every command explains itself: `linnet COMMAND --help` shows its options and an example.

    \b
    Example:
      linnet list attention
    """
    del version, debug  # the callback and `run_app` have handled it
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


for _name in COMMANDS:
    _hint = f"`linnet --debug {_name} ...` prints the traceback of a failure."
    app.command(_name, epilog=_hint)(getattr(import_module(f"linnet.cli.{_name}"), f"{_name}_command"))


def run_app(args: Sequence[str]) -> int:
    """Run one command line and return its exit code: 0, 1 failed, 2 bad usage, 130 interrupted.

    `--debug` before the command shows the traceback of a failure.
    """
    if list(args[:1]) == ["--debug"]:
        return _invoke(args[1:])
    try:
        _check_threads(args)
        _check_ranks(args)
        code = _invoke(args)
        launched_ranks().leave()
        return code
    except LinnetError as error:
        return _fail(str(error), error.exit_code)
    except typer.TyperException as error:
        return _fail(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except OSError as error:
        place = f": {error.filename}" if error.filename is not None else ""
        return _fail(f"{error.strerror or error}{place}", 1)
    except Exception as error:  # noqa: BLE001  a bug of ours is reported in one line too
        if _lacks_memory(error):
            return _fail("not enough memory: a smaller model, train.batch or data.context needs less", 1)
        again = f"linnet --debug {shlex.join(args)}"
        return _fail(f"{type(error).__name__}: {error} (a bug in linnet; `{again}` shows the traceback)", 1)


def _invoke(args: Sequence[str]) -> int:
    code = get_command(app).main(args=list(args), prog_name="linnet", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _lacks_memory(error: Exception) -> bool:
    """Whether Python, torch, which has no error of its own for a CPU, or the loader of libraries was refused memory."""
    said = ("allocate memory", "out of memory", "failed to map segment")
    return isinstance(error, MemoryError) or any(words in str(error) for words in said)


def _check_threads(args: Sequence[str]) -> None:
    """Raise if a low limit on processes leaves too few threads: the libraries that start them would end the program."""
    limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if not 0 <= limit < FEW_THREADS or list(args[:1]) == ["list"]:
        return
    done = threading.Event()
    threads = [threading.Thread(target=done.wait) for _ in range(3 * (os.cpu_count() or 1))]  # OpenMP, BLAS, tokenizers
    started = []
    try:
        for thread in threads:
            thread.start()
            started.append(thread)
    except RuntimeError:
        need = f"linnet may start {len(threads)} threads, and could start {len(started)}"
        raise LinnetError(f"too few threads are allowed: {need}; the limit is {limit} (ulimit -u)") from None
    finally:
        done.set()
        for thread in started:
            thread.join()


def _check_ranks(args: Sequence[str]) -> None:
    """Raise if torchrun has started a command that one process does."""
    asks = {"--help", "--version"} & set(args)
    if launched_ranks().launched and not asks and not any(args[:1] == [name] for name in TRAINING):
        raise InputError(f"torchrun starts only {', '.join(TRAINING)}: run `linnet {shlex.join(args)}` without it")


def _fail(message: str, code: int) -> int:
    from linnet.screen import forgiving_screen

    message, code = launched_ranks().fail(" ".join(message.split()), code)
    with forgiving_screen("stderr"):
        if message:
            print("linnet:", message, file=sys.stderr)
    return code


def _fill_standard_descriptors() -> None:
    """Open descriptors 0 to 2 if they were closed (`2>&-`); otherwise a file of a run could get one and its output.

    Python has no stream for one that was closed; what is printed to it then is discarded.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def main() -> None:
    """Entry point of the `linnet` script."""
    _fill_standard_descriptors()
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape")  # a folder's name that is not text is printed as it is
    code = run_app(sys.argv[1:])
    launched_ranks().end(code)
    sys.exit(code)
