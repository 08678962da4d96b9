"""Readers of Text and Image: the public layouts, as folders and archives, real data, and errors."""

import bz2
import contextlib
import gzip
import io
import lzma
import shutil
import tarfile

import numpy as np
import pytest

from linnet.data.lra import image, retrieval, sources, text
from linnet.errors import InputError


def archive(folder, path):
    """A .tar.gz of a folder, as downloaded."""
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, folder.name)
    return path


@pytest.fixture
def reviews(tmp_path):
    """aclImdb with three reviews per class and split, and files that are not reviews."""
    root = tmp_path / "aclImdb"
    for split in ("train", "test"):
        for kind in ("pos", "neg", "unsup"):
            (root / split / kind).mkdir(parents=True)
            for i in range(3):
                (root / split / kind / f"{i}_7.txt").write_text(f"{split} {kind} {i} é<br />")
        (root / split / "urls_pos.txt").write_text("http://")
    return root


@pytest.mark.parametrize("form", ["folder", "archive", "parent"])
def test_reviews(reviews, form, tmp_path):
    path = {"folder": reviews, "archive": None, "parent": tmp_path}[form] or archive(reviews, tmp_path / "x.tar.gz")
    splits = text.read_lra_text(path, 4000)
    assert {split: len(s) for split, s in splits.items()} == {"train": 6, "valid": 6, "test": 6}
    rows, real = splits["train"].rows(np.arange(6))
    words = [bytes((row[mask] - 1).astype(np.uint8)).decode() for row, mask in zip(rows, real, strict=True)]
    assert sorted(words) == sorted(f"train {k} {i} é<br />" for k in ("pos", "neg") for i in range(3))
    assert all((" pos " in word) == bool(label) for word, label in zip(words, splits["train"].labels, strict=True))
    assert np.diff(text.read_lra_text(path, 5)["test"].starts).max() == 5


def test_errors_in_reviews_are_one_line(reviews, tmp_path):
    (reviews / "test" / "neg" / "1_7.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"1_7.txt: the byte 0xe9 is not UTF-8 text"):
        text.read_lra_text(reviews, 4000)
    (reviews / "test" / "neg" / "1_7.txt").write_bytes(b"")
    with pytest.raises(InputError, match=r"1_7.txt is empty"):
        text.read_lra_text(reviews, 4000)
    for read in (lambda path: text.read_lra_text(path, 4000), image.read_lra_image):
        with pytest.raises(InputError, match=r"nowhere does not exist: LRA .* needs .*https://"):
            read(tmp_path / "nowhere")
    (tmp_path / "bare").mkdir()
    with pytest.raises(InputError, match=r"has no reviews train/neg: .*get aclImdb_v1.tar.gz from https://"):
        text.read_lra_text(tmp_path / "bare", 4000)


@pytest.mark.parametrize(("what", "file"), [("reviews", "test/neg/0_7.txt"), ("cifar", "data_batch_1.bin")])
def test_a_folder_or_archive_with_two_copies_is_refused(what, file, tmp_path, request):
    folder = request.getfixturevalue(what)
    parent = tmp_path / "parent"
    for copy in ("one", "two"):
        shutil.copytree(folder, parent / copy / folder.name)
    read = {"reviews": lambda path: text.read_lra_text(path, 4000), "cifar": image.read_lra_image}[what]
    for path in (parent, archive(parent, tmp_path / "x.tar.gz")):
        with pytest.raises(InputError, match=f"{file} exists twice: keep one copy of the"):
            read(path)


def test_a_cut_archive_is_one_line(reviews, tmp_path):
    path = archive(reviews, tmp_path / "x.tar.gz")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"x.tar.gz is not a whole tar archive"):
        text.read_lra_text(path, 4000)
    path.write_bytes(b"no archive at all")
    with pytest.raises(InputError, match=r"x.tar.gz is not a whole tar archive"):
        text.read_lra_text(path, 4000)


