"""Every layout of images: digits, CIFAR-10, Fashion-MNIST, Dogs vs Cats and folders; and all that is refused."""

import gzip
import hashlib
import io
import os
import struct
import tarfile
import zlib

import numpy as np
import pytest

from linnet.data.images.cifar10 import read_cifar10
from linnet.data.images.digits import read_digits
from linnet.data.images.dogs_vs_cats import read_dogs_vs_cats
from linnet.data.images.fashion_mnist import read_fashion_mnist
from linnet.data.images.folder import FolderOptions, read_folder
from linnet.data.images.pictures import Pictures, picture_moments, split_pictures
from linnet.errors import InputError

PIL = pytest.importorskip("PIL.Image", reason="needs Pillow")
RANDOM = np.random.default_rng(0)


def one_line(call, *parts):
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value)
    for part in parts:
        assert str(part) in str(error.value), str(error.value)


def test_digits_are_those_of_scikit_learn():
    found = read_digits()
    sizes = {split: len(pictures) for split, pictures in found.splits.items()}
    assert sizes == {"train": 1259, "valid": 269, "test": 269}
    assert sum(sizes.values()) == 1797
    sklearn = pytest.importorskip("sklearn.datasets", reason="needs scikit-learn")
    theirs = sklearn.load_digits()
    pixels = np.rint(theirs.images * (255 / 16)).astype(np.uint8)
    known = {picture.tobytes(): label for picture, label in zip(pixels, theirs.target, strict=True)}
    for pictures in found.splits.values():
        assert all(known[p.tobytes()] == label for p, label in zip(pictures.pixels, pictures.labels, strict=True))


def test_a_split_is_a_function_of_the_seed_and_keeps_the_classes():
    one, again, other = read_digits(0), read_digits(0), read_digits(1)
    assert one.splits["test"].sha256() == again.splits["test"].sha256() != other.splits["test"].sha256()
    for pictures in one.splits.values():
        counts = np.bincount(pictures.labels, minlength=10)
        assert counts.max() - counts.min() <= 0.1 * counts.max() + 2
    bytes_of = [{p.tobytes() for p in split.pixels} for split in one.splits.values()]
    assert not bytes_of[0] & bytes_of[2]


def test_splits_hold_each_picture_once():
    numbers = np.arange(103, dtype=np.uint8)
    pictures = Pictures(numbers.reshape(-1, 1, 1, 1), (numbers % 3).astype(np.int64))
    found = split_pictures(pictures, 5, {"valid": 0.2, "test": 0.1})
    assert sorted(np.concatenate([part.pixels.ravel() for part in found.values()])) == numbers.tolist()


def test_moments_of_channels():
    pixels = RANDOM.integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    pixels[:, 2] = 51
    mean, std = picture_moments(Pictures(pixels, np.zeros(5, np.int64)))
    np.testing.assert_allclose(mean, pixels.mean(axis=(0, 2, 3)) / 255, atol=6e-5)
    np.testing.assert_allclose(std[:2], pixels.std(axis=(0, 2, 3))[:2] / 255, atol=6e-5)
    assert (mean[2], std[2]) == (0.2, 1.0)


def cifar(folder, count=20, names=None):
    folder.mkdir(parents=True, exist_ok=True)
    records = RANDOM.integers(0, 256, (count, 3073), dtype=np.uint8)
    records[:, 0] %= 10
    for name in names or [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        records.tofile(folder / name)
    return records


def test_cifar10(tmp_path):
    records = cifar(tmp_path / "cifar-10-batches-bin")
    found = read_cifar10(tmp_path)
    assert {split: len(part) for split, part in found.splits.items()} == {"train": 90, "valid": 10, "test": 20}
    assert found.splits["test"].pixels.tobytes() == records[:, 1:].tobytes()
    assert found.splits["train"].pixels.shape[1:] == (3, 32, 32)
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "cifar-10-batches-bin", "cifar-10-batches-bin")
    packed = read_cifar10(tmp_path / "cifar.tar.gz")
    assert all(packed.splits[split].sha256() == part.sha256() for split, part in found.splits.items())


def test_damage_of_cifar10(tmp_path):
    cifar(tmp_path / "a", names=["data_batch_1.bin"])
    one_line(lambda: read_cifar10(tmp_path / "a"), tmp_path / "a", "has no data_batch_2.bin")
    cifar(tmp_path / "b")
    (tmp_path / "b/test_batch.bin").write_bytes(b"\0" * 3000)
    one_line(lambda: read_cifar10(tmp_path / "b"), "test_batch.bin is cut short: it has 3,000 bytes")
    (tmp_path / "b/test_batch.bin").write_bytes(b"\x0b" + b"\0" * 3072)
    one_line(lambda: read_cifar10(tmp_path / "b"), "test_batch.bin: the label of image 1 is 11")
    one_line(lambda: read_cifar10(tmp_path / "nothing"), "nothing does not exist", "cifar-10-binary.tar.gz")


