"""Readers of data with small whole files for them: promise 12 mutates these."""

import gzip
import lzma
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from linnet.data.corpora import load_corpus
from linnet.data.glue import GLUE, read_glue_splits
from linnet.data.images.cifar10 import read_cifar10
from linnet.data.images.fashion_mnist import read_fashion_mnist
from linnet.data.images.folder import FolderOptions, read_folder
from linnet.data.lra import image, listops_tsv, pathfinder_files, retrieval, text
from linnet.data.lra.png import encode_png
from linnet.data.tokenizer import Tokenizer, build_tokenizer
from linnet.models.backbone import Model
from linnet.models.loading import export_model, load_model
from linnet.models.presets import preset_config
from linnet.storage import read_json_file

REVIEWS = [f"{split}/{kind}/{i}.txt" for split in ("test", "train") for kind in ("neg", "pos", "unsup") for i in "01"]


def _reviews(folder: Path) -> Callable[[], object]:
    for name in REVIEWS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("a review of 7 words, and a comma")
    return lambda: text.read_lra_text(folder, 100)


def _review_tables(folder: Path) -> Callable[[], object]:
    rows = "".join(f"{i % 2}\t{i}\ta review {i}\n" for i in range(20))
    for split in ("train", "test"):
        (folder / f"{split}.tsv.xz").write_bytes(lzma.compress(rows.encode()))
    return lambda: text.read_lra_text(folder, 100)


def _pictures(folder: Path) -> Callable[[], object]:
    rng = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        records = rng.integers(0, 256, (4, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        (folder / name).write_bytes(records.tobytes())
    return lambda: image.read_lra_image(folder)


def _grey(folder: Path) -> Callable[[], object]:
    x, y = np.zeros((20, 1024), np.uint8), np.arange(20) % 10
    np.savez_compressed(folder / "cifar10_gray.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    return lambda: image.read_lra_image(folder)


def _pairs(folder: Path) -> Callable[[], object]:
    for name in retrieval.NAMES.values():
        (folder / name).write_bytes(b"1.0\ta\tb\tpaper a\tpaper b\n0.0\ta\tc\tpaper a\tpaper c is long\n")
    return lambda: retrieval.read_retrieval(folder, 100)


def _citations(folder: Path) -> Callable[[], object]:
    docs = "".join(f"P{i}\tpaper {i}\n" for i in range(200))
    (folder / "docs.tsv.xz").write_bytes(lzma.compress(docs.encode()))
    cites = "".join(f"P{i}\tP{(i + d) % 200}\n" for i in range(200) for d in (1, 2, 3, 4))
    (folder / "citations.tsv").write_text(cites)
    return lambda: retrieval.read_small_retrieval(folder, 100)


def _listops(folder: Path) -> Callable[[], object]:
    rows = "Source\tTarget\n" + "( ( ( [MAX 1 ) 7 ) ] )\t7\n( ( ( [MIN 4 ) 2 ) ] )\t2\n" * 5
    (folder / "basic_train.tsv").write_text(rows)
    return lambda: listops_tsv.read_listops_tsv(folder / "basic_train.tsv", 2000)


def _pathfinder(folder: Path) -> Callable[[], object]:
    (folder / "imgs/0").mkdir(parents=True)
    (folder / "metadata").mkdir()
    lines = []
    for i in range(4):
        (folder / f"imgs/0/sample_{i}.png").write_bytes(encode_png(np.full((32, 32), 9 * i, np.uint8)))
        lines.append(f"imgs/0 sample_{i}.png {i} {i % 2} 1 2 3 4 5")
    (folder / "metadata/0.npy").write_text("\n".join(lines) + "\n")
    return lambda: pathfinder_files.read_public_pathfinder_files(folder)


def _text(folder: Path) -> Callable[[], object]:
    for i in range(4):
        (folder / f"{i}.txt").write_text("Words of a text, line by line.\nAnother line.\n" * 30)
    return lambda: load_corpus("text", folder, held_out="auto")


def _wikitext(folder: Path) -> Callable[[], object]:
    for split in ("train", "valid", "test"):
        (folder / f"wiki.{split}.tokens").write_text(" = Title = \n\n words and <unk> words \n" * 20)
    return lambda: load_corpus("wikitext", folder)


def _tokenizer(folder: Path) -> Callable[[], object]:
    build_tokenizer("bpe", ["words and more words, line by line " * 20], 300).save(folder / "tokenizer.json")
    return lambda: Tokenizer.load(folder / "tokenizer.json")


def _json(folder: Path) -> Callable[[], object]:
    (folder / "about.json").write_text('{"a": [1, 2, {"b": null}], "c": "text"}')
    return lambda: read_json_file(folder / "about.json")


def _colors(folder: Path) -> Callable[[], object]:
    _pictures(folder)
    return lambda: read_cifar10(folder)


def _fashion(folder: Path) -> Callable[[], object]:
    def idx(array: np.ndarray) -> bytes:
        return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()

    for part in ("train", "t10k"):
        pixels, labels = np.zeros((20, 28, 28), np.uint8), (np.arange(20) % 10).astype(np.uint8)
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(pixels)))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(idx(labels))
    return lambda: read_fashion_mnist(folder)


def _folder(folder: Path) -> Callable[[], object]:
    for name in ("cat", "dog"):
        (folder / name).mkdir()
        for i in range(10):
            picture = Image.new("RGB", (9, 7), (20 * i, 0, 99))
            picture.save(folder / name / f"{i}{'.png' if i % 2 else '.jpg'}")
    return lambda: read_folder(folder, FolderOptions(8))


def _glue(name: str, folder: Path) -> Callable[[], object]:
    layout, rows = GLUE[name], []
    head = [str(column) for column in (*layout.columns, layout.label)]
    for i in range(30):
        label = layout.classes[i % len(layout.classes)] if layout.classes else str(i % 5)
        texts = [f'"a ""text"" {i}"' if layout.quoted else f'a "text {i}' for _ in layout.columns]
        rows.append("\t".join([*texts, label]))
    text = "\n".join(["\t".join(head), *rows, ""])
    for file in {layout.part} if layout.part else {"train.tsv", layout.dev}:
        (folder / file).write_text(text)
    return lambda: read_glue_splits(name, folder, 0)


def _sentences(folder: Path) -> Callable[[], object]:
    return _glue("sst2", folder)


def _scores(folder: Path) -> Callable[[], object]:
    return _glue("stsb", folder)


def _quoted(folder: Path) -> Callable[[], object]:
    return _glue("qqp_20k", folder)


def _export(folder: Path) -> Callable[[], object]:
    model = Model(preset_config({"preset": "transnormer_t2_lm_small", "width": 16, "heads": 2, "vocab_size": 30}))
    export_model(model, folder / "model")
    return lambda: load_model(folder / "model")


def _transformers(folder: Path) -> Callable[[], object]:
    from linnet.hf.export import export_to_hf
    from linnet.hf.load import load

    model = Model(preset_config({"preset": "transnormer_t2_lm_small", "width": 16, "heads": 2, "vocab_size": 30}))
    export_to_hf(model, folder / "model")
    return lambda: load(folder / "model")


READERS = (
    *(_text, _wikitext, _tokenizer, _json, _reviews, _review_tables, _pictures, _grey, _pairs, _citations),
    *(_listops, _pathfinder, _colors, _fashion, _folder, _sentences, _scores, _quoted, _export, _transformers),
)
