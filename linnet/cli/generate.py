"""`linnet generate`: continue a text with a trained model, printed token by token."""

import time
from pathlib import Path
from typing import Annotated

import typer

from linnet.cli import Json, print_cli_json
from linnet.cli.evaluate import Checkpoint
from linnet.errors import InputError

Run = Annotated[Path, typer.Argument(help="The folder of a run or of an exported model.", metavar="DIR")]
Prompt = Annotated[str, typer.Option("--prompt", help="The text to continue.")]


def generate_command(
    folder: Run,
    prompt: Prompt,
    max_new_tokens: Annotated[int, typer.Option(help="How many tokens to generate.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token; 1 samples as trained.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Sample only from the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the fewest tokens that reach probability p.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    checkpoint: Checkpoint = "last",
    json: Json = False,
) -> None:
    """Generate text after a prompt.

    The text is printed token by token. If the mechanism has a recurrent state, memory does not grow with the length.

    \b
    Examples:
      linnet generate runs/mine --prompt "def main" --max-new-tokens 100
      linnet generate runs/mine --prompt "The" --temperature 0.8 --top-p 0.9 --seed 1
    """
    import torch

    from linnet.data.tokenizer import TextStream, Tokenizer
    from linnet.models.generate import Sampling
    from linnet.models.loading import load_model
    from linnet.screen import Screen
    from linnet.train.run import run_checkpoint_step

    model = load_model(folder, run_checkpoint_step(folder, checkpoint), Screen(quiet=json).warn)
    if not (folder / "tokenizer.json").exists():
        raise InputError(f"{folder} has no tokenizer.json: only a text model can generate text")
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    ids = tokenizer.encode(prompt)
    if not ids:
        raise InputError(f"--prompt is {prompt!r}: it has no tokens, and it needs at least one")
    start, new = time.perf_counter(), 0
    text = TextStream(tokenizer, after=ids)
    parts, shown = [prompt], 0
    sampling = Sampling(temperature, top_k, top_p, seed)
    for token in model.stream(torch.tensor([ids]), max_new_tokens, sampling):
        parts.append(text.push(int(token)) if token < tokenizer.vocab_size else "")  # a model may have spare ids
        new += 1
        if not json:
            print("".join(parts[shown:]), end="", flush=True)
            shown = len(parts)
    parts.append(text.close())
    if json:
        seconds = time.perf_counter() - start
        print_cli_json(
            {"text": "".join(parts), "prompt_tokens": len(ids), "new_tokens": new, "seconds": round(seconds, 3)}
        )
    else:
        print("".join(parts[shown:]))