def idx(array, packed=True):
    data = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    return gzip.compress(data) if packed else data


def fashion(folder, packed=True):
    folder.mkdir()
    arrays = {}
    for prefix, count in (("train", 30), ("t10k", 10)):
        pixels = RANDOM.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = RANDOM.integers(0, 10, count, dtype=np.uint8)
        end = ".gz" if packed else ""
        (folder / f"{prefix}-images-idx3-ubyte{end}").write_bytes(idx(pixels, packed))
        (folder / f"{prefix}-labels-idx1-ubyte{end}").write_bytes(idx(labels, packed))
        arrays[prefix] = pixels, labels
    return arrays


@pytest.mark.parametrize("packed", [True, False])
def test_fashion_mnist(tmp_path, packed):
    arrays = fashion(tmp_path / "f", packed)
    found = read_fashion_mnist(tmp_path / "f")
    assert {split: len(part) for split, part in found.splits.items()} == {"train": 27, "valid": 3, "test": 10}
    np.testing.assert_array_equal(found.splits["test"].pixels[:, 0], arrays["t10k"][0])
    np.testing.assert_array_equal(found.splits["test"].labels, arrays["t10k"][1])


def test_damage_of_fashion_mnist(tmp_path):
    fashion(tmp_path / "f")
    file = tmp_path / "f/train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    one_line(lambda: read_fashion_mnist(tmp_path / "f"), file, "is cut short or damaged")
    file.write_bytes(gzip.compress(b"\0\0\x08\x03" + struct.pack(">3I", 30, 28, 28) + b"\0" * 99))
    one_line(lambda: read_fashion_mnist(tmp_path / "f"), file, "is cut short or damaged: it has 115 bytes")
    file.write_bytes(gzip.compress(b"nonsense"))
    one_line(lambda: read_fashion_mnist(tmp_path / "f"), file, "is not an idx file of 3 axes")
    file.unlink()
    one_line(lambda: read_fashion_mnist(tmp_path / "f"), "has neither train-images-idx3-ubyte nor")
    one_line(lambda: read_fashion_mnist(tmp_path / "g"), "is not a folder")


def picture(path, mode="RGB", size=(20, 12), **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = {"L": 1, "RGB": 3, "RGBA": 4, "LA": 2, "CMYK": 4}.get(mode, 1)
    shape = (size[1], size[0], channels) if channels > 1 else (size[1], size[0])
    PIL.fromarray(RANDOM.integers(0, 256, shape, dtype=np.uint8), mode).save(path, **options)
    return path


def classes(folder, count=10, **how):
    for name in ("ant", "bee"):
        for i in range(count):
            picture(folder / name / f"{i}.{'png' if i % 2 else 'jpg'}", **how)
    return folder


def test_a_folder_of_classes(tmp_path):
    folder = classes(tmp_path / "f")
    (folder / "ant/notes.txt").write_text("not an image")
    found, ignored = read_folder(folder, FolderOptions(8))
    assert found.classes == ["ant", "bee"]
    assert ignored == 1
    assert {split: len(part) for split, part in found.splits.items()} == {"train": 16, "valid": 2, "test": 2}
    assert found.splits["train"].pixels.shape[1:] == (3, 8, 8)
    gray, _ = read_folder(folder, FolderOptions(8, "gray"))
    assert gray.splits["train"].pixels.shape[1:] == (1, 8, 8)


def test_a_folder_with_splits(tmp_path):
    for split in ("train", "test"):
        classes(tmp_path / "f" / split, 10, mode="L")
    found, _ = read_folder(tmp_path / "f", FolderOptions(4))
    assert {split: len(part) for split, part in found.splits.items()} == {"train": 18, "valid": 2, "test": 20}
    picture(tmp_path / "f/test/wasp/1.png", "L")
    one_line(lambda: read_folder(tmp_path / "f", FolderOptions(4)), tmp_path / "f/test/wasp", "do not have")


def test_pixels_survive_a_png_of_the_same_size(tmp_path):
    array = RANDOM.integers(0, 256, (8, 8, 3), dtype=np.uint8)
    classes(tmp_path / "f", 3, size=(8, 8))
    PIL.fromarray(array).save(tmp_path / "f/ant/0.png")
    found, _ = read_folder(tmp_path / "f", FolderOptions(8))
    everything = np.concatenate([part.pixels for part in found.splits.values() if len(part)])
    assert any((p == array.transpose(2, 0, 1)).all() for p in everything)


def test_what_is_not_read_names_its_file(tmp_path):
    """Each case: a folder with one bad file, and what the line says."""

    def check(name, make, *said):
        folder = classes(tmp_path / name, 2)
        bad = folder / "ant" / "bad.png"
        make(bad)
        one_line(lambda: read_folder(folder, FolderOptions(8)), bad, *said)

    check("alpha", lambda path: picture(path, "RGBA"), "has transparency (mode RGBA)")
    check("la", lambda path: picture(path, "LA"), "has transparency (mode LA)")
    check("mixed", lambda path: picture(path, "L"), "is grey, but", "is in color", "data.color=gray or data.color=rgb")
    check("deep", lambda path: PIL.fromarray(np.zeros((4, 4), np.uint16)).save(path), "more than 8 bits per channel")
    check("palette", lambda path: PIL.new("P", (4, 4)).save(path), "has mode P")
    check("text", lambda path: path.write_text("hello"), "is not an intact PNG or JPEG image")
    check("empty", lambda path: path.write_bytes(b""), "is not an intact PNG or JPEG image")

    def truncated(path):
        picture(path, size=(64, 64))
        path.write_bytes(path.read_bytes()[:2000])

    check("short", truncated, "is not an intact PNG or JPEG image")

    def animated(path):
        frames = [PIL.new("RGB", (4, 4), color) for color in ("red", "blue")]
        frames[0].save(path, save_all=True, append_images=frames[1:])

    check("animated", animated, "is animated, with 2 frames")

    def bomb(path):  # 60,000 x 60,000 pixels in a few bytes, of which only the header is ever read
        header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0" * 1000)), (b"IEND", b""))
        chunks = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in parts)
        path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunks))

    check("bomb", bomb, "too large")

    def large(path):
        picture(path, "L", (8200, 8200))

    check("large", large, "has 8200 x 8200 pixels: at most 67,108,864 are read")


