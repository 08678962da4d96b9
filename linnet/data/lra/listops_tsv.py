"""ListOps as text: the public TSV files, whose trees are written as nested pairs, `( ( ( [MAX 2 ) 9 ) ] )`.

An operator and its first argument form a pair, that pair and the second argument the next, and the last pair adds the
`]`. The parentheses are redundant; the reader checks that they match the brackets, and that the target is the value.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from linnet.config import short_config_value
from linnet.data.lra.listops import (
    END,
    FIRST,
    SYMBOLS,
    TOKENS,
    ZERO,
    Bytes,
    Ints,
    Trees,
    evaluate_listops,
    generate_listops,
    listops_depth,
)
from linnet.errors import InputError
from linnet.storage import DAY, clean_temporary_files, one_line_file_errors, temporary_file_name

HEADER = "Source\tTarget"
NAMES = {"train": "basic_train.tsv", "valid": "basic_val.tsv", "test": "basic_test.tsv"}
BLOCK = 2000  # lines that are evaluated at once
NESTED = END + 1  # in the table of texts: the `]` of an operator that is itself an argument


def listops_to_text(tokens: Bytes, starts: Ints) -> list[str]:
    """Each tree in the public text form."""
    opens, depth = listops_depth(tokens, starts)
    ends, depth = tokens == END, depth - opens
    operators, items = np.flatnonzero(opens), np.flatnonzero(~ends)
    operators = operators[np.argsort(depth[operators], kind="stable")]
    total = len(tokens)
    # The operator of an item is the last one before it that is one level higher.
    key = (depth[items] - 1) * total + items
    owner = np.searchsorted(depth[operators] * total + operators, key) - 1
    count = np.bincount(owner[depth[items] > 0], minlength=len(operators))
    code = tokens.astype(np.int64)
    code[operators] += 16 * count
    code[ends] = NESTED
    code[starts[1:] - 1] = tokens[starts[1:] - 1]  # the end of a row is not an argument
    digits = {ZERO + digit: f"{digit} ) " for digit in range(10)}
    calls = {FIRST + i + 16 * n: "( " * (n + 1) + f"{SYMBOLS[FIRST + i - 1]} " for i in range(4) for n in set(count)}
    table = {**digits, **calls, END: "] )", NESTED: "] ) ) "}
    codes = code.tolist()
    return ["".join(map(table.__getitem__, codes[a:b])) for a, b in itertools.pairwise(starts.tolist())]


def write_listops_tsv(
    folder: Path, sizes: dict[str, int], seed: int, progress: Callable[[int, int], None] | None = None
) -> list[Path]:
    """Generate the three files of a new data set; they get their names once all of them are complete on disk."""
    total = sum(sizes.values())
    batches = generate_listops(seed, total, progress=progress)
    rows = (
        row for trees in batches for row in zip(listops_to_text(trees.tokens, trees.starts), trees.values, strict=True)
    )
    with one_line_file_errors("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
    clean_temporary_files(folder, older_than=DAY)  # files that a killed process left, not those that another is writing
    paths = [folder / NAMES[split] for split in sizes]
    with contextlib.ExitStack() as stack:
        temporaries = [temporary_file_name(path) for path in paths]
        for path, temporary, size in zip(paths, temporaries, sizes.values(), strict=True):
            stack.enter_context(one_line_file_errors("write", path, temporary))
            with temporary.open("x") as file:
                file.write(f"{HEADER}\n")
                file.writelines(f"{source}\t{value}\n" for source, value in itertools.islice(rows, size))
                file.flush()
                os.fsync(file.fileno())  # a power cut must not leave a file name without its content
        for path, temporary in zip(paths, temporaries, strict=True):
            temporary.replace(path)
    return paths


def score_listops_tsv_shortcuts(paths: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    """The scores on the other splits of two shortcuts that know only the values of the training trees.

    `commonest` is the accuracy of always answering the most common value. `operator` is the accuracy of answering the
    most common value of the outermost operator, and `loss` the mean loss of predicting that operator's frequencies.
    """
    seen, *others = (_tally(path) for path in paths.values())
    share = (seen + 1) / (seen + 1).sum(axis=1, keepdims=True)  # add one, so that no share is 0 in a small set
    rule = seen.argmax(axis=1)
    return {
        split: {
            "commonest": float(found[:, seen.sum(axis=0).argmax()].sum() / found.sum()),
            "operator": float(found[range(4), rule].sum() / found.sum()),
            "loss": float(-(found * np.log(share)).sum() / found.sum()),
        }
        for split, found in zip(list(paths)[1:], others, strict=True)
    }


def _tally(path: Path) -> NDArray[np.int64]:
    """The number of trees in a file for each outermost operator and value, (4, 10)."""
    counts = np.zeros((4, 10), np.int64)
    with path.open() as file:
        next(file)
        for line in file:
            operator = line[line.index("[") :].split(maxsplit=1)[0]
            counts[TOKENS[operator] - FIRST, int(line.rpartition("\t")[2])] += 1
    return counts


def read_listops_tsv(path: Path, longest: int, progress: Callable[[int, int], None] | None = None) -> Trees:
    """The trees of one file. Recomputes every target; an error names the file and the first wrong line."""
    parts = [_check(block, longest) for block in _blocks(path, progress)]
    if not parts:
        raise InputError(f"{path} has no rows after its header")
    return Trees.join(parts)


class _Line:
    """One line of a file: its place, its source and its target as written."""

    def __init__(self, line: bytes, number: int, path: Path) -> None:
        self.place = f"{path}, line {number}"
        try:
            columns = line.decode("ascii").split("\t")
        except UnicodeDecodeError as error:
            raise InputError(f"{self.place}: the byte 0x{line[error.start]:02x} is not ASCII text") from None
        if len(columns) != 2:
            raise InputError(f"{self.place}: it has {len(columns)} columns, not Source and Target")
        self.source, target = columns
        if target not in SYMBOLS[:10]:
            raise InputError(f"{self.place}: the target is {short_config_value(target)}, not a digit")
        self.target = int(target)

    def tokens(self, longest: int) -> bytes:
        """The tokens without the parentheses."""
        symbols = self.source.replace("(", "").replace(")", "").split()
        if not symbols:
            raise InputError(f"{self.place}: the tree is empty")
        if len(symbols) > longest:
            raise InputError(f"{self.place}: the tree has {len(symbols)} tokens, more than {longest}")
        try:
            return bytes(map(TOKENS.__getitem__, symbols))
        except KeyError as error:
            raise InputError(f"{self.place}: {short_config_value(error.args[0])} is not a symbol of ListOps") from None

    def check(self, value: int, text: str) -> None:
        """Raise if the line is not a tree, has another value, or its parentheses do not match its brackets."""
        if value < 0:
            raise InputError(f"{self.place}: the brackets do not match, or an operator has no arguments")
        if value != self.target:
            raise InputError(f"{self.place}: the target is {self.target}, but the value of the tree is {value}")
        if self.source != text and ("(" in self.source or ")" in self.source):
            raise InputError(f"{self.place}: the parentheses do not match the brackets")


def _blocks(path: Path, progress: Callable[[int, int], None] | None) -> Iterator[list[_Line]]:
    """The lines of a file, many at a time."""
    with one_line_file_errors("read", path), path.open("rb") as file:
        total = path.stat().st_size
        if file.readline().rstrip(b"\r\n") != HEADER.encode():
            raise InputError(f"{path}, line 1: the header is not Source and Target, with a tab between")
        numbered = enumerate((line.rstrip(b"\r\n") for line in file), 2)
        while block := [_Line(line, number, path) for number, line in itertools.islice(numbered, BLOCK)]:
            if progress is not None:
                progress(file.tell(), total)
            yield block


def _check(rows: list[_Line], longest: int) -> Trees:
    """The trees of these lines; raises if a line is not a tree or has another value."""
    data = [row.tokens(longest) for row in rows]
    starts = np.concatenate([[0], np.cumsum([len(tree) for tree in data])])
    tokens = np.frombuffer(b"".join(data), np.uint8)
    values = evaluate_listops(tokens, starts)
    trees, good = Trees(tokens, starts, values.astype(np.uint8)), np.flatnonzero(values >= 0)
    texts = dict(zip(good.tolist(), listops_to_text(*trees.select(good)[:2]), strict=True))
    for number, row in enumerate(rows):
        row.check(int(values[number]), texts.get(number, ""))
    return trees
