"""Conversion of a pretrained encoder or decoder: replace its softmax, then train the replacement to imitate it.

Stage 1 chooses scales from the model's own queries and keys. Stage 2, attention transfer, trains only the mechanism:
each layer's output is matched to that of softmax on the same q, k and v. Stage 3 trains the whole model, or only its
attention, to reproduce the hidden states of the original. All stages need only text.
"""

import copy
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from torch import Tensor, nn
from transformers import PreTrainedModel

from linnet.attention.base import Core
from linnet.attention.hedgehog import HedgehogAttention
from linnet.attention.lln import LlnAttention
from linnet.config import Count, Every, Rate, Settings
from linnet.errors import InputError, unknown_name_error
from linnet.figures.table import Table
from linnet.hf.interface import NAME, Call, attend_softmax, record_interface_calls, writing_transformers
from linnet.hf.load import check_folder_to_load, load
from linnet.hf.patch import patch
from linnet.hf.pieces import TextPieces, read_text_pieces
from linnet.ops.masks import layout_of_masks
from linnet.registry import ATTENTION
from linnet.screen import Screen
from linnet.storage import (
    IDLE,
    RunLock,
    checkpoints_to_keep,
    clean_temporary_files,
    newest_checkpoint,
    one_line_file_errors,
    prune_checkpoints,
    save_checkpoint,
    temporary_file_name,
    write_json_file,
    write_text_file,
)
from linnet.storage.state import state_fault

Progress = Callable[[int, int], None]
FACTORS = (0.25, 0.5, 0.7, 1.0)
_WORK = "checkpoints"
_TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt", "vocab.json", "merges.txt"),
)


class ConversionSettings(Settings):
    """How to convert: the mechanism and its options, and the length and rate of the two stages of training."""

    attention: str
    options: dict[str, Any] = Field(default_factory=dict)
    transfer_steps: Every = 300
    """Updates of attention transfer; 0 leaves the mechanism as stage 1 made it."""
    transfer_lr: Rate = 1e-2
    tune_steps: Every = 0
    """Updates of the model itself, towards the hidden states of the original."""
    tune_lr: Rate = 1e-4
    tune: Literal["all", "attention"] = "all"
    """What the last stage trains: every weight but the embeddings, or only those of the attention modules."""
    lengths: Annotated[tuple[Count, ...], Field(strict=False, min_length=1, examples=[[32, 128]])] = (32, 128, 512)
    """Lengths of the pieces of text; each batch has one of them in turn."""
    batch_tokens: Count = 2048
    save_every: Every = 50
    seed: int = 0


class _Update(BaseModel):
    """One update of the curve."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    step: int
    stage: Literal["transfer", "tuning"]
    loss: float
    seconds: float


class _Progress(BaseModel):
    """The part of a checkpoint's state that is needed to continue."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    step: int
    curve: list[_Update]
    errors: dict[str, list[float]]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if [update.step for update in self.curve] != list(range(1, self.step + 1)):
            raise ValueError(f"the curve has {len(self.curve)} updates, not {self.step}")
        unknown = set(self.errors) - {"as it is", "scales chosen", "after transfer", "after tuning"}
        if unknown:
            raise ValueError(f"errors has {min(unknown)!r}")
        return self


def _warn(line: str) -> None:
    warnings.warn(line, stacklevel=2)


