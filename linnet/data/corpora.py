"""Where text comes from: Python's own source code, WikiText, or the user's files, always in three splits.

A document is kept as checked UTF-8 bytes with line ends as `\\n`. The SHA-256 of a split is that of its
content alone, wherever the files lie, so that a run can say what it was trained on.
"""

import hashlib
import os
import sysconfig
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from linnet.errors import InputError, unknown

SPLITS = ("train", "valid", "test")
SHARES = (0.90, 0.95)  # where train and valid end
SMALLEST_SHARE = 0.01  # a split by file that leaves a part with less than this is not used

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
    """One text: a file, or the part of a file that fell into a split."""

    name: str
    data: bytes

    @property
    def text(self) -> str:
        """The document as a string."""
        return self.data.decode()


@dataclass(frozen=True)
class Corpus:
    """Documents in the splits `train`, `valid` and `test`; `missing` counts listed files not found."""

    name: str
    splits: dict[str, list[Document]]
    missing: int = 0

    @cached_property
    def sha256(self) -> dict[str, str]:
        """For each split, the SHA-256 of its documents (each led by its length, so that borders count)."""
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


def load_corpus(corpus: str, path: str | Path | None = None) -> Corpus:
    """Read the corpus `stdlib`, `wikitext` or `text`.

    `path` is the folder of `wiki.*.tokens` for `wikitext` (default: `wikitext-2` in LINNET_DATA), and the
    file or folder of text for `text`. What is missing, empty, binary or not UTF-8 is a one-line InputError.
    """
    if corpus == "stdlib":
        return _stdlib()
    if corpus == "wikitext":
        return _wikitext(Path(path) if path is not None else default_wikitext())
    if corpus == "text":
        if path is None:
            raise InputError("data.path is not set: the corpus 'text' needs a text file or folder")
        return _text(Path(path))
    raise unknown("corpus", corpus, ("stdlib", "wikitext", "text"))


def read_document(path: Path, name: str) -> Document:
    """A file as a document: UTF-8 (a byte-order mark is dropped), every line end `\\n`, no NUL."""
    try:
        data = path.read_bytes()
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
    documents = [read_document(root / name, name) for name in found]
    if not documents:
        raise InputError(f"this Python has no source files of its library in {root}: use another corpus")
    return Corpus("stdlib", _split_by_file(documents), missing=len(names) - len(found))


def default_wikitext() -> Path:
    """WikiText-2 in LINNET_DATA, for a run that names no folder."""
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
        splits[split] = [read_document(path, path.name)]
        if not splits[split][0].data.strip():
            raise InputError(f"{path} is empty")
    return Corpus("wikitext", splits)


def _text(path: Path) -> Corpus:
    root = path if path.is_dir() else path.parent
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if _is_text(file, path))
        if not files:
            raise InputError(f"{path} has no text files (such as .txt, .md, .py): data.path must have some")
    elif path.is_file():
        files = [path]
    else:
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}: data.path must be a text file or a folder of them")
    documents = [read_document(file, file.relative_to(root).as_posix()) for file in files]
    documents = [document for document in documents if document.data.strip()]
    if not documents:
        raise InputError(f"{path} is empty: there is no text to learn from")
    splits = _split_by_file(documents)
    sizes = [sum(len(document.data) for document in splits[split]) for split in SPLITS]
    if min(sizes) < SMALLEST_SHARE * sum(sizes):
        splits = _split_by_line(documents)
    return Corpus("text", splits)


def _is_text(file: Path, root: Path) -> bool:
    hidden = any(part.startswith(".") for part in file.relative_to(root).parts)
    return not hidden and file.suffix.lower() in TEXT_SUFFIXES.split() and file.is_file()


def _split_by_file(documents: list[Document]) -> dict[str, list[Document]]:
    """Each document by the hash of its name, so that adding one moves no other."""
    splits: dict[str, list[Document]] = {split: [] for split in SPLITS}
    for document in documents:
        digest = hashlib.sha256(document.name.encode(errors="surrogateescape")).digest()
        u = int.from_bytes(digest[:8], "little") / 2**64
        splits[SPLITS[sum(u >= share for share in SHARES)]].append(document)
    return splits


def _split_by_line(documents: list[Document]) -> dict[str, list[Document]]:
    """The documents in a row, cut at two ends of lines."""
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
    """The first end of a line from `near` on, or where that is out of `reach`, of a character."""
    near = min(max(near, 0), len(data))
    if near in (0, len(data)):
        return near
    newline = data.find(b"\n", near - 1, near + reach)
    if newline >= 0:
        return newline + 1
    while near < len(data) and data[near] & 0xC0 == 0x80:  # not inside a character
        near += 1
    return near
