"""Promise 8: nothing is unpickled. Promise 9: no file names code. 9b: no code of another user is loaded."""

import hashlib
import os
import pickle  # to write hostile files
import random
import shutil
import sys
from pathlib import Path
from typing import Any

from linnet.cli.app import run_app
from linnet.config import dump_config, parse_config
from linnet.ops.cpu import build
from linnet.train.check import check_config
from tests.prove.promise import Skip, Trials, promise
from tests.prove.runs import child, small_run

HIT = 77  # the exit code of a child that did what is forbidden
EVENTS = ("pickle.find_class", "marshal.loads")


class _Payload:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.marker),)


def every_command(folder: Path, recipe: Path) -> list[list[str]]:
    """Command lines that reach every command; each reads or makes a run in `folder`."""
    run, model = str(folder / "run"), str(folder / "model")
    commands = ["train", str(recipe), "--out", run], ["resume", run], ["evaluate", run]
    others = ["generate", run, "--prompt", "ab", "--max-new-tokens", "4"], ["export", run, "--out", model]
    more = ["verify", run], ["verify", model], ["repair", run], ["doctor", run], ["doctor"], ["list", "attention"]
    last = ["analyze", run, "--samples", "1"], ["report", run], ["bench", "ops", "--quick", "--lengths", "256,512"]
    bench = [*last[2], "--only", "linear", "--no-peers", "--out", str(folder / "bench")]
    return [*commands, *others, *more, *last[:2], bench, ["audit", "norm"], *_newer_commands(folder, recipe)]


def _newer_commands(folder: Path, recipe: Path) -> list[list[str]]:
    """Fine-tuning and its predictions, Transformers, and sweeps."""
    table, encoder, tuned = folder / "texts.tsv", folder / "encoder.toml", str(folder / "tuned")
    table.write_text("text\tlabel\n" + "".join(f"a text {i}\t{'no' if i % 2 else 'yes'}\n" for i in range(40)))
    encoder.write_text(dump_config(small_run(folder, "masked_lm", steps=2)))
    small = ["data.context=16", "train.steps=2", "train.batch=2", "train.eval_every=2", "train.warmup=0"]
    sets = [part for given in (f"data.path={table}", *small) for part in ("--set", given)]
    grid = ["--grid", "train.lr=1e-3,3e-3", "--out", str(folder / "sweep")]
    return [
        ["train", str(encoder), "--out", str(folder / "encoder")],
        ["finetune", str(folder / "encoder"), "classify", "--out", tuned, *sets],
        ["predict", tuned, "--data", str(table), "--out", str(folder / "answers.tsv")],
        ["export", str(folder / "run"), "--hf", "--out", str(folder / "hf")],
        ["sweep", str(recipe), *grid],
    ]


