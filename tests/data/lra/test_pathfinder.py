"""Pathfinder: images follow the public rules, and their labels match the drawn paths."""

import numpy as np
import pytest

from linnet.data.lra import pathfinder
from linnet.data.lra.pathfinder import DISTRACTOR_PADDLES, LENGTH, MARGIN, PADDLES, SIZE, draw_pathfinder


@pytest.fixture(scope="module")
def pictures() -> pathfinder.Pictures:
    return draw_pathfinder(3, 0, 60)


def follow(paddles: np.ndarray, start: np.ndarray) -> np.ndarray:
    """The other end of the dashed path that begins at `start`, found by following it like a finger.

    Each paddle, extended by a margin at both ends, meets the next one of its path.
    """
    paddles = paddles[~np.isnan(paddles[:, 0, 0])]
    way = (paddles[:, 1] - paddles[:, 0]) / LENGTH
    longer = np.stack([paddles[:, 0] - MARGIN * way, paddles[:, 1] + MARGIN * way], axis=1)
    left = set(range(len(paddles)))
    (at, side), *others = np.argwhere(np.abs(paddles - start).max(axis=2) < 1e-9)
    assert not others
    while True:
        left.remove(at)
        end = longer[at, 1 - side]
        reached = [(i, s) for i in sorted(left) for s in (0, 1) if np.abs(longer[i, s] - end).max() < 1e-6]
        if not reached:
            return paddles[at, 1 - side]
        ((at, side),) = reached


def test_labels_are_what_following_the_path_finds(pictures):
    for label, paddles, (one, other) in zip(pictures.labels, pictures.paddles, pictures.dots, strict=True):
        assert (np.abs(follow(paddles, one) - other).max() < 1e-6) == bool(label)


def test_both_labels_are_as_many(pictures):
    assert pictures.labels.sum() == 30
    assert draw_pathfinder(0, 1, 7).labels.sum() == 3


def test_the_dots_are_in_the_picture(pictures):
    for pixels, dots in zip(pictures.pixels, pictures.dots, strict=True):
        for y, x in np.rint(dots).astype(int):
            picture = pixels.reshape(SIZE, SIZE)
            assert picture[y, x] == 255
            assert min(picture[y - 1, x], picture[y + 1, x], picture[y, x - 1], picture[y, x + 1]) > 100


def test_paddles_are_where_the_picture_is_bright_and_nowhere_else(pictures):
    grid = np.stack(np.meshgrid(*2 * [np.arange(SIZE)], indexing="ij"), axis=-1).reshape(1, -1, 2).astype(float)
    for pixels, paddles, dots in zip(pictures.pixels[:10], pictures.paddles, pictures.dots, strict=False):
        paddles = paddles[~np.isnan(paddles[:, 0, 0])]
        points = np.broadcast_to(grid, (len(paddles), *grid.shape[1:]))
        far = pathfinder._distance(points, paddles).min(axis=0)
        dot = np.hypot(*(grid[0][:, None] - dots).transpose(2, 0, 1)).min(axis=1)
        assert pixels[far < 0.25].min() >= 191
        assert pixels[(far > 0.75) & (dot > 2)].max() == 0


def test_paddles_keep_the_rules(pictures):
    paddles = pictures.paddles
    targets = paddles[:, : 2 * PADDLES]
    assert paddles.shape[1:] == (2 * PADDLES + 5 * DISTRACTOR_PADDLES, 2, 2)
    assert not np.isnan(targets).any()
    real = paddles[~np.isnan(paddles[..., 0, 0])]
    assert np.hypot(*(real[:, 1] - real[:, 0]).T) == pytest.approx(np.full(len(real), LENGTH))
    assert real.min() >= 2
    assert real.max() <= SIZE - 3
    begins = targets[:, [0, PADDLES], 0]
    assert np.hypot(*(begins[:, 1] - begins[:, 0]).T) == pytest.approx(np.full(60, 7.0), abs=0.75)
    assert ((begins[:, 0] >= 14) & (begins[:, 0] <= 18)).all()


def test_other_paths_keep_away(pictures):
    """The clearance of two is measured in pixels, so half a pixel diagonal is lost on either side."""
    path = np.repeat(np.arange(7), [PADDLES] * 2 + [DISTRACTOR_PADDLES] * 5)
    for paddles in pictures.paddles:
        for own, paddle in zip(path, paddles, strict=True):
            others = paddles[(path != own) & ~np.isnan(paddles[:, 0, 0])]
            if not np.isnan(paddle).any():
                ends = np.broadcast_to(paddle, (len(others), 2, 2))
                assert pathfinder._distance(ends, others).min() > 2 - 0.5**0.5


def test_a_shard_is_a_function_of_its_seed_and_number():
    first, again = draw_pathfinder(5, 2, 20), draw_pathfinder(5, 2, 20)
    assert np.array_equal(first.pixels, again.pixels)
    assert np.array_equal(first.labels, again.labels)
    for seed, number in ((6, 2), (5, 3)):
        assert not np.array_equal(first.pixels, draw_pathfinder(seed, number, 20).pixels)
