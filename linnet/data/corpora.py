"""Text corpora in three splits: the source code of Python's standard library, WikiText, enwik8, or the user's files.

A document is stored as checked UTF-8 bytes with `\\n` line ends. The SHA-256 of a split depends only on its content,
not on where the files are, so a run can record what it was trained on.
"""

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from linnet.data.enwik8 import default_enwik8, read_enwik8
from linnet.data.held_out import SHARES, held_out_suffices, hold_out_files, hold_out_whole_files
from linnet.data.held_out import SPLITS as SPLITS
from linnet.errors import InputError, unknown_name_error
from linnet.storage import LARGEST_TEXT, read_regular_file

TEXT_SUFFIXES = """
.txt .text .md .markdown .rst .tex .org .tokens .raw .srt .csv .tsv .json .jsonl .toml .yaml .yml .html .xml
.css .py .pyi .c .h .cc .cpp .hpp .cu .java .js .ts .go .rs .rb .lua .r .jl .sh .sql
"""

# Modules that most versions of Python have, without tables, platform code and tests.
STDLIB = """
__future__ _collections_abc _compression _markupbase _py_abc _pydecimal _pyio _sitebuiltins _strptime
_threading_local _weakrefset abc argparse ast asyncio/__main__ asyncio/base_events asyncio/base_subprocess
asyncio/coroutines asyncio/events asyncio/futures asyncio/locks asyncio/protocols asyncio/queues
asyncio/runners asyncio/selector_events asyncio/sslproto asyncio/staggered asyncio/streams
asyncio/subprocess asyncio/taskgroups asyncio/tasks asyncio/timeouts asyncio/transports
asyncio/unix_events base64 bdb bisect bz2 cProfile calendar cmd code codecs codeop collections/__init__
colorsys compileall concurrent/futures/_base concurrent/futures/process concurrent/futures/thread
contextlib copy copyreg csv dataclasses datetime difflib dis doctest email/_encoded_words
email/_header_value_parser email/_parseaddr email/_policybase email/base64mime email/charset
email/contentmanager email/errors email/feedparser email/generator email/header email/headerregistry
email/message email/mime/audio email/mime/image email/parser email/policy email/quoprimime email/utils
enum filecmp fileinput fnmatch fractions ftplib functools genericpath getopt getpass gettext glob graphlib
gzip hashlib heapq hmac html/__init__ html/parser http/__init__ http/client http/cookiejar http/cookies
http/server imaplib inspect io ipaddress json/__init__ json/decoder json/encoder json/tool linecache
logging/__init__ logging/config logging/handlers lzma mailbox mimetypes modulefinder
multiprocessing/connection multiprocessing/context multiprocessing/forkserver multiprocessing/heap
multiprocessing/managers multiprocessing/pool multiprocessing/process multiprocessing/queues
multiprocessing/reduction multiprocessing/resource_sharer multiprocessing/resource_tracker
multiprocessing/shared_memory multiprocessing/sharedctypes multiprocessing/spawn
multiprocessing/synchronize multiprocessing/util netrc ntpath numbers opcode operator optparse os pathlib
pdb pickle pickletools pkgutil platform plistlib poplib posixpath pprint profile pstats pty py_compile
pyclbr pydoc queue quopri random re/__init__ re/_compiler re/_constants re/_parser reprlib rlcompleter
runpy sched selectors shelve shlex shutil site smtplib socket socketserver sqlite3/dbapi2 sqlite3/dump ssl
stat statistics string subprocess symtable sysconfig tabnanny tarfile tempfile textwrap threading timeit
tokenize tomllib/_parser trace traceback tracemalloc turtle types typing unittest/__init__
unittest/async_case unittest/case unittest/loader unittest/main unittest/mock unittest/result
unittest/runner unittest/suite unittest/util urllib/parse urllib/request urllib/robotparser venv/__init__
warnings wave weakref webbrowser wsgiref/handlers wsgiref/headers wsgiref/simple_server wsgiref/util
wsgiref/validate xml/dom/__init__ xml/dom/domreg xml/dom/expatbuilder xml/dom/minicompat xml/dom/minidom
xml/dom/pulldom xml/dom/xmlbuilder xml/etree/ElementInclude xml/etree/ElementPath xml/etree/ElementTree
xml/sax/__init__ xml/sax/_exceptions xml/sax/expatreader xml/sax/handler xml/sax/saxutils
xml/sax/xmlreader xmlrpc/client xmlrpc/server zipapp zipfile zoneinfo/_common zoneinfo/_tzpath
zoneinfo/_zoneinfo
"""


@dataclass(frozen=True)
class Document:
    """One text: a file, or the part of a file that belongs to a split."""

    name: str
    data: bytes

    @property
    def text(self) -> str:
        """The document as a string."""
        return self.data.decode()

    @property
    def size(self) -> int:
        """Bytes of text."""
        return len(self.data)