def test_folders_that_cannot_be_classes(tmp_path):
    (tmp_path / "none").mkdir()
    one_line(lambda: read_folder(tmp_path / "none", FolderOptions(8)), tmp_path / "none", "has no folders")
    (tmp_path / "empty/ant").mkdir(parents=True)
    (tmp_path / "empty/bee").mkdir()
    one_line(lambda: read_folder(tmp_path / "empty", FolderOptions(8)), tmp_path / "empty/ant", "has no images")
    picture(tmp_path / "one/ant/1.png")
    one_line(lambda: read_folder(tmp_path / "one", FolderOptions(8)), tmp_path / "one", "has one class, 'ant'")
    one_line(lambda: read_folder(tmp_path / "missing", FolderOptions(8)), "missing is not a folder")


def test_a_cmyk_jpeg_is_refused(tmp_path):
    folder = classes(tmp_path / "f", 2)
    bad = picture(folder / "bee/0.jpg", "CMYK")
    one_line(lambda: read_folder(folder, FolderOptions(8)), bad, "has mode CMYK")


def archive(path, name, numbers):
    with tarfile.open(path, "w") as file:
        for number in numbers:
            data = io.BytesIO()
            shade = 40 * number + (5 if name == "dog" else 0)
            PIL.new("RGB", (64, 64), (shade, shade, shade)).save(data, "PNG")
            member = tarfile.TarInfo(f"{name}/{number}.jpg")
            member.size = data.tell()
            data.seek(0)
            file.addfile(member, data)


def test_dogs_vs_cats(tmp_path):
    for name, numbers in (("cat", range(5)), ("dog", (4, 2, 0, 1, 3))):
        archive(tmp_path / f"{name}.tar", name, numbers)
    found = read_dogs_vs_cats(tmp_path)
    everything = {
        (int(p[0, 0, 0]), int(label))
        for part in found.splits.values()
        for p, label in zip(part.pixels, part.labels, strict=True)
    }
    assert everything == {(40 * n + 5 * label, label) for n in range(5) for label in (0, 1)}
    digest = hashlib.sha256("".join(part.sha256() for part in found.splits.values()).encode()).hexdigest()
    archive(tmp_path / "dog.tar", "dog", range(5))  # in another order
    again = read_dogs_vs_cats(tmp_path)
    assert hashlib.sha256("".join(part.sha256() for part in again.splits.values()).encode()).hexdigest() == digest
    (tmp_path / "cat.tar").unlink()
    one_line(lambda: read_dogs_vs_cats(tmp_path), tmp_path, "has no cat.tar")


def test_only_regular_files_are_pictures(tmp_path):
    classes(tmp_path)
    file = next(tmp_path.rglob("*.png"))
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        file.unlink()
        make(file)
        one_line(lambda: read_folder(tmp_path, FolderOptions(8)), f"cannot read {file}: it is not a regular file")
