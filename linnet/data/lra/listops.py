"""ListOps by its public rules: nested MIN, MAX, MED and SM (sum modulo 10) of digits, whose value is to be found.

A tree is its tokens in reading order, a byte each: 1 to 10 are the digits, then four operators, then the end of an
operator; 0 is padding. Trees are drawn level by level and many at once, so that one that gets too long is dropped
before it is finished; the draws of one batch depend on the seed and its number alone.
"""

import hashlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

OPERATORS = ("MIN", "MAX", "MED", "SM")
SYMBOLS = (*"0123456789", *(f"[{name}" for name in OPERATORS), "]")
TOKENS = {symbol: token for token, symbol in enumerate(SYMBOLS, 1)}
ZERO, FIRST, END = TOKENS["0"], TOKENS["[MIN"], TOKENS["]"]  # of the digits, of the operators, of an operator
DEPTH = 10  # the root is at depth 1; at this depth there are digits only
ARGUMENTS = (2, 10)
ONE_IN = 4  # of the arguments, as many are operators
SHORTEST, LONGEST = 501, 1999  # tokens, parentheses not counted
BATCH = 4096  # trees drawn at once, of which a third has an accepted length

Bytes = NDArray[np.uint8]
Ints = NDArray[np.integer[Any]]


class Trees(NamedTuple):
    """Trees one after the other: `tokens` of all, where each begins (and the last ends), and their values."""

    tokens: Bytes
    starts: Ints
    values: Bytes

    @staticmethod
    def join(parts: Sequence["Trees"]) -> "Trees":
        """The trees of all parts, in their order."""
        length = np.concatenate([np.diff(part.starts) for part in parts])
        tokens, values = np.concatenate([p.tokens for p in parts]), np.concatenate([p.values for p in parts])
        return Trees(tokens, np.concatenate([[0], np.cumsum(length)]), values)

    def select(self, rows: Ints) -> "Trees":
        """Some of them, in this order."""
        length = np.diff(self.starts)[rows]
        starts = np.concatenate([[0], np.cumsum(length)])
        places = np.repeat(self.starts[rows] - starts[:-1], length) + np.arange(starts[-1])
        return Trees(self.tokens[places], starts, self.values[rows])


@dataclass
class Level:
    """The operators at one depth, in reading order, and their arguments, those of the first operator first."""

    tree: Ints  # (n,) which tree an operator belongs to
    operator: Ints  # (n,) 0 to 3
    count: Ints  # (n,) number of its arguments
    nested: NDArray[np.bool_]  # (sum of count,) is this argument an operator, of the next level
    digit: Ints  # the same shape: its value where it is not

    @property
    def starts(self) -> Ints:
        """Where each operator's arguments begin."""
        return np.cumsum(self.count) - self.count

    @property
    def owner(self) -> Ints:
        """Which operator of this level each argument belongs to."""
        return np.repeat(np.arange(len(self.count), dtype=np.int32), self.count)


def generate(
    seed: int, count: int, workers: int | None = None, progress: Callable[[int, int], None] | None = None
) -> Iterator[Trees]:
    """`count` different trees, batch by batch; the same ones however many `workers` draw them.

    `workers` are threads, by default one for each core: numpy does the work and lets others run meanwhile.
    """
    seen: set[bytes] = set()
    workers = workers or os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[Future[Trees]] = deque()
        for number in itertools.count():
            ahead.append(pool.submit(draw_trees, seed, number))
            if len(ahead) <= workers:
                continue
            trees = _new(ahead.popleft().result(), seen, count)
            if progress is not None:
                progress(len(seen), count)
            yield trees
            if len(seen) == count:
                pool.shutdown(cancel_futures=True)
                return


def _new(trees: Trees, seen: set[bytes], count: int) -> Trees:
    """The trees that no batch before has brought, as many as are wanted still."""
    rows = []
    for row, (start, end) in enumerate(itertools.pairwise(trees.starts)):
        digest = hashlib.blake2b(trees.tokens[start:end].tobytes(), digest_size=16).digest()
        if digest not in seen and len(seen) < count:
            seen.add(digest)
            rows.append(row)
    return trees if len(rows) == len(trees.values) else trees.select(np.array(rows, np.int64))


def draw_trees(seed: int, number: int, shortest: int = SHORTEST, longest: int = LONGEST) -> Trees:
    """The trees of accepted length among those of batch `number`.

    Only trees whose root is an operator are drawn: a single digit, three of four trees, is never long enough.
    """
    levels, length = _draw(seed, number, longest)
    kept = (length >= shortest) & (length <= longest)
    return _serialize([_select(level, kept) for level in levels], length[kept])