class Conversion:
    """A conversion in progress: the model, its original, the optimizer, and the curve so far."""

    def __init__(self, model: PreTrainedModel, settings: ConversionSettings, pieces: TextPieces) -> None:
        self.settings, self.pieces = settings, pieces
        pieces.check_batch(settings.lengths, settings.batch_tokens)
        self.original = copy.deepcopy(model).eval().requires_grad_(False)
        self.model = patch(model, settings.attention, **settings.options).eval()
        self.cores = dict(enumerate(_cores(self.model)))
        self.step = 0
        self.curve: list[dict[str, Any]] = []
        self.errors: dict[str, list[float]] = {"as it is": self.layer_errors()}
        if any(isinstance(core, HedgehogAttention) for core in self.cores.values()):
            self._choose_scales()
            self.errors["scales chosen"] = self.layer_errors()
        self.optimizer = self._optimizer()

    @property
    def steps(self) -> int:
        """Number of updates of both stages."""
        return self.settings.transfer_steps + self.settings.tune_steps

    def _batch(self, number: int) -> dict[str, Tensor]:
        s = self.settings
        return self.pieces.batch(number, s.lengths[number % len(s.lengths)], s.batch_tokens, s.seed)

    def _calls(self, number: int) -> list[Call]:
        """The queries, keys and values of the original in the layers that were replaced."""
        calls = record_interface_calls(self.original, self._batch(number))
        return [calls[i] for i in self.model.config.linnet["layers"]]

    @torch.no_grad()
    def _choose_scales(self) -> None:
        """Stage 1: W = alpha I for queries and beta I for keys, those of LLN times the best of a few factors."""
        for core, call in zip(self.cores.values(), self._calls(-1), strict=True):
            if not isinstance(core, HedgehogAttention):
                continue
            alpha, beta = _matched_scales(call)
            errors = []
            for factor in FACTORS:
                core.choose_scales(factor * alpha, factor * beta)
                errors.append(_error(core, call, per_head=True))
            best = torch.tensor(FACTORS)[torch.stack(errors).argmin(dim=0)].to(alpha)  # (H,)
            core.choose_scales(best * alpha, best * beta)

    @torch.no_grad()
    def layer_errors(self) -> list[float]:
        """Per layer, the mean squared error of the attention's output, divided by the variance of the original's."""
        return [float(_error(core, call)) for core, call in zip(self.cores.values(), self._calls(-2), strict=True)]

    def _optimizer(self) -> torch.optim.AdamW:
        """The optimizer of the current stage."""
        self.model.requires_grad_(False)
        if self.step < self.settings.transfer_steps:
            chosen, lr = [p for core in self.cores.values() for p in core.parameters()], self.settings.transfer_lr
        else:
            chosen, lr = list(self._tuned().values()), self.settings.tune_lr
        for parameter in chosen:
            parameter.requires_grad_(True)
        return torch.optim.AdamW(chosen or [nn.Parameter(torch.zeros(1))], lr=lr, weight_decay=0.0)

    def _tuned(self) -> dict[str, nn.Parameter]:
        """The parameters that the last stage trains."""
        embeddings = {id(p) for p in self.model.get_input_embeddings().parameters()}
        modules = [name for name, module in self.model.named_modules() if hasattr(module, NAME)]
        kept = {
            name: p for name, p in self.model.named_parameters() if id(p) not in embeddings and "embedding" not in name
        }
        if self.settings.tune == "all":
            return kept
        return {name: p for name, p in kept.items() if any(name.startswith(f"{module}.") for module in modules)}

    def run(
        self, progress: Progress | None = None, folder: Path | None = None, warn: Callable[[str], None] = _warn
    ) -> None:
        """Do the remaining updates; with a `folder`, save checkpoints there and continue the newest one.

        `warn` gets a line for each damaged checkpoint.
        """
        if folder is not None:
            self._continue(folder, warn)
        settings = self.settings
        while self.step < self.steps:
            if self.step == settings.transfer_steps:
                self.errors["after transfer"] = self.layer_errors()
                self.optimizer = self._optimizer()
            started = time.perf_counter()
            loss, stage = self._update()
            self.step += 1
            seconds = time.perf_counter() - started
            self.curve.append({"step": self.step, "stage": stage, "loss": loss, "seconds": round(seconds, 3)})
            if progress is not None:
                progress(self.step, self.steps)
            if folder is not None and settings.save_every and self.step % settings.save_every == 0:
                self._save(folder)
        self.errors["after tuning" if settings.tune_steps else "after transfer"] = self.layer_errors()
        self.model.eval().requires_grad_(True)

    def _update(self) -> tuple[float, str]:
        transfer = self.step < self.settings.transfer_steps
        start = 0 if transfer else self.settings.transfer_steps
        total = self.settings.transfer_steps if transfer else self.settings.tune_steps
        base = self.settings.transfer_lr if transfer else self.settings.tune_lr
        share = (self.step - start) / total
        for group in self.optimizer.param_groups:  # a warmup of a twentieth, then down to a tenth
            group["lr"] = base * min(1.0, (share + 1 / total) * 20) * (1 - 0.9 * share)
        loss = self._transfer_loss() if transfer else self._tuning_loss()
        self.optimizer.zero_grad()
        if loss.requires_grad:
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for g in self.optimizer.param_groups for p in g["params"]], 1.0)
            self.optimizer.step()
        return float(loss.detach()), "transfer" if transfer else "tuning"

    def _transfer_loss(self) -> Tensor:
        """The mean over the layers of their relative error, each on the original's own q, k and v."""
        calls = self._calls(self.step)
        return torch.stack([_error(core, call) for core, call in zip(self.cores.values(), calls, strict=True)]).mean()

    def _tuning_loss(self) -> Tensor:
        """The mean over the layers of the relative error of the hidden states, and that of their mean over the tokens.

        An embedding is such a mean: errors that all tokens share weigh little in each and much in their mean.
        """
        batch = self._batch(self.step)
        with torch.no_grad():
            wanted = self.original(**batch, output_hidden_states=True).hidden_states[1:]
        found = self.model(**batch, output_hidden_states=True).hidden_states[1:]
        layers = [_relative_error(a, b) for a, b in zip(found, wanted, strict=True)]
        return torch.stack(layers).mean() + _relative_error(found[-1].mean(dim=1), wanted[-1].mean(dim=1))

    def _save(self, folder: Path) -> None:
        """Write a checkpoint of everything that training changes."""
        moments = self.optimizer.state_dict()["state"]
        optimizer = {f"{i}.{key}": value for i, entry in moments.items() for key, value in entry.items()}
        state = {"step": self.step, "curve": self.curve, "errors": self.errors, "settings": self._about()}
        save_checkpoint(folder, self.step, self._changed(), optimizer, state)
        prune_checkpoints(folder, checkpoints_to_keep(folder, self.step, (), last=1))

    def _about(self) -> dict[str, Any]:
        """The settings that must not change between a checkpoint and its continuation."""
        return {**self.settings.model_dump(mode="json", exclude={"save_every"}), "text": self.pieces.sha256}

    def _changed(self) -> dict[str, Tensor]:
        """The weights that either stage trains, by name."""
        names = {name for name in self.model.state_dict() if f".{NAME}." in name} | set(self._tuned())
        return {name: tensor for name, tensor in self.model.state_dict().items() if name in names}

    def _continue(self, folder: Path, warn: Callable[[str], None]) -> None:
        """Load the newest checkpoint of a folder, if there is one; raises if it does not fit this conversion."""
        found = newest_checkpoint(folder, warn) if folder.is_dir() else None
        if found is None:
            return
        if found.state.get("settings") != self._about():
            raise InputError(f"{folder} belongs to another conversion: name a new folder, or remove it")
        try:
            progress = _Progress.model_validate({key: found.state.get(key) for key in _Progress.model_fields})
        except ValidationError as error:
            raise InputError(f"{found.path} does not fit this conversion: {state_fault(error)}") from None
        own = self._changed()
        if progress.step != found.step or _forms(found.model) != _forms(own):
            raise InputError(f"{found.path} does not fit this conversion: its step or its weights differ")
        with torch.no_grad():
            for name, tensor in found.model.items():
                own[name].copy_(tensor)
        self.step, self.errors = progress.step, progress.errors
        self.curve = [entry.model_dump() for entry in progress.curve]
        self.optimizer = self._optimizer()
        entries: dict[int, dict[str, Tensor]] = {}
        for i, parameter in enumerate(p for group in self.optimizer.param_groups for p in group["params"]):
            moments = {key: found.optimizer.get(f"{i}.{key}") for key in ("exp_avg", "exp_avg_sq", "step")}
            entries[i] = {key: moment for key, moment in moments.items() if moment is not None}
            wanted = {"exp_avg": _form(parameter), "exp_avg_sq": _form(parameter), "step": ((), torch.float32)}
            if entries[i] and _forms(entries[i]) != wanted:
                raise InputError(f"{found.path} does not fit this conversion: its moments differ")
        if sum(map(len, entries.values())) != len(found.optimizer):
            raise InputError(f"{found.path} does not fit this conversion: it has unknown moments")
        left = {i: entry for i, entry in entries.items() if entry}
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": left})

    def record(self) -> dict[str, Any]:
        """The record for a report: settings, curve, and errors per layer after each stage."""
        return {"settings": self._about(), "curve": self.curve, "layer_errors": self.errors}


