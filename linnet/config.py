"""Configuration: frozen sections that forbid unknown keys, recipes in TOML, and one-line errors for mistakes in them.

Defaults come first, then a recipe, then `--set a.b=c`. Nothing here imports torch, so a mistake in a recipe is reported
at once.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError, model_validator

from linnet.errors import InputError, unknown_name_error
from linnet.registry import DEFAULT_TASK, TASK


class Section(BaseModel):
    """A table of settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


S = TypeVar("S", bound=Section)


def parse_config_section(cls: type[S], table: Mapping[str, Any], name: str) -> S:
    """Parse `table` as a `cls`; errors name the key, the value and what is allowed.

    `name` is the prefix of the keys, as in "train.steps"; it is empty for the whole configuration.
    """
    for key in table:
        if key not in cls.model_fields:
            if not cls.model_fields:
                raise InputError(f"{name} has no options: {key}={short_config_value(table[key])} is not allowed")
            raise unknown_name_error(
                f"key of {name}" if name else "key", key, cls.model_fields, _meant(table, key, name)
            )
    try:
        return cls(**table)
    except ValidationError as error:
        raise InputError(_explain(cls, dict(error.errors()[0]), name)) from None


# What other libraries call a key of a section; for the top, where a key was written without its section, also its own.
SLIPS = {
    "train": {
        **dict.fromkeys(("epochs", "iterations", "max_steps", "num_steps"), "steps"),
        "batch_size": "batch",
        "learning_rate": "lr",
        "warmup_steps": "warmup",
    },
    "data": dict.fromkeys(("length", "max_length", "seq_len", "sequence_length", "block_size"), "context"),
    "model": {
        **dict.fromkeys(("attention", "mechanism", "mixer", "depth", "num_layers", "n_layers"), "layers"),
        **dict.fromkeys(("dim", "d_model", "hidden_size"), "width"),
        **dict.fromkeys(("num_heads", "n_heads"), "heads"),
        **{key: key for key in ("preset", "layers", "width", "heads", "ffn_width", "dropout", "options")},
    },
}


def _meant(table: Mapping[str, Any], key: str, name: str) -> str | None:
    """The full key that the user probably means: another library's name for it, or a key without its section."""
    if not name:
        for section, value in table.items():
            if isinstance(value, Section) and key in type(value).model_fields:
                return f"{section}.{key}"
    return next((f"{place}.{keys[key]}" for place, keys in SLIPS.items() if name in ("", place) and key in keys), None)


def _explain(cls: type[Section], fault: dict[str, Any], name: str) -> str:
    """A pydantic error as one line about the table as the user wrote it."""
    kind, loc, message = fault["type"], fault["loc"], fault["msg"].removeprefix("Value error, ")
    if not loc:  # a rule about several keys: its message names them
        return f"{name}: {message}"
    path = [*([name] if name else []), *map(str, loc)]
    if path[-1] == "[key]":  # the key of a table is wrong: the message names it
        return f"{'.'.join(path[:-2])}: {message}"
    if kind == "missing" and isinstance(loc[-1], str):
        return f"{'.'.join(path)} is missing"
    if kind == "string_too_short":
        return f"{'.'.join(path)} is empty"
    if kind == "too_long" and fault["ctx"]["max_length"] > 2:  # a pair is shown as an example below
        most = f"at most {fault['ctx']['max_length']:,} are allowed"
        return f"{'.'.join(path)} has {len(fault['input']):,} entries: {most}"
    if kind in ("tuple_type", "too_short", "too_long", "missing"):
        path = path[:-1] if kind == "missing" else path  # pydantic names the entry that a list should have
        (example,) = cls.model_fields[loc[0]].examples or ("",)
        message = f"it must be a list such as {json.dumps(example)}" if example else message
    return f"{'.'.join(path)} is {short_config_value(fault['input'])}: {message}"


