"""Changes of a checkpoint that leave all hashes right; promise 4b tries them."""

import contextlib
import copy
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from linnet.storage import dump_json_file, read_checkpoint, save_checkpoint

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
    *(None, True, -1, 2**63, 10**400, 0.5, -0.0),
    *("", "3", [], [[]], {}, {"a": None}, "x" * 100_000),
)
NUMBERS = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-0", b"03", b"1" * 5000, b"0x3", b"\xff", b"[" * 5000)
SUMMED = ("norms", "squares", "loss", "terms", "updates", "tokens")  # numbers that could be others
SUMS: tuple[object, ...] = (None, "x", [None], {"a": 1}, [9.0] * 9)  # but not these


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


def tensor_changes(model: Tensors, optimizer: Tensors) -> Iterator[tuple[str, Change]]:
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


def state_changes(state: dict[str, Any], size: int) -> Iterator[tuple[str, Change]]:
    """Junk in the place of every value of the state, of its position, its settings and its hashes."""

    def put(path: tuple[str, ...], value: object) -> Change:
        table = copy.deepcopy(state)
        inner = table
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        return _with_bytes("state.json", lambda data: dump_json_file(table, "state"))

    for i, key in enumerate(state):
        for value in JUNK[i % 2 :: 2]:
            yield f"state.{key} = {str(value)[:30]!r}", put((key,), value)
    for section in ("position", "data", "settings", "metrics"):
        for i, (key, old) in enumerate(sorted(state[section].items())):
            for value in SUMS if key in SUMMED else (JUNK[i % len(JUNK)], JUNK[(3 * i + 1) % len(JUNK)]):
                if value != old and not (old in (None, 0) and value in (None, 0)):
                    yield f"{section}.{key} = {str(value)[:30]!r}", put((section, key), value)
    for step in (0, 1, STEP - 1, STEP + 1, 10**6):
        yield f"position.step = {step}", put(("position", "step"), step)
        yield f"position.evaluated = {step + STEP + 1}", put(("position", "evaluated"), step + STEP + 1)
    for mark in (0, 1, size - 1, size + 1, 2**62):
        yield f"metrics of {mark} bytes", put(("metrics", "size"), mark)


def json_changes(state: dict[str, Any]) -> Iterator[tuple[str, Change]]:
    """Numbers that JSON does not have, keys that occur twice, and other bytes than a state."""
    raw = dump_json_file(state, "state")
    twice = raw.rstrip()[:-1] + b', "position": ' + json.dumps({**state["position"], "terms": 999}).encode() + b"}"
    others = {f"the step {n[:20]!r}": raw.replace(b'"step": %d' % STEP, b'"step": ' + n) for n in NUMBERS}
    others |= {"a key twice": twice, "a state of 70 MB": raw + b" " * (70 << 20)}
    for new in (b"", b"null", b"[]", b"3", b"{}", raw[:-9], raw + b"{}", b"\xef\xbb\xbf" + raw):
        others[f"state.json {new[:20]!r}"] = new
    others["UTF-16"] = raw.decode().encode("utf-16")
    for what, new in others.items():
        yield what, _with_bytes("state.json", lambda data, new=new: new)


def manifest_changes(names: list[str]) -> Iterator[tuple[str, Change]]:
    """Values, keys, sizes and ties of a manifest."""
    for key, values in (("step", (-1, STEP + 1, "3", 3.0, 2**70, None)), ("format", ("", "linnet-checkpoint-2", None))):
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


def header_changes() -> Iterator[tuple[str, Change]]:
    """Types, shapes and places in the header of the tensors; headers that are none."""
    fields: dict[str, tuple[object, ...]] = {
        "dtype": ("F8_E4M3", "f32", "", None, 3, "U8", "__class__"),
        "shape": ([], [-1], [2**62, 2**62], [2**70], [0], None, "x", [1.0], [[1]]),
        "data_offsets": ([0, 0], [0, 2**62], [-8, 8], [8, 0], [0], None, [0, 1, 2], "x"),
    }
    for name in ("model.safetensors", "optimizer.safetensors"):
        for key, values in fields.items():
            for value in values:
                change = _with_header(lambda h, k=key, v=value: h[min(h)].update({k: v}), name)
                yield f"{name}: {key} = {value!r}", change
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


def kind_changes() -> Iterator[tuple[str, Change]]:
    """Pipes, devices, links, folders and holes in the place of each file of a run."""
    inside = [
        f"{PLACE}/{name}" for name in ("model.safetensors", "optimizer.safetensors", "state.json", "manifest.json")
    ]
    for name in (*inside, "config.toml", "metrics.jsonl", "tokenizer.json", "environment.json", ".lock"):
        for kind, make in KINDS.items():
            yield f"{name}: {kind}", lambda place, name=name, make=make: _replace(place.parent.parent / name, make)


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink(missing_ok=True)
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
    "a huge hole": lambda path: (path.touch(), os.truncate(path, 1 << 42)),
}