@dataclass(frozen=True)
class Corpus:
    """Documents in the splits `train`, `valid` and `test`; `missing` counts listed files that were not found.

    `passed_over` lists the files of a folder that were skipped, with the reason; `held_out` says how the validation
    and test text was chosen.
    """

    name: str
    splits: dict[str, list[Document]]
    missing: int = 0
    passed_over: tuple[tuple[str, str], ...] = ()
    held_out: str = ""

    @cached_property
    def sha256(self) -> dict[str, str]:
        """For each split, the SHA-256 of its documents, each preceded by its length so that boundaries count."""
        hashes = {}
        for split, documents in self.splits.items():
            whole = hashlib.sha256()
            for document in documents:
                whole.update(len(document.data).to_bytes(8, "little"))
                whole.update(document.data)
            hashes[split] = whole.hexdigest()
        return hashes

    def size(self, split: str) -> int:
        """Bytes of text in a split."""
        return sum(len(document.data) for document in self.splits[split])


def load_corpus(
    corpus: str,
    path: str | Path | None = None,
    held_out: str | None = "auto",
    valid_path: str | Path | None = None,
    test_path: str | Path | None = None,
    skip_bad: bool = False,
) -> Corpus:
    """Read the corpus `stdlib`, `wikitext`, `enwik8` or `text`.

    `path` is the folder of `wiki.*.tokens` for `wikitext` (default: `wikitext-2` in LINNET_DATA), that of `enwik8` or
    `enwik8.xz` for `enwik8` (default: `enwik8` in LINNET_DATA), and the file or folder of text for `text`. A missing,
    empty, binary or non-UTF-8 file raises InputError.

    For `text`, `valid_path` and `test_path` name the text of these splits. A split without its own path is held out
    of `path`: "files" takes whole files by the hash of their names, "parts" takes the end of every file, and "auto"
    takes whole files if there are many. None is the rule of version 0.1, which took the end of the last files.
    `skip_bad` skips files that are not UTF-8 text.
    """
    if corpus == "stdlib":
        return _stdlib()
    if corpus == "wikitext":
        return _wikitext(Path(path) if path is not None else default_wikitext_corpus())
    if corpus == "enwik8":
        data = read_enwik8(Path(path) if path is not None else default_enwik8())
        return Corpus("enwik8", {split: [Document("enwik8", part)] for split, part in data.items()})
    if corpus == "text":
        if path is None:
            raise InputError("data.path is not set: the corpus 'text' needs a text file or folder")
        own = {"valid": valid_path, "test": test_path}
        return _text(Path(path), held_out, {split: Path(p) for split, p in own.items() if p is not None}, skip_bad)
    raise unknown_name_error("corpus", corpus, ("stdlib", "wikitext", "enwik8", "text"))


def read_corpus_document(path: Path, name: str) -> Document:
    """Read a file as a document: UTF-8 without NUL; drops a byte-order mark, makes every line end `\\n`."""
    try:
        data = read_regular_file(path, LARGEST_TEXT)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    where, what = data.find(b"\0"), "a NUL byte: it is binary, not text"
    try:
        data.decode()
    except UnicodeDecodeError as error:
        if not 0 <= where < error.start:
            where, what = error.start, f"the byte 0x{data[error.start]:02x}: it is not UTF-8 text"
    if where >= 0:
        line = data.count(b"\n", 0, where) + 1
        raise InputError(f"{path}, line {line}: the file holds {what}")
    return Document(name, data)


def _stdlib() -> Corpus:
    root = Path(sysconfig.get_path("stdlib"))
    names = [f"{module}.py" for module in STDLIB.split()]
    found = [name for name in names if (root / name).is_file()]
    documents = [read_corpus_document(root / name, name) for name in found]
    if not documents:
        raise InputError(f"this Python has no source files of the standard library in {root}: use another corpus")
    return Corpus("stdlib", hold_out_files(documents), missing=len(names) - len(found))


def default_wikitext_corpus() -> Path:
    """The folder of WikiText-2 in LINNET_DATA, used if a run names no folder."""
    data = os.environ.get("LINNET_DATA")
    if not data:
        raise InputError("data.path is not set: name the folder of wiki.train.tokens, or set LINNET_DATA")
    return Path(data) / "wikitext-2"


def _wikitext(folder: Path) -> Corpus:
    splits = {}
    for split in SPLITS:
        names = (f"wiki.{split}.tokens", f"wiki.{split}.raw")
        path = next((folder / name for name in names if (folder / name).is_file()), None)
        if path is None:
            raise InputError(f"{folder / names[0]} is missing: data.path must be a folder of WikiText")
        splits[split] = [read_corpus_document(path, path.name)]
        if not splits[split][0].data.strip():
            raise InputError(f"{path} is empty")
    return Corpus("wikitext", splits)


