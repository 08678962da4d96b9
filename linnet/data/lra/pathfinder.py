"""Pathfinder32 by its public rules: are two dots on one dashed path, among others that are there to mislead?

Two target paths of 14 paddles grow side by side from the middle of a picture of 32 by 32 pixels, then up to five
distractors of 4. A new paddle turns from the last by an angle with weight cos^2, and keeps its distance from all that
is there. One dot marks the beginning of a target, the other the end of the same target (label 1) or of the other (0).
Pictures are grown many at once, and one whose targets find no way is dropped; the pictures of a shard depend on the
seed, its number and its size alone.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SIZE = 32  # pixels a side
LENGTH, THICKNESS, MARGIN = 2.0, 0.5, 1.0  # of a paddle; between two of a path there are two margins
PADDLES, DISTRACTOR_PADDLES, DISTRACTORS = 14, 4, 5
SEED_DISTANCE = 7  # between the beginnings of the targets
RADIUS = 1.5  # of a dot
CONTINUITY = 1.0
EDGE = 2.0  # what a paddle keeps from the border: the padding of one pixel and a margin
CLEARANCE = 2 * MARGIN  # from paddles other than the last of its own path
TURNS = 18  # directions that a paddle can take, over half a circle
TRIALS, RETRIALS = 3, 5  # to place a paddle, to place a distractor
SEEDS = 16  # places that are tried for the beginning of a distractor
TARGET_CONTRAST, DISTRACTOR_CONTRAST = 1.5, 2.0
BATCH = 8192  # pictures begun at once, of which one in 70 is grown to the end

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Pictures(NamedTuple):
    """Pictures, whether the dots are on one path, and what was drawn: paddles as (y, x) of both ends, and the dots."""

    pixels: NDArray[np.uint8]  # (n, SIZE * SIZE)
    labels: NDArray[np.int64]  # (n,)
    paddles: Floats  # (n, P, 2, 2), NaN where there is none; the targets first
    dots: Floats  # (n, 2, 2)


class _Tip(NamedTuple):
    """Where paths have got to: the middle of the gap before the last paddle, and its direction."""

    pivot: Floats  # (n, 2)
    angle: Floats  # (n,)

    def ends(self) -> Floats:
        """Both ends of the last paddle, (n, 2, 2)."""
        away = np.array([MARGIN, MARGIN + LENGTH])[:, None]
        return self.pivot[:, None] + away * _direction(self.angle)[:, None]

    def select(self, kept: Any) -> "_Tip":
        """Some of them."""
        return _Tip(self.pivot[kept], self.angle[kept])


def draw_pictures(seed: int, number: int, count: int) -> Pictures:
    """The pictures of shard `number`; half of them have the label 1."""
    rng = _Uniform(seed, number)
    grown: list[tuple[Mask, Floats]] = []
    while sum(len(mask) for mask, _ in grown) < count:
        grown.append(_targets(rng))
    mask, targets = (np.concatenate(parts)[:count] for parts in zip(*grown, strict=True))
    others = [_distractor(rng, mask) for _ in range(DISTRACTORS)]
    paddles = np.concatenate([targets[:, 0], targets[:, 1], *others], axis=1)
    labels = np.argsort(np.argsort(rng(count), kind="stable"), kind="stable") % 2
    begins = (rng(count) < 0.5).astype(np.int64)  # at which target
    ends = np.where(labels == 1, begins, 1 - begins)
    row = np.arange(count)
    dots = np.stack([paddles[row, begins * PADDLES, 0], paddles[row, ends * PADDLES + PADDLES - 1, 1]], axis=1)
    return Pictures(_render(paddles, dots), labels, paddles, dots)


class _Uniform:
    """Numbers in [0, 1) from raw bits, since numpy promises those to stay the same for ever."""

    def __init__(self, seed: int, number: int) -> None:
        self.bits = np.random.Philox(key=np.array([seed % 2**64, number], np.uint64))

    def __call__(self, *shape: int) -> Floats:
        raw = self.bits.random_raw(int(np.prod(shape))).reshape(shape)
        return np.asarray((raw >> np.uint64(11)) * 2.0**-53, np.float64)


def _direction(angle: Floats) -> Floats:
    """(..., 2): unit vectors as (y, x)."""
    return np.stack([np.sin(angle), np.cos(angle)], axis=-1)


def _targets(rng: _Uniform) -> tuple[Mask, Floats]:
    """Where no further paddle may lie, (n, SIZE, SIZE), and the paddles of both targets, (n, 2, PADDLES, 2, 2)."""
    low, high = 2 * SEED_DISTANCE, SIZE - 2 * SEED_DISTANCE
    tail = low + np.floor(rng(BATCH, 2) * (high - low + 1))
    beside = np.round(tail + SEED_DISTANCE * _direction(2 * np.pi * rng(BATCH)))
    tips = [_begin(place, 2 * np.pi * rng(BATCH)) for place in (tail, beside)]
    paddles = np.full((BATCH, 2, PADDLES, 2, 2), np.nan)
    paddles[:, :, 0] = np.stack([tip.ends() for tip in tips], axis=1)
    mask = np.zeros((BATCH, SIZE, SIZE), np.bool_)
    good = ((paddles[:, 0, 0] >= low) & (paddles[:, 0, 0] <= high)).all(axis=(1, 2))
    mask, paddles, tips = mask[good], paddles[good], [tip.select(good) for tip in tips]
    for step in range(1, PADDLES):
        for mine in (0, 1):
            tips[mine], good = _extend(rng, tips[mine], mask, paddles[:, 1 - mine, step - 1 + mine])
            mask, paddles, tips = mask[good], paddles[good], [tip.select(good) for tip in tips]
            _block(mask, paddles[:, mine, step - 1])
            paddles[:, mine, step] = tips[mine].ends()
    for mine in (0, 1):
        _block(mask, paddles[:, mine, -1])
    return mask, paddles


def _begin(tail: Floats, angle: Floats) -> _Tip:
    """Paths of one paddle."""
    return _Tip(tail - MARGIN * _direction(angle), angle)


def _extend(rng: _Uniform, tip: _Tip, mask: Mask, beside: Floats | None = None) -> tuple[_Tip, Mask]:
    """One more paddle on each path, and which of them found a place; `beside` are further paddles to keep away from."""
    pivot = tip.pivot + (LENGTH + 2 * MARGIN) * _direction(tip.angle)
    turn = np.pi * ((np.arange(TURNS) + 0.5) / TURNS - 0.5)
    angles = tip.angle[:, None] + turn  # (n, TURNS)
    heads = pivot[:, None] + (LENGTH + MARGIN) * _direction(angles)
    weight = np.cos(np.minimum(np.abs(turn) * CONTINUITY, np.pi / 2)) ** 2 * _free(mask, heads)
    mass = np.cumsum(weight, axis=1)
    good, angle = np.zeros(len(pivot), np.bool_), tip.angle.copy()
    for _ in range(TRIALS):
        chosen = (mass > rng(len(pivot), 1) * mass[:, -1:]).argmax(axis=1)
        drawn = _Tip(pivot, np.take_along_axis(angles, chosen[:, None], axis=1)[:, 0])
        fits = (mass[:, -1] > 0) & _fits(mask, drawn.ends(), beside)
        angle = np.where(good, angle, drawn.angle)
        good |= fits
    return _Tip(pivot, angle), good


def _fits(mask: Mask, paddles: Floats, beside: Floats | None) -> Mask:
    """Whether paddles (n, 2, 2) lie where they may."""
    along = np.linspace(0, 1, 5)[:, None]
    points = (1 - along) * paddles[:, :1] + along * paddles[:, 1:]  # (n, 5, 2)
    free = _free(mask, points).all(axis=1)
    if beside is not None:
        free &= _distance(points, beside).min(axis=1) >= CLEARANCE
    return np.asarray(free)


def _free(mask: Mask, points: Floats) -> Mask:
    """Whether points (n, m, 2) are inside the picture and not where the mask is."""
    inside = ((points >= EDGE) & (points <= SIZE - 1 - EDGE)).all(axis=-1)
    y, x = np.moveaxis(np.clip(np.rint(points), 0, SIZE - 1).astype(np.int64), -1, 0)
    return inside & ~mask[np.arange(len(mask))[:, None], y, x]


def _distance(points: Floats, paddles: Floats) -> Floats:
    """From each of the points (n, m, 2) to its paddle (n, 2, 2): (n, m)."""
    dy, dx = (paddles[:, 1] - paddles[:, 0]).T[:, :, None]
    y, x = points[..., 0] - paddles[:, :1, 0], points[..., 1] - paddles[:, :1, 1]
    share = np.clip((y * dy + x * dx) / LENGTH**2, 0, 1)
    return np.hypot(y - share * dy, x - share * dx)


def _patch(paddles: Floats, reach: int) -> tuple[NDArray[np.int64], Floats]:
    """The pixels around the middle of paddles: numbers (n, m) of those inside, else -1, and points (n, m, 2)."""
    offsets = np.stack(np.meshgrid(*2 * [np.arange(-reach, reach + 1)], indexing="ij"), axis=-1).reshape(-1, 2)
    points = np.rint(paddles.mean(axis=1))[:, None] + offsets
    inside = ((points >= 0) & (points < SIZE)).all(axis=-1)
    flat = (np.arange(len(paddles))[:, None] * SIZE + points[..., 0]) * SIZE + points[..., 1]
    return np.where(inside, flat, -1).astype(np.int64), points


def _block(mask: Mask, paddles: Floats) -> None:
    """Keep what comes later away from paddles (n, 2, 2)."""
    flat, points = _patch(paddles, int(np.ceil(LENGTH / 2 + CLEARANCE)))
    near = (_distance(points, paddles) < CLEARANCE) & (flat >= 0)
    mask.reshape(-1)[flat[near]] = True


def _distractor(rng: _Uniform, mask: Mask) -> Floats:
    """One more path in each picture where there is room, (n, DISTRACTOR_PADDLES, 2, 2), NaN where there is none."""
    found = np.full((len(mask), DISTRACTOR_PADDLES, 2, 2), np.nan)
    todo = np.arange(len(mask))
    for _ in range(RETRIALS):
        own = mask[todo]
        tip, good = _seed(rng, own)
        path = [tip.ends()]
        for _ in range(DISTRACTOR_PADDLES - 1):
            tip, fits = _extend(rng, tip, own)
            _block(own, path[-1])
            path.append(tip.ends())
            good &= fits
        _block(own, path[-1])
        found[todo[good]], mask[todo[good]] = np.stack(path, axis=1)[good], own[good]
        todo = todo[~good]
    return found


def _seed(rng: _Uniform, mask: Mask) -> tuple[_Tip, Mask]:
    """The first paddle of a distractor: the first of some places that is free."""
    tip = _begin(np.zeros((len(mask), 2)), np.zeros(len(mask)))
    good = np.zeros(len(mask), np.bool_)
    for _ in range(SEEDS):
        drawn = _begin(EDGE + rng(len(mask), 2) * (SIZE - 1 - 2 * EDGE), 2 * np.pi * rng(len(mask)))
        tip = _Tip(np.where(good[:, None], tip.pivot, drawn.pivot), np.where(good, tip.angle, drawn.angle))
        good |= _fits(mask, drawn.ends(), None)
    return tip, good


def _render(paddles: Floats, dots: Floats) -> NDArray[np.uint8]:
    """Pictures (n, SIZE * SIZE): the brightest of what covers a pixel."""
    canvas = np.zeros(len(paddles) * SIZE * SIZE + 1)  # the last is for what is outside
    for i in range(paddles.shape[1]):
        rows = np.flatnonzero(~np.isnan(paddles[:, i, 0, 0]))
        flat, points = _patch(paddles[rows, i], 3)
        cover = np.clip(THICKNESS / 2 + 0.5 - _distance(points, paddles[rows, i]), 0, THICKNESS)
        flat = np.where(flat < 0, len(canvas) - 1, flat + (rows - np.arange(len(rows)))[:, None] * SIZE**2)
        contrast = TARGET_CONTRAST if i < 2 * PADDLES else DISTRACTOR_CONTRAST
        canvas[flat] = np.maximum(canvas[flat], contrast * cover)
    for i in (0, 1):
        flat, points = _patch(dots[:, [i, i]], 3)
        far = np.hypot(*np.moveaxis(points - dots[:, i, None], -1, 0))
        flat = np.where(flat < 0, len(canvas) - 1, flat)
        canvas[flat] = np.maximum(canvas[flat], np.clip(RADIUS + 0.5 - far, 0, 1))
    return np.rint(255 * np.minimum(canvas[:-1], 1)).astype(np.uint8).reshape(-1, SIZE * SIZE)
