"""Measure the language model of a run on any text: loss and perplexity, as on a split of its data."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linnet.data.packing import Blocks, Stream
from linnet.errors import InputError
from linnet.models.loading import load_model
from linnet.screen import Screen
from linnet.storage import LARGEST_TEXT, read_regular_file
from linnet.tasks.base import summed_task_loss, task_perplexity
from linnet.train.check import check_and_read_config
from linnet.train.checkpoint_step import run_checkpoint_step


def evaluate_text(folder: Path, file: Path, screen: Screen, checkpoint: str = "last") -> dict[str, Any]:
    """Loss and perplexity of a causal language model on the text of a file, in blocks of the run's context."""
    config = check_and_read_config(folder)
    if config.task != "causal_lm":
        raise InputError(f"--text needs a run of causal_lm: {folder} is a run of {config.task}")
    try:
        text = read_regular_file(file, LARGEST_TEXT).decode()
    except OSError as error:
        raise InputError(f"--text is {file}: it cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"--text is {file}: it is not UTF-8 text") from None
    if not text:
        raise InputError(f"--text is {file}: it is empty")
    model = load_model(folder, run_checkpoint_step(folder, checkpoint), screen.warn)
    tokens = np.concatenate(list(model.tokenizer.encode_document(text)))
    words = len(text.split()) + text.count("\n") + (not text.endswith("\n"))
    stream = Stream("text", tokens, words, len(text.encode()))
    blocks, context = Blocks(stream, config.data.context, whole=True), config.data.context  # type: ignore[attr-defined]
    total, show = 0.0, screen.work(f"evaluating on {file}")
    try:
        for start in range(0, len(blocks), config.train.batch):
            chosen = np.arange(start, min(start + config.train.batch, len(blocks)))
            ids, targets = map(torch.from_numpy, blocks.causal(chosen))
            with torch.no_grad():
                total += float(summed_task_loss(model(ids).flatten(0, 1), targets.flatten()))
            show(int(chosen[-1]) + 1, len(blocks))
    finally:
        screen.close()
    loss, count = total / len(tokens), len(tokens)
    found = {"text": str(file), "loss": loss, "perplexity": task_perplexity(loss)}
    found |= {"word_perplexity": task_perplexity(total / words), "bits_per_byte": total / math.log(2) / stream.bytes}
    return {**found, "tokens": count, "words": words, "bytes": stream.bytes, "context": context}
