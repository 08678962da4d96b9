"""The schemas of the JSON files of a checkpoint: its manifest, and the training state besides the weights.

Types are strict. A later linnet may add keys to the state; unknown keys are ignored.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

FORMAT = "linnet-checkpoint-1"
SHARDED_FORMAT = "linnet-sharded-checkpoint-1"
LARGEST = 1 << 26  # bytes of a manifest or a state

Natural = Annotated[int, Field(ge=0, lt=2**63)]
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Saved(BaseModel):
    """A part of a checkpoint: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class Entry(_Saved):
    """The size in bytes and the SHA-256 of a file, or of its beginning."""

    size: Natural
    sha256: Sha256


class _Files(_Saved):
    """The files that a manifest lists."""

    model: Entry = Field(alias="model.safetensors")
    optimizer: Entry = Field(alias="optimizer.safetensors")
    state: Entry = Field(alias="state.json")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.state.size > LARGEST:
            raise ValueError(f"state.json has {self.state.size:,} bytes: at most {LARGEST:,} are read")
        return self


class _Ties(_Saved):
    """Names of tensors that are stored under another name."""

    model: dict[str, str]
    optimizer: dict[str, str]


class Manifest(_Saved):
    """The content of `manifest.json` besides its own SHA-256."""

    format: Literal["linnet-checkpoint-1"]
    step: Natural
    files: _Files
    tied: _Ties


class Rows(_Saved):
    """Which rows [start, stop) of a tensor of this shape a file has; None if all of it."""

    shape: list[Natural]
    rows: Annotated[list[Natural], Field(min_length=2, max_length=2)] | None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.rows is not None and not (self.shape and self.rows[0] < self.rows[1] <= self.shape[0]):
            raise ValueError(f"rows {self.rows} are not those of a tensor of shape {self.shape}")
        return self

    @property
    def own_shape(self) -> list[int]:
        """The shape of what the file has."""
        return self.shape if self.rows is None else [self.rows[1] - self.rows[0], *self.shape[1:]]


class ShardEntry(Entry):
    """A file of one rank: its size, its SHA-256 and its tensors."""

    tensors: dict[str, Rows]


ShardName = Annotated[str, Field(pattern=r"^(model|optimizer)-[0-9]{5,9}\.safetensors$")]


class ShardedManifest(_Saved):
    """The content of the `manifest.json` of a checkpoint that several ranks have written, besides its own SHA-256."""

    format: Literal["linnet-sharded-checkpoint-1"]
    step: Natural
    state: Entry
    shards: dict[ShardName, ShardEntry]

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.state.size > LARGEST:
            raise ValueError(f"state.json has {self.state.size:,} bytes: at most {LARGEST:,} are read")
        for part in ("model", "optimizer"):
            found: dict[str, list[Rows]] = {}
            for shard in self.of_part(part).values():
                for name, rows in shard.tensors.items():
                    found.setdefault(name, []).append(rows)
            for name, pieces in found.items():
                _check_rows(name, pieces)
        return self

    def of_part(self, part: str) -> dict[str, ShardEntry]:
        """The files of the model or of the optimizer."""
        return {file: shard for file, shard in self.shards.items() if file.startswith(f"{part}-")}


def _check_rows(name: str, pieces: list[Rows]) -> None:
    """Raise unless the pieces of a tensor are all of it, each row once."""
    end = 0
    for piece in sorted(pieces, key=lambda piece: piece.rows or []):
        start, stop = piece.rows or (0, piece.shape[0] if piece.shape else 1)
        if piece.shape != pieces[0].shape or start != end:
            raise ValueError(f"the parts of {name} do not fit together")
        end = stop
    if (pieces[0].rows is None and len(pieces) > 1) or end != (pieces[0].shape or [1])[0]:
        raise ValueError(f"the parts of {name} are not all of it")


class Position(_Saved):
    """The progress of a run; with the weights and the optimizer state this is all that resuming needs."""

    model_config = ConfigDict(frozen=False)  # the training loop updates it

    step: Natural = 0  # updates done
    tokens: Natural = 0  # read so far
    evaluated: Natural = 0  # the step of the last evaluation
    best_step: Natural | None = None
    best_loss: float | None = None  # or another number that the task ranks by
    best_steps: list[Natural] = []  # as many as are kept, the best first
    best_ranks: list[float] = []  # the numbers they are ranked by
    loss: float = 0.0  # summed since the last record
    terms: Natural = 0  # number of terms in that sum
    updates: Natural = 0  # since the last record
    norms: list[float] = []  # sums of gradient norms over these updates: of the model, then of each layer
    squares: list[float] = []  # sums of the squared norms

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.evaluated > self.step or (self.best_step or 0) > self.evaluated or self.updates > self.step:
            raise ValueError("an evaluation, the best step or the number of updates is beyond the step")
        if (self.best_step is None) != (self.best_loss is None):
            raise ValueError("best_step and best_loss must be set together")
        if len(self.best_steps) != len(self.best_ranks) or max(self.best_steps, default=0) > self.evaluated:
            raise ValueError("best_steps and best_ranks do not belong together")
        if self.best_steps and (self.best_steps[0], self.best_ranks[0]) != (self.best_step, self.best_loss):
            raise ValueError("best_steps does not begin with best_step")
        if len(self.norms) != len(self.squares) or bool(self.norms) != bool(self.updates):
            raise ValueError("norms and squares do not match the updates")
        return self

    def add_evaluation(self, rank: float, keep: int) -> None:
        """Record the evaluation of this step; of equal ranks, the earlier step is better. Remembers the best `keep`."""
        self.evaluated = self.step
        known = list(zip(self.best_ranks, self.best_steps, strict=True))
        if not known and self.best_step is not None and self.best_loss is not None:  # of an earlier linnet
            known = [(self.best_loss, self.best_step)]
        best = sorted([*known, (rank, self.step)])[:keep]
        self.best_ranks, self.best_steps = [r for r, _ in best], [s for _, s in best]
        self.best_loss, self.best_step = best[0]


class State(_Saved):
    """The content of `state.json`; a checkpoint of an earlier linnet lacks some of it."""

    model_config = ConfigDict(extra="ignore")

    position: Position | None = None
    versions: dict[str, str] | None = None
    threads: Natural | None = None
    device: str | None = None
    backend: str | None = None
    kernels: str | None = None
    data: dict[str, str] | None = None
    settings: dict[str, Any] | None = None
    metrics: Entry | None = None  # of metrics.jsonl as it was when the checkpoint was saved


def state_fault(error: ValidationError) -> str:
    """The first error of a schema, in one line."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    return " ".join(f"{place}: {message}".split()) if place else message


def unique_state_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; raises if a key occurs twice."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("a name occurs twice")
    return table
