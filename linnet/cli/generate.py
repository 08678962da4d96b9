"""`linnet generate`: continue a text with a trained model, printed token by token."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json
from linnet.cli.evaluate import Checkpoint
from linnet.errors import InputError

Run = Annotated[Path, typer.Argument(help="The folder of a run or of an exported model.", metavar="DIR")]
Prompt = Annotated[str | None, typer.Option("--prompt", help="The text to continue.")]
PromptFile = Annotated[
    str | None, typer.Option("--prompt-file", help="A file with the text to continue; - reads standard input.")
]
Stop = Annotated[list[str] | None, typer.Option("--stop", help="Stop before this text; repeatable.")]
IgnoreEnd = Annotated[bool, typer.Option("--ignore-end", help="Continue past the end of a document.")]
Penalty = Annotated[float, typer.Option(help="Above 1, tokens that already occur in the text become less likely.")]


def generate_command(
    folder: Run,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to generate.")] = 64,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the most likely token; 1 samples from the model's probabilities.")
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Sample only from the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the fewest tokens that reach probability p.")] = None,
    repetition_penalty: Penalty = 1.0,
    stop: Stop = None,
    ignore_end: IgnoreEnd = False,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text; a new one by default.")] = None,
    checkpoint: Checkpoint = "last",
    json: Json = False,
) -> None:
    """Generate text after a prompt.

    The text is printed token by token. It ends after --max-new-tokens, at the end of a document (unless --ignore-end),
    or before a --stop text. If the mechanism has a recurrent state, memory does not grow with the length.

    \b
    Examples:
      linnet generate runs/mine --prompt "def main" --max-new-tokens 100
      linnet generate runs/mine --prompt "The" --temperature 0.8 --top-p 0.9 --seed 1
      linnet generate runs/mine --prompt-file begin.txt --stop "THE END" --repetition-penalty 1.2
    """
    from linnet.models.generate import Sampling
    from linnet.models.loading import load_model
    from linnet.models.write import Writing, draw_writing_seed
    from linnet.screen import Screen
    from linnet.train.checkpoint_step import run_checkpoint_step

    prompt = _prompt(prompt, prompt_file)
    model = load_model(folder, run_checkpoint_step(folder, checkpoint), Screen(quiet=json).warn)
    if model.tokenizer_file is None:
        raise InputError(f"{folder} has no tokenizer.json: only a text model can generate text")
    seed = draw_writing_seed() if seed is None else seed
    start = time.perf_counter()
    sampling = Sampling(temperature, top_k, top_p, seed, repetition_penalty)
    writing = Writing(model, prompt, max_new_tokens, sampling, stop or (), ignore_end)
    if json:
        text, seconds = prompt + "".join(writing), time.perf_counter() - start
        sizes = {"prompt_tokens": len(writing.prompt), "new_tokens": writing.tokens}
        print_cli_json({"text": text, **sizes, "seed": seed, "seconds": round(seconds, 3)})
        return
    first = prompt
    for piece in writing:
        print(first + piece, end="", flush=True)
        first = ""
    print(first)


def _prompt(text: str | None, file: str | None) -> str:
    """The text to continue, without the line end at the end of a file."""
    if (text is None) == (file is None):
        what = "is missing" if text is None else "and --prompt-file are both given"
        raise InputError(f"--prompt {what}: give --prompt TEXT, or --prompt-file FILE, where - is standard input")
    if text is not None:
        return text
    try:
        source = sys.stdin.buffer.read() if file == "-" else Path(str(file)).read_bytes()
        return source.decode().removesuffix("\n")
    except OSError as error:
        raise InputError(f"--prompt-file is {file}: it cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"--prompt-file is {file}: it is not UTF-8 text") from None