def _form(tensor: Tensor) -> tuple[tuple[int, ...], torch.dtype]:
    return tuple(tensor.shape), tensor.dtype


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    return {name: _form(tensor) for name, tensor in tensors.items()}


def _cores(model: PreTrainedModel) -> list[Core]:
    return [getattr(module, NAME) for module in model.modules() if hasattr(module, NAME)]


def _relative_error(found: Tensor, wanted: Tensor) -> Tensor:
    return (found - wanted).square().mean() / wanted.var()


def _error(core: Core, call: Call, per_head: bool = False) -> Tensor:
    """The squared error of a core's output beside that of softmax, relative to the variance; pieces have no padding."""
    wanted = attend_softmax(call.q, call.k, call.v, None, None, call.causal, 0.0)
    gap = (core(call.q, call.k, call.v) - wanted).square()
    return gap.mean(dim=(0, 2, 3)) if per_head else gap.mean() / wanted.var()


def _matched_scales(call: Call) -> tuple[Tensor, Tensor]:
    """LLN's alpha and beta per head (H,), averaged over the batch."""
    B, H, N, D = call.q.shape
    lln = LlnAttention(H, D, False, LlnAttention.Options())
    alpha, beta, _ = lln.scales(call.q, call.k, False, layout_of_masks(B, N, call.key_mask, None, call.q.device))
    return alpha.mean(dim=(0, 2, 3)), beta.mean(dim=(0, 2, 3))


