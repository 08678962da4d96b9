"""Promise 4b: checkpoints whose hashes are right but that linnet did not write so."""

import contextlib
import copy
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from linnet.models.loading import load_model
from linnet.screen import Screen
from linnet.storage import checkpoint_steps, dump_json_file, read_checkpoint, save_checkpoint
from linnet.storage.verify import verify_folder
from linnet.train.run import resume_run, start_run
from tests.prove.promise import Trials, promise
from tests.prove.runs import QUIET, last_bytes, small_run

STEP = 3
PLACE = f"checkpoints/step-{STEP}"
Tensors = dict[str, torch.Tensor]
Change = Callable[[Path], object]  # changes a checkpoint, with right hashes at the end

DTYPES = (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64)
FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "flat": lambda t: t.reshape(-1),
    "one more axis": lambda t: t[None],
    "one row less": lambda t: t[:-1] if t.dim() else t.reshape(1)[:0],
    "one row more": lambda t: torch.cat([t, t[:1]]) if t.dim() else t.repeat(2),
    "empty": lambda t: t.new_empty(0),
    "a number": lambda t: t.reshape(-1)[0] if t.dim() else t.new_zeros(1, 1),
    "NaN": lambda t: t * float("nan"),
    "infinite": lambda t: t + float("inf"),
}
JUNK: tuple[object, ...] = (
    None,
    True,
    -1,
    2**63,
    10**400,
    0.5,
    -0.0,
    "",
    "3",
    [],
    [[]],
    {},
    {"a": None},
    "x" * 100_000,
)
NUMBERS = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"03", b"1" * 5000, b"0x3", b"\xff", b"[" * 5000)