def short_config_value(value: object) -> str:
    """`repr` for an error message: cuts long text and never fails."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or endlessly nested tables
        text = f"a very large {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


class Settings(Section):
    """A section of a recipe: values are not converted between types, and NaN is refused."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


LARGEST = 1 << 24  # bytes of a TOML file

Count = Annotated[int, Field(ge=1, le=10**9)]
Every = Annotated[int, Field(ge=0, le=10**9)]  # 0: never
Rate = Annotated[float, Field(ge=0, le=10)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Place = Annotated[str, Field(min_length=1)] | None  # a path


class DataSettings(Settings):
    """The [data] table of a task. Each task declares its own; paths are fields of type `Place`."""

    @classmethod
    def paths(cls) -> tuple[str, ...]:
        """The keys that hold a path."""
        return tuple(name for name, field in cls.model_fields.items() if field.annotation == Place)

    def full_paths(self) -> dict[str, Any]:
        """The settings that hold paths, with full paths, so that a run can be resumed from any folder."""
        places = {name: getattr(self, name) for name in self.paths()}
        return {name: str(Path(place).absolute()) for name, place in places.items() if place is not None}

    def without_paths(self) -> dict[str, Any]:
        """Every setting that a resumed run must keep: its data may have moved."""
        return self.model_dump(mode="json", exclude=set(self.paths()))

    def check(self) -> None:
        """Raise if settings contradict each other or one is missing; a recipe alone may be incomplete."""


def config_data_class(task: object) -> type[DataSettings]:
    """The class of a task's [data] table. Task files do not import torch, so a mistake is reported at once."""
    if not isinstance(task, str):
        raise InputError(f"task is {short_config_value(task)}: it must be a name, one of {', '.join(TASK.names())}")
    found: type[DataSettings] = TASK[task].Data
    return found


class TrainConfig(Settings):
    """The budget, the optimizer and its schedule, precision, and how often to evaluate, save and log."""

    steps: Count = 1000
    pretrain_steps: Every = 0
    batch: Annotated[int, Field(ge=1, le=2**16)] = 8
    accumulate: Count = 1
    lr: Annotated[float, Field(gt=0, le=10)] = 1e-3
    schedule: Literal["constant", "cosine", "inverse_sqrt", "polynomial", "one_cycle"] = "cosine"
    warmup: Every = 0
    warmup_lr: Rate = 0.0
    min_lr: Rate = 0.0
    power: Annotated[float, Field(gt=0, le=10)] = 1.0
    betas: Annotated[tuple[Decay, Decay], Field(strict=False, examples=[(0.9, 0.98)])] = (0.9, 0.98)
    peak_beta1: Decay | None = None
    eps: Annotated[float, Field(gt=0, le=1)] = 1e-8
    weight_decay: Rate = 0.01
    clip: Annotated[float, Field(ge=0, le=1e6)] = 1.0
    clip_value: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Field(ge=0, le=1024)] = 0
    compile: bool = False
    eval_every: Every = 100
    eval_batches: Every = 0
    save_every: Every = 100
    save_async: bool = True
    keep_last: Count = 2
    keep_every: Every = 0
    keep_hours: Annotated[float, Field(ge=0, le=1e6)] = 0.0
    keep_best: Annotated[int, Field(ge=1, le=1000)] = 1
    log_every: Count = 10
    instruments: Annotated[tuple[str, ...], Field(strict=False, examples=[["entropy", "temperature"]])] = ()
    instrument_every: Every = 100
    tensorboard: bool = False

    @model_validator(mode="after")
    def _agree(self) -> "TrainConfig":
        if self.warmup > self.steps:
            raise ValueError(f"warmup is {self.warmup}: it must not exceed steps, {self.steps}")
        if self.peak_beta1 is not None and self.schedule != "one_cycle":
            raise ValueError(f"peak_beta1 is {self.peak_beta1}: only schedule 'one_cycle' uses it")
        for name in ("warmup_lr", "min_lr"):
            if getattr(self, name) > self.lr:
                raise ValueError(f"{name} is {getattr(self, name)}: it must not exceed lr, {self.lr}")
        return self