def conversion_summary(record: Mapping[str, Any]) -> str:
    """A Markdown table of the errors per layer after each stage."""
    errors = record["layer_errors"]
    columns = ["relative error of layer", *map(str, range(len(next(iter(errors.values())))))]
    rows = [[stage, *(f"{error:.4f}" for error in row)] for stage, row in errors.items()]
    return Table("errors per layer", columns, rows).to_markdown()


def convert_folder(folder: Path, text: Path, out: Path, settings: ConversionSettings, screen: Screen) -> dict[str, Any]:
    """Convert the model in a Transformers folder and write it to a new folder; a repeated call continues.

    While it works, `out` holds only checkpoints. Returns what conversion.json holds.
    """
    if out.exists() and (not out.is_dir() or any(path.name != _WORK for path in out.iterdir())):
        raise InputError(f"{out} exists: a converted model is written to a new folder")
    check_folder_to_load(folder)
    if settings.attention not in ATTENTION:
        raise unknown_name_error("attention", settings.attention, ATTENTION.names())
    pieces = read_text_pieces(text, folder)
    pieces.check_batch(settings.lengths, settings.batch_tokens)
    model = load(folder)
    limit = getattr(model.config, "max_position_embeddings", None)
    if isinstance(limit, int) and max(settings.lengths) > limit:
        raise InputError(f"lengths contains {max(settings.lengths)}: the model has {limit} positions")
    conversion = Conversion(model, settings, pieces)
    work = out / _WORK
    with one_line_file_errors("write", out):
        work.mkdir(parents=True, exist_ok=True)
    with RunLock(work):
        clean_temporary_files(out.absolute().parent, IDLE, shared=True)
        clean_temporary_files(work)
        try:
            show = screen.work(f"converting {folder} to {settings.attention}")
            conversion.run(show, work, screen.warn)
        finally:
            screen.close()
        record = conversion.record()
        _write(conversion.model, folder, out, record)
    return record


def _write(model: PreTrainedModel, folder: Path, out: Path, record: dict[str, Any]) -> None:
    """Replace the checkpoints by the model, the tokenizer's files and the record."""
    temporary = temporary_file_name(out)
    with one_line_file_errors("write", out, temporary), writing_transformers():
        model.save_pretrained(temporary)
        for name in _TOKENIZER_FILES:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, temporary / name)
        write_json_file(temporary / "conversion.json", record)
        about = record["settings"]
        write_text_file(
            temporary / "README.md",
            f"# A model converted to {about['attention']} by linnet\n\n`linnet.hf.load` restores it; "
            "`from_pretrained` alone would run the original softmax on changed weights.\n\n"
            f"Relative error of each layer's attention:\n\n{conversion_summary(record)}\n",
        )
        if out.exists():
            shutil.rmtree(out)
        temporary.replace(out)
