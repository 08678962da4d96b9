"""ListOps: trees follow the public rules, do not depend on the number of workers, and have correct values."""

import statistics

import numpy as np
import pytest

from linnet.data.lra import listops
from linnet.data.lra.listops import (
    END,
    FIRST,
    SYMBOLS,
    TOKENS,
    ZERO,
    draw_listops_trees,
    evaluate_listops,
    generate_listops,
)

RULES = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def value(symbols: list[str]) -> int:
    """The definition: the value of a tree, read from left to right."""
    stack: list[list[object]] = [[]]
    for symbol in symbols:
        if symbol in RULES:
            stack.append([symbol])
        elif symbol == "]":
            operator, *values = stack.pop()
            stack[-1].append(RULES[str(operator)](values))
        else:
            stack[-1].append(int(symbol))
    ((found,),) = stack
    return int(str(found))


def rows(trees: listops.Trees) -> list[list[str]]:
    return [
        [SYMBOLS[token - 1] for token in trees.tokens[a:b]]
        for a, b in zip(trees.starts[:-1], trees.starts[1:], strict=True)
    ]


def tokens_of(*trees: str) -> tuple[np.ndarray, np.ndarray]:
    parts = [[TOKENS[symbol] for symbol in tree.split()] for tree in trees]
    starts = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
    return np.concatenate([np.array(part, np.uint8) for part in parts]), starts


@pytest.fixture(scope="module")
def trees() -> listops.Trees:
    return draw_listops_trees(3, 0)


def test_values_are_those_of_the_definition(trees):
    assert [value(row) for row in rows(trees)[:200]] == trees.values[:200].tolist()


def test_the_evaluator_finds_the_same_values_from_the_tokens_alone(trees):
    assert np.array_equal(evaluate_listops(trees.tokens, trees.starts), trees.values)


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ("[MIN 4 2 9 ]", 2),
        ("[MAX 4 2 9 ]", 9),
        ("[MED 4 2 9 ]", 4),
        ("[MED 1 2 9 8 ]", 5),
        ("[MED 1 2 3 8 ]", 2),
        ("[SM 9 9 4 ]", 2),
        ("[MIN [MAX 3 7 ] 8 [SM 9 [MED 5 6 ] ] ]", 4),
        ("[MIN 4", -1),
        ("4 ]", -1),
        ("4", -1),
        ("[MIN ]", -1),
        ("[MIN [MAX ] 3 ]", -1),
        ("[MIN 4 2 ] 3", -1),
        ("[MIN 4 2 ] [MIN 4 2 ]", -1),
        ("[MIN 4 2 ] ] [MIN", -1),
        ("] [MIN", -1),
    ],
)
def test_small_trees(tree, expected):
    good = "[SM 1 [MAX 2 3 ] ]"
    assert evaluate_listops(*tokens_of(good, tree, good)).tolist() == [4, expected, 4]


def test_trees_follow_the_public_rules(trees):
    length = np.diff(trees.starts)
    assert length.min() > 500
    assert length.max() < 2000
    counts, depths = [], []
    for row in rows(trees)[:200]:
        open_operators: list[int] = []
        deepest = 1
        for symbol in row:
            if symbol == "]":
                counts.append(open_operators.pop())
            elif open_operators:
                open_operators[-1] += 1
            if symbol in RULES:
                open_operators.append(0)
            deepest = max(deepest, len(open_operators) + (symbol not in RULES and symbol != "]"))
        depths.append(deepest)
    assert set(counts) == set(range(2, 11))
    assert max(depths) == 10


def test_shares_are_those_of_the_rules():
    """8 % of all draws have an accepted length; before rejection, a quarter of the arguments are operators."""
    levels, length = listops._draw(1, 0, 10**9)
    assert 0.25 * np.mean((length > 500) & (length < 2000)) == pytest.approx(0.083, abs=0.01)
    first = levels[0]
    assert first.nested.mean() == pytest.approx(0.25, abs=0.01)
    assert np.bincount(first.count)[2:].std() / len(first.count) < 0.01
    digits = np.bincount(np.concatenate([level.digit[~level.nested] for level in levels]))
    assert digits / digits.sum() == pytest.approx(np.full(10, 0.1), abs=0.002)
    operators = np.bincount(np.concatenate([level.operator for level in levels]))
    assert operators / operators.sum() == pytest.approx(np.full(4, 0.25), abs=0.005)
    assert len(levels) == 9
    assert not levels[-1].nested.any()


def test_trees_are_distinct_and_independent_of_the_number_of_workers(monkeypatch):
    monkeypatch.setattr(listops, "BATCH", 128)
    told = []
    one, many = (
        list(generate_listops(7, 150, workers, lambda done, total: told.append((done, total)))) for workers in (1, 5)
    )
    assert len(one) > 2
    for a, b in zip(one, many, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    found = [tuple(row) for trees in one for row in rows(trees)]
    assert len(found) == len(set(found)) == 150
    assert told[-1] == (150, 150)
    other = next(generate_listops(8, 10))
    assert not np.array_equal(other.tokens[:400], one[0].tokens[:400])


def test_a_tree_that_came_before_does_not_come_again(trees):
    some, seen = trees.select(np.arange(5)), set()
    assert len(listops._new(some, seen, 100).values) == 5
    again = trees.select(np.array([6, 2, 6, 8]))
    assert np.array_equal(listops._new(again, seen, 100).tokens, trees.select(np.array([6, 8])).tokens)


def test_symbols_are_fifteen_and_zero_is_free():
    assert (ZERO, FIRST, END, len(SYMBOLS)) == (1, 11, 15, 15)