def packed(names, path, content=b"text"):
    """A plain archive of files with the same content."""
    with tarfile.open(path, "w") as file:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return path.read_bytes()


REVIEWS = [f"{split}/{kind}/{i}.txt" for split in ("test", "train") for kind in ("neg", "pos", "unsup") for i in "01"]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress], ids=["tar", "gz", "bz2", "xz"])
def test_an_archive_is_whole_or_refused(pack, tmp_path):
    """Wherever it is cut, even between two files or inside a skipped one, and whichever bit is flipped."""
    path = tmp_path / "x.tar"
    whole = pack(packed(REVIEWS, path)[: (2 * len(REVIEWS) + 2) * 512])
    path.write_bytes(whole)
    assert [len(s) for s in text.read_lra_text(path, 4000).values()] == [4, 4, 4]
    for end in range(0, len(whole) - 512, 256) if pack is bytes else range(0, len(whole), 7):
        path.write_bytes(whole[:end])
        with pytest.raises(InputError, match="is not a whole tar archive"):
            text.read_lra_text(path, 4000)
    header = len(whole) - 4 * 512 if pack is bytes else len(whole) // 2  # of a file that is passed over
    path.write_bytes(whole[:header] + bytes([whole[header] ^ 255]) + whole[header + 1 :])
    with pytest.raises(InputError, match="is not a whole tar archive"):
        text.read_lra_text(path, 4000)


def test_files_at_the_top_of_an_archive(cifar, tmp_path):
    """An archive that was made inside the folder has names without the folder."""
    with tarfile.open(tmp_path / "x.tar", "w") as file:
        for batch in cifar.iterdir():
            file.add(batch, batch.name)
    assert len(image.read_lra_image(tmp_path / "x.tar")["train"]) == 18
    packed(REVIEWS, tmp_path / "y.tar")
    assert len(text.read_lra_text(tmp_path / "y.tar", 4000)["train"]) == 4


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["train/pos/2.txt", "train/unsup/2.txt"])
def test_a_file_that_claims_to_be_huge_is_refused(name, tmp_path):
    path = tmp_path / "x.tar"
    member = tarfile.TarInfo(name)
    member.size = 1 << 70
    path.write_bytes(packed(REVIEWS, path)[: 2 * len(REVIEWS) * 512] + member.tobuf(tarfile.GNU_FORMAT))
    with pytest.raises(InputError, match=rf"x.tar: {name} has 1,180,.* bytes, which is too large"):
        text.read_lra_text(path, 4000)