def watched_command(command: list[str], events: tuple[str, ...]) -> int:
    """Run a command; the process ends with HIT at one of the audit events, except while modules are imported."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "marshal.loads" and any(
            "importlib" in frame for frame in _frames()
        ):  # Python reads its own compiled modules so
            return
        if event.startswith(events):
            os._exit(HIT)

    sys.addaudithook(hook)
    return run_app(command)


def _frames() -> list[str]:
    frame, names = sys._getframe(), []
    while frame is not None:
        names.append(frame.f_code.co_filename)
        frame = frame.f_back  # type: ignore[assignment]
    return names


@promise(
    "8",
    "Nothing is ever unpickled.",
    "An audit hook ends the process at any unpickling while every command runs; pickles take the place of every "
    "file that linnet reads, under its name, and none of them runs.",
)
def never_unpickles(trials: Trials) -> None:
    """All commands, then hostile files."""
    folder = trials.folder
    recipe = folder / "recipe.toml"
    recipe.write_text(dump_config(small_run(folder, steps=2)))
    for command in every_command(folder, recipe)[: None if not trials.short else 4]:
        status = os.waitpid(child(lambda command=command: watched_command(command, EVENTS)), 0)[1]
        code = os.waitstatus_to_exitcode(status)
        trials.check(code == 0, f"linnet {' '.join(command)}: exit code {code}{' (unpickled)' * (code == HIT)}")
    marker = folder / "executed"
    places = sorted(path for place in ("run", "model") for path in (folder / place).rglob("*") if path.is_file())
    for protocol in range(trials.number(6, 1)):
        hostile = pickle.dumps(_Payload(marker), protocol=min(protocol, 5))
        for path in places:
            whole = path.read_bytes()
            path.write_bytes(hostile)
            for command in (["evaluate", str(folder / "run")], ["verify", str(folder / path.parts[len(folder.parts)])]):
                os.waitpid(child(lambda command=command: run_app(command)), 0)
                trials.check(not marker.exists(), f"{command[0]} with a pickle as {path.name}")
            path.write_bytes(whole)
    for suffix in (".toml", ".txt", ".json", ".npz", ".bin", ".tsv", ".tar", ".tar.gz", ".xz", ".safetensors", ".png"):
        path = folder / f"data{suffix}"
        path.write_bytes(pickle.dumps(_Payload(marker)))
        for command in (
            ["train", str(path), "--dry-run"],
            ["train", "text", "--set", f"data.path={path}", "--dry-run"],
        ):
            os.waitpid(child(lambda command=command: run_app(command)), 0)
            trials.check(not marker.exists(), f"{command[0]} on {path.name}")


NAMES = ("auto_map", "_attn_implementation", "trust_remote_code", "_target_", "class_path", "type", "callable", "hook")


@promise(
    "9",
    "No file names code to run.",
    "Recipes with dotted paths, class names and keys of other libraries that lead to a module that exists, at random "
    "places: the module is never imported.",
)
def no_code_from_data(trials: Trials) -> None:
    """500 configurations."""
    rng, folder = random.Random(0), trials.folder
    (folder / "planted_module.py").write_text("import pathlib\npathlib.Path(__file__).with_name('ran').touch()\n")
    sys.path.insert(0, str(folder))
    values = ("planted_module", "planted_module.thing", "planted_module:thing", "!!python/name:planted_module.x")
    values += ("__import__('planted_module')", "${planted_module}", "{{planted_module}}", "file://planted_module.py")
    base = small_run(folder, steps=2).model_dump(mode="json", exclude_none=True)
    places = [(section, key) for section in ("data", "model", "train") for key in base[section]]
    places += [("", key) for key in ("task", "seed", "model", "data")]
    places += [(section, name) for section in ("", "data", "model", "train") for name in NAMES]
    for i in range(trials.number(500, 40)):
        table = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
        for _ in range(rng.randint(1, 3)):
            section, key = rng.choice(places)
            into = table[section] if section and isinstance(table[section], dict) else table
            into[key] = rng.choice((rng.choice(values), [rng.choice(values)], {"name": rng.choice(values)}))
        trials.one_line(lambda table=table: check_config(parse_config(table)), f"configuration {i}")
        trials.check(
            "planted_module" not in sys.modules and not (folder / "ran").exists(), f"configuration {i} ran code"
        )
    sys.path.remove(str(folder))


@promise(
    "9b",
    "No compiled kernel of another user is loaded.",
    "Libraries with the right name and hash, planted as another user, in folders that others own or can write, through "
    "links, as other kinds of files, and with damaged bytes.",
)
def planted_kernels(trials: Trials) -> None:
    """Every place, owner and mode."""
    if os.getuid() != 0:
        raise Skip("only root can plant files as another user")
    found = build.find_cpu_build()
    if found is None:
        raise Skip("there are no compiled kernels")
    library = found.read_bytes()
    name = f"{build.cpu_build_key()}-{hashlib.sha256(library).hexdigest()}.so"
    os.environ["XDG_CACHE_HOME"] = str(trials.folder / "cache")
    place = trials.folder / "cache/linnet/kernels"
    os.chmod(trials.folder, 0o755)
    modes = (0o700, 0o755, 0o775, 0o777, 0o1777)
    for level in (0, 1, 2):
        for owner in (0, 65534):
            for mode in modes:
                shutil.rmtree(trials.folder / "cache", ignore_errors=True)
                place.mkdir(parents=True)
                (place / name).write_bytes(library)
                (place / name).chmod(0o700)
                target = (place, *place.parents)[level]
                os.chown(target, owner, owner)
                target.chmod(mode)
                others = bool(mode & 0o022) and not (mode & 0o1000 and level)
                loaded = build.find_cpu_build() is not None
                trials.check(loaded == (owner == 0 and not others), f"level {level}, owner {owner}, mode {mode:o}")
    shutil.rmtree(trials.folder / "cache")
    place.mkdir(parents=True, mode=0o700)
    for owner, mode in ((65534, 0o700), (65534, 0o777), (0, 0o770), (0, 0o702)):
        (place / name).write_bytes(library)
        os.chown(place / name, owner, owner)
        (place / name).chmod(mode)
        trials.check(build.find_cpu_build() is None, f"a library of {owner} with mode {mode:o}")
        (place / name).unlink()
    (trials.folder / "elsewhere.so").write_bytes(library)
    (place / name).symlink_to(trials.folder / "elsewhere.so")
    trials.check(build.find_cpu_build() is None, "a link")
    (place / name).unlink()
    os.mkfifo(place / name, 0o700)
    trials.check(build.find_cpu_build() is None, "a pipe")
    (place / name).unlink()
    rng = random.Random(0)
    for i in range(trials.number(50, 3)):
        at = rng.randrange(len(library))
        (place / name).write_bytes(library[:at] + bytes([library[at] ^ 1]) + library[at + 1 :])
        (place / name).chmod(0o700)
        trials.check(build.find_cpu_build() is None, f"damaged library {i}")
        (place / name).unlink()