def _draw(seed: int, number: int, longest: int) -> tuple[list[Level], Ints]:
    """The levels of a batch of trees, and their lengths; what has grown too long stops growing."""
    bits = np.random.Philox(key=np.array([seed % 2**64, number], np.uint64))

    def uniform(n: int, below: int) -> Ints:
        raw = bits.random_raw(n // 2 + 1).view(np.uint32)[:n]  # numpy promises that raw bits never change
        return (raw * np.uint64(below) >> np.uint64(32)).astype(np.int32)

    levels: list[Level] = []
    length, tree = np.zeros(BATCH, np.int32), np.arange(BATCH, dtype=np.int32)
    for depth in range(1, DEPTH):
        operator = uniform(len(tree), len(OPERATORS))
        count = ARGUMENTS[0] + uniform(len(tree), ARGUMENTS[1] - ARGUMENTS[0] + 1)
        kind, digit = np.divmod(uniform(int(count.sum()), 10 * ONE_IN), 10)
        nested = (kind == 0) & (depth + 1 < DEPTH)
        level = Level(tree, operator, count, nested, digit)
        owner = np.repeat(tree, count)
        length += 2 * np.bincount(tree, minlength=BATCH) + np.bincount(owner[~nested], minlength=BATCH)
        levels.append(level)
        level.nested = nested & (length[owner] <= longest)  # a tree that is too long is not kept, whole or not
        tree = owner[level.nested]
    return levels, length


def _select(level: Level, kept: NDArray[np.bool_]) -> Level:
    """One level of the kept trees, numbered anew."""
    mine = kept[level.tree]
    arguments = mine[level.owner]
    number = np.cumsum(kept) - 1
    return Level(
        number[level.tree[mine]],
        level.operator[mine],
        level.count[mine],
        level.nested[arguments],
        level.digit[arguments],
    )


def _serialize(levels: list[Level], length: Ints) -> Trees:
    """Trees from their levels: sizes and values from the deepest up, then places from the root down."""
    sizes, values = _ascend(levels)
    starts = np.concatenate([[0], np.cumsum(length)])
    tokens = np.zeros(starts[-1], np.uint8)
    place = starts[:-1]  # of the operators of a level
    for level, size, deeper in zip(levels, sizes, [*sizes[1:], sizes[-1][:0]], strict=True):
        tokens[place] = FIRST + level.operator
        tokens[place + size - 1] = END
        width = np.ones(len(level.nested), np.int32)
        width[level.nested] = deeper
        before = np.cumsum(width) - width
        inside = before + np.repeat(place + 1 - before[level.starts], level.count)  # of the arguments
        tokens[inside[~level.nested]] = ZERO + level.digit[~level.nested]
        place = inside[level.nested]
    return Trees(tokens, starts, values.astype(np.uint8))


def _ascend(levels: list[Level]) -> tuple[list[Ints], Ints]:
    """The sizes in tokens of all operators, by level, and the values of the roots."""
    sizes: list[Ints] = []
    size: Ints = np.zeros(0, np.int32)
    value: Ints = size
    for level in reversed(levels):
        width, argument = np.ones(len(level.nested), np.int32), level.digit.copy()
        width[level.nested], argument[level.nested] = size, value
        size = 2 + np.add.reduceat(width, level.starts)
        value = _apply(level, argument)
        sizes.insert(0, size)
    return sizes, value


def _apply(level: Level, argument: Ints) -> Ints:
    """The value of each operator of a level, given those of its arguments."""
    starts, count = level.starts, level.count
    ranked = np.sort(level.owner * 10 + argument) % 10  # sorted inside each operator
    middle = (ranked[starts + (count - 1) // 2] + ranked[starts + count // 2]) // 2
    least, most = ranked[starts], ranked[starts + count - 1]
    return np.choose(level.operator, [least, most, middle, np.add.reduceat(argument, starts) % 10])


def evaluate(tokens: Bytes, starts: Ints) -> Ints:
    """The value of each tree; -1 of a row that is none: brackets that do not match, an operator without arguments."""
    value = np.full(len(starts) - 1, -1, np.int64)
    whole = np.flatnonzero(_is_tree(tokens, starts))
    if len(whole):
        value[whole] = _ascend(_levels(tokens, starts, whole))[1]
    return value


def _is_tree(tokens: Bytes, starts: Ints) -> NDArray[np.bool_]:
    """Which rows are one operator and what belongs to it, with an argument in every operator."""
    opens, depth = open_depth(tokens, starts)
    first, last = starts[:-1], starts[1:] - 1
    bad = opens & np.append(tokens[1:] == END, True)  # "[MIN ]"
    bad |= (tokens < ZERO) | (tokens > END) | (depth < 0)
    closed = depth == 0  # the row's operator: only its last token may do that
    closed[last] ^= True
    closed[first] |= ~opens[first]
    return np.add.reduceat(bad | closed, first) == 0


def open_depth(tokens: Bytes, starts: Ints) -> tuple[NDArray[np.bool_], Ints]:
    """Which tokens begin an operator, and how many operators of its row are open after each token."""
    opens = (tokens >= FIRST) & (tokens < END)
    depth = np.concatenate([[0], np.cumsum(opens.astype(np.int32) - (tokens == END))])
    return opens, depth[1:] - np.repeat(depth[starts[:-1]], np.diff(starts))


def _levels(tokens: Bytes, starts: Ints, rows: Ints) -> list[Level]:
    """The operators of these rows by depth, as they are drawn."""
    tree = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    chosen = np.zeros(len(starts) - 1, np.bool_)
    chosen[rows] = True
    opens, depth = open_depth(tokens, starts)
    depth = depth - opens  # of what begins here; 0 at a root
    items = np.flatnonzero((tokens != END) & chosen[tree])
    items = items[np.argsort(depth[items], kind="stable")]  # level by level, in reading order
    cuts = np.searchsorted(depth[items], np.arange(depth[items].max() + 2))
    levels: list[Level] = []
    for k in range(len(cuts) - 2):
        here, below = items[cuts[k] : cuts[k + 1]], items[cuts[k + 1] : cuts[k + 2]]
        here = here[opens[here]]
        count = np.bincount(np.searchsorted(here, below) - 1, minlength=len(here))
        digit = np.where(opens[below], 0, tokens[below].astype(np.int64) - ZERO)
        levels.append(Level(tree[here], tokens[here].astype(np.int64) - FIRST, count, opens[below], digit))
    return levels