class DistributedConfig(Settings):
    """How a run that torchrun starts uses its ranks: "ddp" copies the model, "fsdp" cuts it.

    `mesh` says how many ranks a run is made for: {replicate = 2, shard = 4} is 8 ranks, two copies cut in four. Without
    it, any number will do. {replicate = 2, sequence = 4} cuts each sequence over four ranks, which neighbor each other;
    with "fsdp" they also cut the model. `activation_checkpointing` computes each block again in the backward pass
    instead of keeping what is inside. `timeout` is how many seconds a rank waits for another one.
    """

    strategy: Literal["ddp", "fsdp"] = "ddp"
    mesh: dict[Literal["replicate", "shard", "sequence"], Annotated[int, Field(ge=1, le=2**20)]] = {}
    activation_checkpointing: bool = False
    timeout: Annotated[int, Field(ge=1, le=10**6)] = 1800

    @model_validator(mode="after")
    def _fits(self) -> "DistributedConfig":
        if self.strategy == "ddp" and self.mesh.get("shard", 1) > 1:
            raise ValueError(f"mesh.shard is {self.mesh['shard']}: only strategy 'fsdp' cuts a model")
        return self

    @property
    def slices(self) -> int:
        """How many ranks share each sequence."""
        return self.mesh.get("sequence", 1)


class RunConfig(Settings):
    """A whole run; `model` holds a preset and any fields of `linnet.models.config.ModelConfig`.

    With `pretrain`, the model first learns to denoise the task's own training sequences.
    """

    task: str = DEFAULT_TASK
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    pretrain: bool = False
    data: SerializeAsAny[DataSettings]
    model: dict[str, Any] = {"preset": "transnormer_t2_lm_small"}
    train: TrainConfig = TrainConfig()
    distributed: DistributedConfig | None = None


def parse_config(table: Mapping[str, Any]) -> RunConfig:
    """Parse a whole configuration; an error names the key."""
    table = {"task": DEFAULT_TASK, "data": {}, "train": {}, **table}
    tables: dict[str, type[Section] | None] = {"data": config_data_class(table["task"]), "model": None}
    for name, cls in {**tables, "train": TrainConfig, "distributed": DistributedConfig}.items():
        if name in table:
            if not isinstance(table[name], Mapping):
                raise InputError(f"{name} is {short_config_value(table[name])}: it must be a table, [{name}]")
            if cls is not None:
                table[name] = parse_config_section(cls, table[name], name)
    return parse_config_section(RunConfig, table, "")


def load_recipe_config(
    recipe: str | Path, sets: Iterable[str] = (), warn: Callable[[str], None] = lambda line: None
) -> RunConfig:
    """The configuration of a recipe (a name or a path), with the overrides `sets` ("train.steps=100").

    If `sets` chooses another `model.preset`, its `layers` and `options` replace those of the recipe, which belong to
    the old preset; sizes such as `width` stay. If `sets` leaves fewer steps than the recipe's warm-up, the
    warm-up is shortened to them, and `warn` gets a line.
    """
    table = read_config_toml(config_recipe_path(recipe))
    written = [_split_assignment(text) for text in sets]
    tasks = [table.get("task", DEFAULT_TASK), *(_value(text) for parts, text in written if parts == ["task"])]
    paths = [["data", name] for name in config_data_class(tasks[-1]).paths()]
    assignments = [(parts, _value(text, path=parts in paths)) for parts, text in written]
    if any(parts == ["model", "preset"] for parts, _ in assignments) and isinstance(table.get("model"), dict):
        table["model"] = {key: value for key, value in table["model"].items() if key not in ("layers", "options")}
    for parts, value in assignments:
        _assign(table, parts, value)
    given = [parts for parts, _ in assignments]
    if ["train", "steps"] in given and not ({("train",), ("train", "warmup")} & set(map(tuple, given))):
        _cut_warmup(table["train"], recipe, warn)
    return parse_config(table)