def _text(path: Path, held_out: str | None, own: dict[str, Path], skip_bad: bool) -> Corpus:
    documents, passed = _read_texts("data.path", path, skip_bad)
    splits, how = _hold_out(documents, held_out, [split for split in SPLITS if split not in own])
    for split, place in own.items():
        splits[split], also = _read_texts(f"data.{split}_path", place, skip_bad)
        passed += also
        trained = {file.resolve() for file in _text_files(path)}
        for file in _text_files(place):
            if file.resolve() in trained:
                raise InputError(f"data.{split}_path: {file} is in data.path too: it must not be trained on")
    return Corpus("text", splits, passed_over=tuple(passed), held_out=how)


def _read_texts(key: str, path: Path, skip_bad: bool) -> tuple[list[Document], list[tuple[str, str]]]:
    """The documents of a file or folder, and the skipped files, each with the reason."""
    passed: list[tuple[str, str]] = []
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if not is_hidden_corpus_file(file, path) and file.is_file())
        texts = _text_files(path)
        if not texts:
            raise InputError(f"{path} has no text files (such as .txt, .md, .py): {key} must have some")
        others = (file for file in files if file not in texts)
        passed = [(str(file), f"{file.suffix or 'no suffix'} is not a text suffix") for file in others]
    elif path.is_file():
        texts = [path]
    else:
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}: {key} must be a text file or a folder of them")
    root, documents = path if path.is_dir() else path.parent, []
    for file in texts:
        try:
            document = read_corpus_document(file, file.relative_to(root).as_posix())
        except InputError as error:
            if not skip_bad:
                hint = ": data.skip_bad=true skips such files" if path.is_dir() else ""
                raise InputError(f"{error}{hint}") from None
            passed.append((str(file), str(error).removeprefix(f"{file}").lstrip(", ")))
            continue
        if document.data.strip():
            documents.append(document)
        else:
            passed.append((str(file), "it is empty"))
    if not documents:
        raise InputError(f"{path} is empty: there is no text to learn from")
    return documents, passed


def _text_files(path: Path) -> list[Path]:
    """The files of text in a folder, or the one file."""
    if not path.is_dir():
        return [path]
    texts = (file for file in path.rglob("*") if file.suffix.lower() in TEXT_SUFFIXES.split() and file.is_file())
    return sorted(file for file in texts if not is_hidden_corpus_file(file, path))


def is_hidden_corpus_file(file: Path, root: Path) -> bool:
    """Whether a file or one of its folders below `root` is hidden."""
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def _hold_out(
    documents: list[Document], held_out: str | None, wanted: list[str]
) -> tuple[dict[str, list[Document]], str]:
    """The documents in the `wanted` splits, and how they were held out; other splits' shares go to training."""
    if wanted == ["train"]:
        return {"train": documents}, "nothing"
    if held_out is None:
        by_file = hold_out_files(documents)
        return (by_file if held_out_suffices(by_file, 1) else _split_by_line(documents)), "the end of all the text"
    whole = hold_out_whole_files(documents, held_out)
    splits = whole or _merge([_split_by_line([document]) for document in documents])
    for split in (split for split in SPLITS if split not in wanted):
        splits["train"] = _in_order(documents, splits["train"] + splits.pop(split))
    return splits, "whole files" if whole else "the end of every file"


def _merge(parts: list[dict[str, list[Document]]]) -> dict[str, list[Document]]:
    return {split: [document for part in parts for document in part[split]] for split in SPLITS}


def _in_order(documents: list[Document], chosen: list[Document]) -> list[Document]:
    """The chosen documents in the order of their files; parts of one file become one document again."""
    by_name: dict[str, bytes] = {}
    for document in chosen:
        by_name[document.name] = by_name.get(document.name, b"") + document.data
    return [Document(document.name, by_name[document.name]) for document in documents if document.name in by_name]


def _split_by_line(documents: list[Document]) -> dict[str, list[Document]]:
    """Join the documents and cut them at two line ends."""
    total = sum(len(document.data) for document in documents)
    cuts = [round(share * total) for share in SHARES]
    reach = total // 40  # half of the smallest split
    splits: dict[str, list[Document]] = {split: [] for split in SPLITS}
    offset = 0
    for document in documents:
        train, valid = (_end_of_line(document.data, cut - offset, reach) for cut in cuts)
        parts = (document.data[:train], document.data[train:valid], document.data[valid:])
        for split, part in zip(SPLITS, parts, strict=True):
            if part:
                splits[split].append(Document(document.name, part))
        offset += len(document.data)
    return splits


def _end_of_line(data: bytes, near: int, reach: int) -> int:
    """The first end of a line from `near` on; if that is out of `reach`, the first end of a character."""
    near = min(max(near, 0), len(data))
    if near in (0, len(data)):
        return near
    newline = data.find(b"\n", near - 1, near + reach)
    if newline >= 0:
        return newline + 1
    while near < len(data) and data[near] & 0xC0 == 0x80:  # not inside a character
        near += 1
    return near
