"""Promise 10: hostile archives. Promise 12: mutated data files, for every reader."""

import bz2
import gzip
import io
import lzma
import random
import shutil
import tarfile
import time
from pathlib import Path

from linnet.data.lra import image, text
from tests.prove.promise import Trials, promise
from tests.prove.readers import READERS, REVIEWS


def _tar(members: list[tuple[str, bytes | tuple[bytes, str]]]) -> bytes:
    """An archive of files, and of links and devices given as (type, target)."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as file:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                file.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = content
                file.addfile(member)
    return out.getvalue()


def hostile_archives() -> dict[str, bytes]:
    """At least 30 archives, by what is wrong with them."""
    good: list[tuple[str, bytes | tuple[bytes, str]]] = [(name, b"a review") for name in REVIEWS]
    found = {}
    for name in (
        "../../x",
        "/tmp/x",
        "train/pos/../../../../x.txt",
        "train/pos/./1.txt",
        "train\\pos\\9.txt",
        "~/x.txt",
    ):
        found[f"the name {name}"] = _tar([*good, (name, b"text")])
    for name in (
        "train/pos/\u202etxt.1",
        "train/pos/caf\u00e9.txt",
        "train/pos/" + "a" * 300 + ".txt",
        "train/pos/ .txt",
    ):
        found[f"the name {name[:30]!r}"] = _tar([*good, (name, b"text")])
    for kind, target in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "/etc/passwd"), (tarfile.CHRTYPE, "")):
        found[f"type {kind!r}"] = _tar([*good, ("train/pos/7.txt", (kind, target))])
    for kind in (tarfile.BLKTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE, tarfile.CONTTYPE):
        found[f"type {kind!r}"] = _tar([*good, ("train/pos/7.txt", (kind, ""))])
    found["a link, then a file through it"] = _tar(
        [*good, ("train/pos", (tarfile.SYMTYPE, "/tmp")), (REVIEWS[0], b"x")]
    )
    found["a name twice"] = _tar([*good, good[0]])
    whole = _tar(good)
    huge = tarfile.TarInfo("train/pos/8.txt")
    huge.size = 1 << 40
    found["a file of a terabyte"] = whole[: 2 * len(REVIEWS) * 512] + huge.tobuf(tarfile.GNU_FORMAT)
    huge.size = -5
    found["an empty archive"] = _tar([])
    found["no archive"] = b"this is not an archive" * 50
    found["a damaged header"] = whole[:600] + b"\xff" * 20 + whole[620:]
    for pack in (gzip.compress, bz2.compress, lzma.compress):
        packed = pack(whole)
        found[f"cut, {pack.__module__}"] = packed[: len(packed) // 2]
        found[f"damaged, {pack.__module__}"] = packed[:40] + b"\x00\x00" + packed[42:]
        found[f"with an appendix, {pack.__module__}"] = packed + b"appendix"
    found["a bomb of 300 MB in a file"] = gzip.compress(_tar([*good, ("train/pos/9.txt", bytes(300 << 20))]), 1)
    found["a bomb that nobody wants"] = gzip.compress(_tar([*good, ("other.bin", bytes(300 << 20))]), 1)
    return found


@promise(
    "10",
    "Archives are only read: nothing is written outside or inside, and bombs end early.",
    "Hostile tar, gz, bz2 and xz files: names that lead out, links, devices, duplicates, cuts, damage, bombs.",
)
def hostile_archives_are_harmless(trials: Trials) -> None:
    """Each archive, read as reviews and as pictures."""
    place = trials.folder / "in"
    place.mkdir()
    found = hostile_archives()
    for what in list(found)[: trials.number(len(found), 12)]:
        (place / "x.tar").write_bytes(found[what])
        before = sorted(trials.folder.rglob("*"))
        start = time.perf_counter()
        for read in (lambda: text.read_lra_text(place / "x.tar", 4000), lambda: image.read_lra_image(place / "x.tar")):
            trials.one_line(read, what)
        same = sorted(trials.folder.rglob("*")) == before and not Path("/tmp/x").exists()
        trials.check(same and time.perf_counter() - start < 60, f"{what}: something was written, or it took long")


PIECES = (
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\r\n",
    b"\t\t",
    b"-1",
    b"999999999999999999999",
    b"NaN",
    b"\xf0\x9f\x98\x80",
    b"(" * 99,
)


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Cut, flip, insert, repeat, drop a line, replace, or empty."""
    kind, place = rng.randrange(8), rng.randrange(len(data) + 1)
    end = min(len(data), place + rng.choice((1, 2, 30)))
    if kind == 0:
        return data[:place]
    if kind == 1 and data:
        place = rng.randrange(len(data))
        return data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
    if kind == 2:
        return data[:place] + rng.choice(PIECES) + data[place:]
    if kind == 3:
        return data[:place] + rng.randbytes(end - place) + data[end:]
    if kind == 4:
        return data[:place] + data[place:end] * rng.choice((2, 1000)) + data[end:]
    if kind == 5:
        lines = data.split(b"\n")
        del lines[rng.randrange(len(lines))]
        return b"\n".join(lines)
    return data[:place] + data[end:] if kind == 6 else rng.choice((b"", b"\n", rng.randbytes(50), data + data))


@promise(
    "12",
    "Bad data give one line that names the file, or are read.",
    "500 mutated files (cut, flipped, inserted, repeated, emptied, random) for each of twenty readers: texts, "
    "WikiText, tokenizers, JSON, reviews, tables, pictures in five layouts, pairs, citations, ListOps, Pathfinder, "
    "GLUE in three forms, exported models and folders of Transformers.",
)
def bad_data(trials: Trials) -> None:
    """500 files for every reader."""
    rng = random.Random(0)
    for make in READERS:
        folder = trials.folder / make.__name__
        folder.mkdir()
        read = make(folder)
        with trials.survives(f"{make.__name__} reads what is whole"):
            read()
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for i in range(trials.number(500, 10)):
            path = rng.choice(files)
            whole = path.read_bytes()
            path.write_bytes(mutate_bytes(whole, rng))
            trials.one_line(read, f"{make.__name__}, mutation {i} of {path.name}")
            path.write_bytes(whole)
        shutil.rmtree(folder)