class Listening(Screen):
    """A quiet screen that keeps warnings."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        """Keep it."""
        self.warnings.append(text)


def _with_tensors(change: Callable[[Tensors, Tensors], object]) -> Change:
    """Change the tensors and save them as linnet does."""

    def made(place: Path) -> None:
        old = read_checkpoint(place)
        model, optimizer = dict(old.model), dict(old.optimizer)
        change(model, optimizer)
        save_checkpoint(place.parent, STEP, model, optimizer, old.state)

    return made


def _with_bytes(name: str, change: Callable[[bytes], bytes]) -> Change:
    """Change the bytes of a file and enter them into the manifest."""

    def made(place: Path) -> None:
        data = change((place / name).read_bytes())
        (place / name).write_bytes(data)
        manifest = json.loads((place / "manifest.json").read_bytes())
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        _write_manifest(place, manifest)

    return made


def _with_manifest(change: Callable[[dict[str, Any]], object]) -> Change:
    def made(place: Path) -> None:
        manifest = json.loads((place / "manifest.json").read_bytes())
        change(manifest)
        _write_manifest(place, manifest)

    return made


def _write_manifest(place: Path, manifest: dict[str, Any]) -> None:
    manifest.pop("sha256", None)
    own = hashlib.sha256(dump_json_file(manifest, "manifest.json")).hexdigest()
    (place / "manifest.json").write_bytes(dump_json_file({**manifest, "sha256": own}, "manifest.json"))


def _with_header(change: Callable[[dict[str, Any]], object], name: str = "model.safetensors") -> Change:
    """Change the header of the tensors."""

    def changed(data: bytes) -> bytes:
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        header = change(header) or header
        raw = header if isinstance(header, bytes) else json.dumps(header).encode()
        return len(raw).to_bytes(8, "little") + raw + data[8 + length :]

    return _with_bytes(name, changed)


def _tensor_changes(model: Tensors, optimizer: Tensors) -> Iterator[tuple[str, Change]]:
    """Types, shapes, numbers, and names of weights and of each kind of moment."""
    weight = max(model, key=lambda name: model[name].numel())
    several = [("model", weight), *(("optimizer", f"{m}/{weight}") for m in ("exp_avg", "exp_avg_sq", "step"))]
    for part, name in several:

        def put(value: Callable[[torch.Tensor], torch.Tensor], part: str = part, name: str = name) -> Change:
            def change(model: Tensors, optimizer: Tensors) -> None:
                tensors = model if part == "model" else optimizer
                tensors[name] = value(tensors[name])

            return _with_tensors(change)

        def rename(new: str, part: str = part, name: str = name) -> Change:
            def change(model: Tensors, optimizer: Tensors) -> None:
                tensors = model if part == "model" else optimizer
                tensors[new] = tensors.pop(name)

            return _with_tensors(change)

        for dtype in DTYPES:
            yield f"{name} as {dtype}", put(lambda t, dtype=dtype: t.to(dtype))
        for what, form in FORMS.items():
            yield f"{name} {what}", put(form)
        for new in ("", "x", f"{name}.x", f"step/{name}", "../x", "__metadata__", "\u202e"):
            yield f"{name} renamed to {new!r}", rename(new)
    for step in (0.0, 1.0, STEP - 1.0, STEP + 0.5, -3.0, 1e9, 3e38, float("nan"), float("inf")):
        yield f"Adam's step {step}", put(lambda t, step=step: torch.full_like(t, step))
    yield "a negative square", _with_tensors(lambda m, o: o.update({several[2][1]: -o[several[2][1]] - 1}))
    yield "no optimizer", _with_tensors(lambda m, o: o.clear())
    yield "no weights", _with_tensors(lambda m, o: m.clear())
    yield "moments and weights exchanged", _with_tensors(lambda m, o: m.update(o))
    for moment in ("exp_avg", "exp_avg_sq", "step"):
        yield f"without {moment}", _with_tensors(lambda m, o, k=moment: o.pop(f"{k}/{weight}"))


def _state_changes(state: dict[str, Any], size: int) -> Iterator[tuple[str, Change]]:
    """Junk in the place of every value of the state, of its position, data and settings; and raw JSON."""

    def put(path: tuple[str, ...], value: object) -> Change:
        def change(data: bytes) -> bytes:
            table = copy.deepcopy(state)
            inner = table
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            return dump_json_file(table, "state")

        return _with_bytes("state.json", change)

    for i, key in enumerate(state):
        for value in JUNK[i % 2 :: 2]:
            yield f"state.{key} = {str(value)[:30]!r}", put((key,), value)
    for section in ("position", "data", "settings", "metrics"):
        for i, (key, old) in enumerate(sorted(state[section].items())):
            if key.split(".")[-1] in ("norms", "squares", "loss", "terms", "updates", "tokens"):
                values: tuple[object, ...] = (None, "x", [None], {"a": 1}, [float(9)] * 9)
            else:
                values = (JUNK[i % len(JUNK)], JUNK[(3 * i + 1) % len(JUNK)])
            for value in values:
                if value != old and not (old in (None, 0) and value in (None, 0)):
                    yield f"{section}.{key} = {str(value)[:30]!r}", put((section, key), value)
    for step in (0, 1, STEP - 1, STEP + 1, 10**6):
        yield f"position.step = {step}", put(("position", "step"), step)
        yield f"position.evaluated = {step + STEP + 1}", put(("position", "evaluated"), step + STEP + 1)
    raw = dump_json_file(state, "state")
    for number in NUMBERS:
        changed = raw.replace(b'"step": %d' % STEP, b'"step": ' + number)
        yield f"the step {number[:20]!r}", _with_bytes("state.json", lambda data, new=changed: new)
    twice = raw.rstrip()[:-1] + b', "position": ' + json.dumps({**state["position"], "terms": 999}).encode() + b"}"
    yield "a key twice", _with_bytes("state.json", lambda data: twice)
    for new in (
        b"",
        b"null",
        b"[]",
        b"3",
        b"{}",
        raw[:-9],
        raw + b"{}",
        b"\xef\xbb\xbf" + raw,
        raw.decode().encode("utf-16"),
    ):
        yield f"state.json {new[:20]!r}", _with_bytes("state.json", lambda data, new=new: new)
    yield "a state of 70 MB", _with_bytes("state.json", lambda data: raw + b" " * (70 << 20))
    for mark in (0, 1, size - 1, size + 1, 2**62):
        yield f"metrics of {mark} bytes", put(("metrics", "size"), mark)


def _file_changes(names: list[str]) -> Iterator[tuple[str, Change]]:
    """Manifests, headers, ties, and files that are none."""
    for key, values in {
        "step": (-1, STEP + 1, "3", 3.0, 2**70, None),
        "format": ("", "linnet-checkpoint-2", None),
    }.items():
        for value in values:
            yield f"manifest.{key} = {value!r}", _with_manifest(lambda m, k=key, v=value: m.update({k: v}))
    for key in ("step", "format", "files", "tied"):
        yield f"a manifest without {key}", _with_manifest(lambda m, k=key: m.pop(k))
    one, two = names[:2]
    for tied in ({one: two}, {"x": "y"}, {"x": "x"}, {"x": one}, {"x": "y", "y": "x"}, {"x": 3}, {"": ""}, [], None):
        yield f"tied: {tied}", _with_manifest(lambda m, t=tied: m["tied"].update({"model": t}))
    for size in (-1, 0, 1, 2**62, "3", None, 1.5):
        for file in ("state.json", "model.safetensors"):
            yield f"{file} of {size} bytes", _with_manifest(lambda m, f=file, s=size: m["files"][f].update({"size": s}))
    for extra in ("../x", "state.json.x", "/etc/passwd"):
        yield (
            f"another file {extra}",
            _with_manifest(lambda m, e=extra: m["files"].update({e: m["files"]["state.json"]})),
        )
    for key, values in {
        "dtype": ("F8_E4M3", "f32", "", None, 3, "U8", "__class__"),
        "shape": ([], [-1], [2**62, 2**62], [2**70], [0], None, "x", [1.0], [[1]]),
        "data_offsets": ([0, 0], [0, 2**62], [-8, 8], [8, 0], [0], None, [0, 1, 2], "x"),
    }.items():
        for value in values:
            for name in ("model.safetensors", "optimizer.safetensors")[: 2 if key == "shape" else 1]:

                def change(header: dict[str, Any], key: str = key, value: object = value) -> None:
                    header[min(header)][key] = value

                yield f"{name}: {key} = {value!r}", _with_header(change, name)
    yield "metadata", _with_header(lambda h: h.update({"__metadata__": {"a": "b"}}))
    yield "a name twice", _with_header(lambda h: b"{" + 2 * (json.dumps(h)[1:-1].encode() + b",") + b'"x":1}')
    yield "a deep header", _with_header(lambda h: b'{"a":' * 20_000)
    yield "a header of blanks", _with_header(lambda h: b" " * 1000)
    yield "all in one place", _with_header(lambda h: {n: h[min(h)] for n in h})
    for length in (0, 1, 7, 2**31, 2**63, 2**64 - 1):
        raw = length.to_bytes(8, "little")
        yield f"a header of {length} bytes", _with_bytes("model.safetensors", lambda data, raw=raw: raw + data[8:])
    for cut in (0, 7, 8):
        yield f"tensors of {cut} bytes", _with_bytes("model.safetensors", lambda data, cut=cut: data[:cut])
    for name in ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"):
        for kind, make in KINDS.items():
            yield f"{name}: {kind}", lambda place, name=name, make=make: _replace(place / name, make)
    for name in ("config.toml", "metrics.jsonl", "tokenizer.json", "environment.json", ".lock"):
        for kind, make in KINDS.items():
            yield f"{name}: {kind}", lambda place, name=name, make=make: _replace(place.parent.parent / name, make)


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    if path.is_file():
        path.rename(path.parent.parent.parent / "kept") if path.parent.name == f"step-{STEP}" else path.unlink()
    make(path)


def _device(path: Path) -> None:
    with contextlib.suppress(PermissionError):  # only root can make one
        os.mknod(path, 0o020666, os.makedev(1, 5))


KINDS: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to an endless device": lambda path: path.symlink_to("/dev/zero"),
    "an endless device": _device,
    "a link to itself": lambda path: path.symlink_to(path),
    "a folder": Path.mkdir,
    "a huge hole": lambda path: (path.touch(), os.truncate(path, 1 << 45)),
}


@contextlib.contextmanager
def _at_most(seconds: int) -> Iterator[None]:
    """Raise in the block if it takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@promise(
    "4b",
    "A checkpoint that linnet did not write so is refused in one line, even if its hashes are right.",
    "Types, shapes, names and numbers of weights and moments, values of the state, of the position, the settings and "
    "the metrics, ties, headers and manifests, repeated keys, huge and broken JSON, and pipes, devices, links, folders "
    "and holes as files; each is resumed and verified. What resumes ends with the usual bytes, or was warned about.",
)
def crafted_checkpoints_are_refused(trials: Trials) -> None:
    """Each change of one finished run that has two more steps to do."""
    folder = trials.folder
    every = {"steps": STEP, "save_every": STEP, "eval_every": 2, "accumulate": 1, "log_every": 2}
    start_run(small_run(folder, **every), folder / "begun", QUIET)
    config = folder / "begun/config.toml"
    config.write_text(config.read_text().replace(f"\nsteps = {STEP}\n", f"\nsteps = {STEP + 2}\n"))
    usual = shutil.copytree(folder / "begun", folder / "usual")
    resume_run(usual, QUIET)
    old = read_checkpoint(folder / "begun" / PLACE)
    for step in checkpoint_steps(folder / "begun/checkpoints")[:-1]:
        shutil.rmtree(folder / f"begun/checkpoints/step-{step}")
    size = (folder / "begun/metrics.jsonl").stat().st_size
    changes = [*_tensor_changes(old.model, old.optimizer), *_state_changes(old.state, size)]
    changes += _file_changes(sorted(old.model))
    for what, change in changes[:: trials.number(1, 25)]:
        run = shutil.copytree(folder / "begun", folder / "run")
        change(run / PLACE)
        screen = Listening()

        def resume(run: Path = run, screen: Listening = screen) -> None:
            with _at_most(60):
                resume_run(run, screen)
                assert screen.warnings or last_bytes(run) == last_bytes(usual), "it resumes to other bytes"

        trials.one_line(resume, f"resume, {what}")
        shutil.rmtree(run)
        run = shutil.copytree(folder / "begun", folder / "run")
        change(run / PLACE)

        def verify(run: Path = run) -> None:
            with _at_most(60):
                verify_folder(run, load_model)

        trials.one_line(verify, f"verify, {what}")
        shutil.rmtree(run)
