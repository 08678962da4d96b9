"""Checks that an attention does not read the future, the rest of the batch, padding or packed neighbors."""

import torch

from linnet.testing.contract_trial import Trial, contract_difference


def future_leak(trial: Trial) -> float:
    """Change the tokens from t on, once to huge ones: outputs before t must not change at all."""
    worst = 0.0
    with torch.no_grad():
        for N in trial.lengths:
            q, k, v = trial.inputs(N)
            whole = trial.fn(q, k, v)
            for t in sorted({1, N // 4, N // 2, 3 * N // 4, N - 1} & set(range(1, N))):
                for size in (1.0, 60.0):
                    later = [size * torch.randn_like(x[:, :, t:]) for x in (q, k, v)]
                    changed = [torch.cat([x[:, :, :t], y], dim=2) for x, y in zip((q, k, v), later, strict=True)]
                    worst = max(worst, contract_difference(trial.fn(*changed)[:, :, :t], whole[:, :, :t]))
    return worst


def batch_leak(trial: Trial) -> float:
    """Compare every row of a batch with the same row alone."""
    worst = 0.0
    with torch.no_grad():
        for N in trial.lengths:
            q, k, v = trial.inputs(N, B=3)
            q[2], k[2], v[2] = 3 * q[2], 3 * k[2], 3 * v[2]
            together = trial.fn(q, k, v)
            for b in range(3):
                one = slice(b, b + 1)
                worst = max(worst, contract_difference(trial.fn(q[one], k[one], v[one]), together[one]))
    return worst


def padding_leak(trial: Trial) -> float:
    """Compare rows padded on the left, on the right and on both sides, in one batch, with the same rows alone.

    The content of a masked token inside a row must not change the others either.
    """
    worst, lefts = 0.0, (5, 0, 67)
    with torch.no_grad():
        for N in trial.lengths:
            q, k, v = trial.inputs(N, B=3)
            alone = trial.fn(q, k, v)
            wide = [x.new_full((3, trial.heads, N + 70, trial.head_dim), 7.0) for x in (q, k, v)]
            mask = torch.zeros(3, N + 70, dtype=torch.bool)
            for b, left in enumerate(lefts):
                mask[b, left : left + N] = True
                for x, y in zip(wide, (q, k, v), strict=True):
                    x[b, :, left : left + N] = y[b]
            padded = trial.fn(*wide, key_mask=mask)
            for b, left in enumerate(lefts):
                worst = max(worst, contract_difference(padded[b, :, left : left + N], alone[b]))
            worst = max(worst, _hole_leak(trial, N))
    return worst


def _hole_leak(trial: Trial, N: int) -> float:
    """The effect on real tokens of the content of masked tokens between them, and of the masks of other rows."""
    q, k, v = trial.inputs(N, B=3)
    real = torch.rand(3, N) > 0.3
    real[:, [0, N - 1]] = True
    hole = ~real[:, None, :, None]
    once = trial.fn(q, k, v, key_mask=real)
    again = trial.fn(q, k.masked_fill(hole, 7.0), v.masked_fill(hole, 7.0), key_mask=real)
    worst = 0.0
    for b in range(3):
        one, keep = slice(b, b + 1), real[b]
        single = trial.fn(q[one], k[one], v[one], key_mask=real[one])
        for o in (again[one], single):
            worst = max(worst, contract_difference(o[:, :, keep], once[one][:, :, keep]))
    return worst


def packing_leak(trial: Trial) -> float:
    """Compare sequences packed into a row with the same sequences alone; each row has a different order."""
    sizes = [N for N in trial.lengths if N <= 100]
    if not sizes:
        sizes = list(trial.lengths[:1])
    with torch.no_grad():
        parts = [trial.inputs(N) for N in sizes]
        apart = [trial.fn(*part) for part in parts]
        order = [range(len(sizes)), range(len(sizes))[::-1]]  # in the first row and in the second
        rows = [[torch.cat([parts[i][x][b] for i in order[b]], dim=1) for b in (0, 1)] for x in range(3)]
        alone = torch.stack([torch.cat([apart[i][b] for i in order[b]], dim=1) for b in (0, 1)])
        counts = [torch.tensor([sizes[i] for i in order[b]]) for b in (0, 1)]
        ids = torch.stack([torch.repeat_interleave(torch.arange(len(sizes)), count) for count in counts])
        q, k, v = (torch.stack(x) for x in rows)
        return contract_difference(trial.fn(q, k, v, segments=ids), alone)