def test_nothing_of_an_archive_is_written(tmp_path):
    """Names that lead out of the folder, absolute names and links are only read as names, or skipped."""
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as file:
        for name in ("../../train/pos/1.txt", "/train/neg/1.txt", "a/test/pos/1.txt", "a/test/neg/1.txt"):
            member = tarfile.TarInfo(name)
            member.size = 4
            file.addfile(member, io.BytesIO(b"text"))
        link = tarfile.TarInfo("train/pos/link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        file.addfile(link)
    before = sorted(tmp_path.parent.rglob("*"))
    splits = text.read_lra_text(path, 4000)
    assert [len(s) for s in splits.values()] == [2, 2, 2]
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_a_broken_link_is_not_skipped(tmp_path):
    """Otherwise a copy that lost a file would silently have one sample less."""
    for name in REVIEWS:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("a review")
    link = tmp_path / "train" / "pos" / "2.txt"
    link.symlink_to(tmp_path / REVIEWS[0])
    assert len(text.read_lra_text(tmp_path, 4000)["train"]) == 5
    link.unlink()
    link.symlink_to(tmp_path / "gone")
    with pytest.raises(InputError, match=rf"cannot read {link}: No such file or directory"):
        text.read_lra_text(tmp_path, 4000)


def test_tables_of_reviews(tmp_path):
    good = b"1\ta\tfine\n0\tb\tawful\n"
    for split in ("train", "test"):
        (tmp_path / f"{split}.tsv.xz").write_bytes(lzma.compress(good))
    assert text.read_lra_text(tmp_path, 10)["test"].labels.tolist() == [1, 0]
    for content, message in (
        (good + b"2\tc\tbad\n", r"test.tsv.xz, line 3: the label is 2: it must be 0 to 1"),
        (good + b"x\tc\tbad\n", r"line 3: the label is 'x': it must be a number from 0 to 1"),
        (good + b"1\tc\n", r"line 3: it has 2 columns, not 3"),
        (good + b"1\tc\t\n", r"test.tsv.xz, line 3: the text is empty"),
        (good + b"1\tc\t\xff\n", r"line 3: the byte 0xff is not UTF-8 text"),
    ):
        (tmp_path / "test.tsv.xz").write_bytes(lzma.compress(content))
        with pytest.raises(InputError, match=message):
            text.read_lra_text(tmp_path, 10)
    (tmp_path / "test.tsv.xz").write_bytes(lzma.compress(good)[:-8])
    with pytest.raises(InputError, match=r"test.tsv.xz is not a whole .xz file"):
        text.read_lra_text(tmp_path, 10)


@pytest.fixture
def cifar(tmp_path):
    """Six binary batches of four images."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        records = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    return folder


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_pictures_are_grey_and_in_order(cifar, form, tmp_path):
    path = cifar if form == "folder" else archive(cifar, tmp_path / "cifar.tar.gz")
    splits = image.read_lra_image(path)
    assert {split: len(s) for split, s in splits.items()} == {"train": 18, "valid": 2, "test": 4}
    record = np.frombuffer((cifar / "data_batch_1.bin").read_bytes(), np.uint8)[:3073].astype(float)
    red, green, blue = record[1:].reshape(3, 1024)
    ids, real = splits["train"].rows(np.array([0]))
    assert np.array_equal(ids[0], np.rint(0.2989 * red + 0.587 * green + 0.114 * blue))
    assert real.all()
    assert splits["train"].labels[0] == record[0]


def test_errors_in_pictures_are_one_line(cifar):
    last = cifar / "test_batch.bin"
    whole = last.read_bytes()
    for content, message in (
        (whole[:-1], r"test_batch.bin is cut short: it has 12,291 bytes, not a multiple of 3073"),
        (b"", r"test_batch.bin is cut short"),
        (bytes([10]) + whole[1:], r"test_batch.bin: the label of image 1 is 10: it must be 0 to 9"),
    ):
        last.write_bytes(content)
        with pytest.raises(InputError, match=message):
            image.read_lra_image(cifar)
    last.unlink()
    with pytest.raises(InputError, match=r"has no test_batch.bin: .*cifar-10-binary.tar.gz"):
        image.read_lra_image(cifar)
    (cifar / "test_batch").write_bytes(b"")
    with pytest.raises(InputError, match="pickled python version, which is not read"):
        image.read_lra_image(cifar)


def test_grey_pictures_that_are_damaged(tmp_path):
    path = tmp_path / "cifar10_gray.npz"
    x, y = np.zeros((10, 1024), np.uint8), np.arange(10)
    np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y)
    assert len(image.read_lra_image(tmp_path)["train"]) == 9
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="is not an intact file of grey images"):
        image.read_lra_image(tmp_path)
    noise = np.random.default_rng(0).integers(0, 9, x.shape, np.uint8)
    np.savez_compressed(path, x_train=noise, y_train=y, x_test=noise, y_test=y)
    whole = path.read_bytes()
    for place in range(0, len(whole) - 1, 97):  # every kind of error that damage can be
        path.write_bytes(whole[:place] + b"\xff\xff" + whole[place + 2 :])
        with contextlib.suppress(InputError):
            image.read_lra_image(tmp_path)
    np.savez(path, x_train=x[:, :9], y_train=y, x_test=x, y_test=y)
    with pytest.raises(InputError, match=r"images are uint8 \(10, 9\)"):
        image.read_lra_image(tmp_path)
    np.savez(path, x_train=x, y_train=y + 1, x_test=x, y_test=y)
    with pytest.raises(InputError, match="the label of image 10 is 10"):
        image.read_lra_image(tmp_path)
    for labels, kind in ((y + 0.5, "float64"), (y.astype(str), "<U")):
        np.savez(path, x_train=x, y_train=labels, x_test=x, y_test=y)
        with pytest.raises(InputError, match=f"labels are {kind}.*not whole numbers"):
            image.read_lra_image(tmp_path)


def test_without_data_the_error_says_what_to_get(monkeypatch, tmp_path):
    monkeypatch.delenv("LINNET_DATA", raising=False)
    for default in (text.default_text_path, image.default_image_path, retrieval.default_retrieval_path):
        with pytest.raises(InputError, match=r"neither data.path nor LINNET_DATA is set: .*needs"):
            default()
    monkeypatch.setenv("LINNET_DATA", str(tmp_path))
    with pytest.raises(InputError, match=r"imdb does not exist: LRA Text needs .*https://"):
        text.default_text_path()


def test_the_real_data(data_dir):
    data_dir("imdb"), data_dir("cifar10-gray")
    reviews = text.read_lra_text(text.default_text_path(), 4000)
    assert [len(reviews[split]) for split in ("train", "test")] == [25_000, 25_000]
    assert reviews["train"].labels.mean() == 0.5
    assert np.diff(reviews["train"].starts).max() == 4000
    pictures = image.read_lra_image(image.default_image_path())
    assert [len(s) for s in pictures.values()] == [45_000, 5_000, 10_000]
    assert np.bincount(pictures["test"].labels).tolist() == [1000] * 10


def test_what_unpacks_to_more_than_any_data_set_is_refused_in_one_line(tmp_path, monkeypatch):
    rows = b"1\ta\t" + b"x" * 90 + b"\n"
    for split in ("train", "test"):
        (tmp_path / f"{split}.tsv.xz").write_bytes(lzma.compress(rows * 1000))
    monkeypatch.setattr(sources, "LARGEST_XZ", 50_000)
    with pytest.raises(InputError, match=r"train.tsv.xz unpacks to more than 50,000 bytes, which is too large"):
        text.read_lra_text(tmp_path, 100)
    monkeypatch.setattr(sources, "LONGEST_ROW", 80)
    with pytest.raises(InputError, match=r"train.tsv.xz, line 1: it has more than 80 bytes"):
        text.read_lra_text(tmp_path, 100)
    np.savez_compressed(tmp_path / "cifar10_gray.npz", x_train=np.zeros((1 << 28) + 1, np.uint8))
    with pytest.raises(InputError, match=r"it unpacks to 268,435,[0-9]+ bytes, and at most 268,435,456 are read"):
        image.read_lra_image(tmp_path)
    packed = tmp_path / "aclImdb_v1.tar"
    with tarfile.open(packed, "w") as file:
        for number in range(30):
            info = tarfile.TarInfo(f"other/{number}")
            info.size = 1000
            file.addfile(info, io.BytesIO(bytes(1000)))
    monkeypatch.setattr(sources, "LARGEST_ARCHIVE", 20_000)
    with pytest.raises(InputError, match=r"aclImdb_v1.tar unpacks to more than 20,000 bytes"):
        text.read_lra_text(packed, 100)


def test_a_link_to_a_device_is_not_read(reviews):
    file = next(path for path in reviews.rglob("*.txt") if path.parent.name == "pos")
    file.unlink()
    file.symlink_to("/dev/zero")
    with pytest.raises(InputError, match=f"cannot read {file}: it is not a regular file"):
        text.read_lra_text(reviews, 4000)
