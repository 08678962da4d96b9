"""Promise 13: numbers that are not finite."""

import random
import shutil

import torch

from linnet.storage import checkpoint_steps, newest_checkpoint
from linnet.train import loop
from linnet.train.finite import NonFiniteError
from linnet.train.run import start_run
from tests.prove.promise import Trials, promise
from tests.prove.runs import QUIET, small_run
from tests.storage.faults import no_warning


@promise(
    "13",
    "A number that is not finite ends the run in the same step, with its place, and is never saved.",
    "NaN and infinities put into a weight, a gradient, the loss or an embedding at a random step of a run.",
)
def not_finite(trials: Trials) -> None:
    """200 injections."""
    rng, original = random.Random(0), loop.Trainer._add
    for i in range(trials.number(200, 8)):
        where = rng.choice(("weight", "gradient", "loss", "activation"))
        bad, at = rng.choice((float("nan"), float("inf"), float("-inf"))), rng.randint(1, 6)

        def spoiled(trainer, part, step, where=where, bad=bad, at=at):
            if step != at:
                return original(trainer, part, step)
            parameters = [p for p in trainer.model.parameters() if p.numel() > 1]
            chosen = rng.choice(parameters)
            if where == "weight":
                with torch.no_grad():
                    chosen.view(-1)[rng.randrange(chosen.numel())] = bad
            hooks = []
            if where == "gradient":
                hooks.append(chosen.register_hook(lambda gradient: gradient * bad))
            if where == "activation":
                hooks.append(trainer.model.blocks[0].register_forward_hook(lambda m, a, out: out * bad))
            task_loss = trainer.task.loss
            if where == "loss":
                trainer.task.loss = lambda model, part: (task_loss(model, part)[0] * bad, task_loss(model, part)[1])
            try:
                return original(trainer, part, step)
            finally:
                trainer.task.loss = task_loss
                for hook in hooks:
                    hook.remove()

        loop.Trainer._add = spoiled
        folder, said = trials.folder / "run", ""
        kind, every = rng.choice(("causal_lm", "recall")), (1, 100)[i % 2]  # between saves only the update is looked at
        config = small_run(trials.folder, kind, steps=8, save_every=every, eval_every=0)
        try:
            start_run(config, folder, QUIET)
        except NonFiniteError as error:
            said = str(error)
        finally:
            loop.Trainer._add = original
        saved = checkpoint_steps(folder / "checkpoints")
        early = said.startswith((f"step {at}: ", f"step {at + 1}: "))  # an unused row of weights spoils the next step
        # A weight that this step does not read is found where it is saved or read.
        kept = early and not [step for step in saved if step > at] and "\n" not in said
        if saved:
            newest = newest_checkpoint(folder / "checkpoints", no_warning)
            kept = kept and all(bool(torch.isfinite(t).all()) for t in newest.model.values() if t.is_floating_point())
        trials.check(kept, f"trial {i}: {bad} in a {where} at step {at}: {said or 'nothing was said'}; saved {saved}")
        shutil.rmtree(folder)
