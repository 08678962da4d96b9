"""Promise 4: damage of any file of a run, an export, a data cache or a tokenizer is found before it is used."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

from linnet.errors import LinnetError
from linnet.models.loading import export_model, load_model
from linnet.storage.verify import verify_folder
from linnet.tasks.causal_lm import CausalLM
from linnet.train.run import resume_run, start_run
from tests.prove.promise import Trials, promise
from tests.prove.runs import QUIET, last_bytes, small_run


def _flip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _verified(folder: Path) -> str:
    """What `linnet verify` finds: "" if all is well."""
    try:
        found = verify_folder(folder, load_model)
    except LinnetError as error:
        return str(error)
    noted = [part.found for part in found if "has been edited" in part.found]
    return next(iter([part.found for part in found if not part.ok] + noted), "")


@promise(
    "4",
    "Damage is found: no changed byte of a run, an export, a cache or a tokenizer reaches a model.",
    "Single bits flipped and files cut at random places of every file, in turn; files missing, empty, swapped or too "
    "many. `linnet verify` names each (an edited config.toml as edited, the lock unless it still is one), a damaged "
    "cache is built again to the same tokens, and a run with a damaged newest checkpoint resumes to the same bits.",
)
def damage_is_found(trials: Trials) -> None:
    """1,000 flips and 1,000 cuts, then whole files."""
    rng, folder = random.Random(0), trials.folder
    config = small_run(folder, steps=4, save_every=2, eval_every=4, log_every=1, schedule="constant")
    start_run(config, folder / "run", QUIET)
    export_model(load_model(folder / "run"), folder / "model", folder / "run/tokenizer.json")
    start_run(config, folder / "again", QUIET)  # so that the cache is complete
    files = [path for place in ("run", "model", "cache") for path in sorted((folder / place).rglob("*"))]
    files = [path for path in files if path.is_file() and path.name != "lock"]
    tokens = _tokens(config)
    for change, number in ((_flip, trials.number(1000, 30)), (_cut, trials.number(1000, 30))):
        for i in range(number):
            path = files[i % len(files)]
            whole = path.read_bytes()
            if not whole:
                continue
            path.write_bytes(change(whole, rng))
            trials.check(_is_found(path, folder, lambda: tokens == _tokens(config)), f"{change.__name__} {path.name}")
            path.write_bytes(whole)
    trials.check(_verified(folder / "run") == "", f"the run is whole again: {_verified(folder / 'run')}")
    for path in files:
        whole = path.read_bytes()
        for change in ("missing", "empty", "swapped"):
            if change == "missing" and path.name == ".lock":
                continue
            path.unlink()
            if change != "missing":
                path.write_bytes(b"" if change == "empty" else files[0 if path != files[0] else 1].read_bytes())
            found = _is_found(path, folder, lambda: tokens == _tokens(config))
            trials.check(found or (path.name == ".lock" and change == "empty"), f"{change} {path}")
            path.write_bytes(whole)
    for place in ("run/checkpoints/step-2", "run/checkpoints/step-4"):
        (folder / place / "extra").write_text("x")
        trials.check(_verified(folder / "run") != "", f"an extra file in {place}")
        (folder / place / "extra").unlink()
    longer = _lengthened(folder / "run", folder / "longer")
    resume_run(longer, QUIET)
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"):
        part = _lengthened(folder / "run", folder / "part")
        damaged = part / "checkpoints/step-4" / name
        damaged.write_bytes(_flip(damaged.read_bytes(), rng))
        with trials.survives(f"falls back when {name} is damaged"):
            resume_run(part, QUIET)
            assert last_bytes(part) == last_bytes(longer), "the bytes differ"
        shutil.rmtree(part)


def _lengthened(run: Path, place: Path) -> Path:
    """A copy of a finished run that has two more steps to do."""
    shutil.copytree(run, place)
    config = place / "config.toml"
    config.write_text(config.read_text().replace("\nsteps = 4\n", "\nsteps = 6\n"))
    return place


def _tokens(config) -> str:
    """The fingerprint of the data, from the cache or built again."""
    return str(sorted(CausalLM(config, None, None, lambda what: lambda done, total: None).fingerprint().items()))


def _is_found(path: Path, folder: Path, same_tokens: Callable[[], bool]) -> bool:
    place = path.relative_to(folder).parts[0]
    if place == "cache":
        try:
            return same_tokens()
        except LinnetError:
            return True
    if path.name == ".lock":  # its words mean nothing, unless linnet would not recognize it
        return _verified(folder / place) != "" or path.read_bytes()[:8] in (b"", b"process ")
    return _verified(folder / place) != ""