def _cut_warmup(train: dict[str, Any], recipe: str | Path, warn: Callable[[str], None]) -> None:
    """Shorten a recipe's warm-up if an override leaves fewer steps; wrong types are refused later."""
    steps, warmup = train["steps"], train.get("warmup")
    if type(steps) is int and type(warmup) is int and warmup > steps > 0:
        train["warmup"] = steps
        warn(f"train.warmup is {warmup} in {recipe}: it is cut to train.steps, {steps}")


def config_recipe_path(recipe: str | Path) -> Path:
    """The file of a recipe, given as a path or as the name of one of linnet's own recipes."""
    path, names = Path(recipe), config_recipe_names()
    if str(recipe) in names:
        return _recipes() / f"{recipe}.toml"
    if path.suffix == ".toml" or path.exists() or (len(path.parts) > 1 and path.parts[0] not in _folders(names)):
        return path
    raise unknown_name_error("recipe", str(recipe), names)


def config_recipe_names() -> list[str]:
    """Sorted names of linnet's own recipes."""
    return sorted(path.relative_to(_recipes()).with_suffix("").as_posix() for path in _recipes().rglob("*.toml"))


def _folders(names: Iterable[str]) -> set[str]:
    """The folders that hold recipes."""
    return {name.partition("/")[0] for name in names if "/" in name}


def _recipes() -> Path:
    """The folder of the recipes: inside an installed package, or at the root of a checkout."""
    package = Path(__file__).parent
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def read_config_toml(path: str | Path) -> dict[str, Any]:
    """The content of a TOML file; an error names the file and the line."""
    from linnet.storage import read_regular_file

    try:
        data = read_regular_file(path, LARGEST)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{path}, line {line}: the file is not UTF-8 text") from None
    except ValueError as error:
        raise InputError(f"{path} is not valid TOML: {error}") from None
    except RecursionError:
        raise InputError(f"{path} is not valid TOML: it is nested too deeply") from None


def parse_config_assignments(sets: Iterable[str]) -> dict[str, Any]:
    """The table that assignments such as "options.block=32" make, for a command without a recipe."""
    table: dict[str, Any] = {}
    for parts, text in map(_split_assignment, sets):
        _assign(table, parts, _value(text))
    return table


def _split_assignment(assignment: str) -> tuple[list[str], str]:
    """The parts of the key of `a.b=c`, and its value as written."""
    key, equals, text = assignment.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise InputError(f"--set {short_config_value(assignment)}: it must look like train.steps=100")
    return parts, text.strip()


def _assign(table: dict[str, Any], parts: list[str], value: Any) -> None:
    """Set one value in a table of tables."""
    for depth, part in enumerate(parts[:-1], 1):
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"--set {'.'.join(parts)}: {'.'.join(parts[:depth])} is not a table")
    table[parts[-1]] = value


def _value(text: str, path: bool = False) -> Any:
    """Parse a value as TOML. Anything else is a string, and a path is taken literally, even 2024."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = parsed["value"]
    return text if len(parsed) > 1 or (path and not isinstance(value, str)) else value


def dump_config(config: RunConfig) -> str:
    """The configuration as a recipe that reproduces it."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(exclude_none=True))


def dump_config_settings(settings: Mapping[str, Any]) -> str:
    """Settings by their full names ("train.lr") as TOML, without those that are None, which TOML cannot hold."""
    import tomli_w

    table: dict[str, Any] = {}
    for key, value in settings.items():
        _assign(table, key.split("."), value)
    return tomli_w.dumps(_without_none(table))


def _without_none(value: Any) -> Any:
    """The value without what is None at any depth."""
    if isinstance(value, Mapping):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return [_without_none(each) for each in value if each is not None] if isinstance(value, list) else value
