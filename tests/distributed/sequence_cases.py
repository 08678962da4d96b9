"""What each rank does in the tests of one sequence over many ranks: it compares the cut form with the whole one.

`Workers` keeps four processes, which import torch once between them and meet by gloo.
"""

import multiprocessing
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy

import linnet
from linnet.distributed import (
    gather_sequence,
    reduce_sequence_gradients,
    scatter_sequence,
    sequence_parallel,
    sequence_parallel_model,
    sum_over_sequence,
)
from linnet.ops.masks import layout_of_masks
from linnet.testing import check_attention

WORLD = 4


def serve(rank, path, pipe):
    """One rank: answers calls (name, size, arguments) until None comes."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=WORLD, timeout=limit)
    groups = {2: dist.new_group([0, 1]), WORLD: dist.group.WORLD}
    while (call := pipe.recv()) is not None:
        case, size, arguments = call
        try:
            pipe.send((True, case(groups[size], *arguments) if rank < size else None))
        except Exception:  # noqa: BLE001  the test that called prints it
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()


class Workers:
    """Four ranks; `run` returns what a case returned on each of the first `size`."""

    def __init__(self, folder):
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["linnet.attention", "linnet.models.backbone", "linnet.distributed", __name__])
        self.pipes, self.processes = [], []
        for rank in range(WORLD):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(rank, folder / "meeting", there), daemon=True)
            process.start()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, case, size, *arguments):
        for pipe in self.pipes:
            pipe.send((case, size, arguments))
        replies = []
        for pipe in self.pipes:
            if not pipe.poll(150):
                raise TimeoutError("a rank does not answer")
            replies.append(pipe.recv())
        for passed, reply in replies:
            assert passed, reply
        return [reply for _, reply in replies[:size]]

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(20)
            process.kill()


def cuts(N, size, equal=True):
    """The slices of N tokens."""
    if equal:
        return [N // size] * size
    sizes = [1 + (3 * i) % 5 for i in range(size - 1)]
    return [*sizes, N - sum(sizes)]


def masks(kind, B, N):
    """key_mask and segments of one kind."""
    generator = torch.Generator().manual_seed(5)
    index = torch.arange(N)
    mask = segments = None
    if kind in ("padding", "both"):  # left, right, holes, and a row without a real token
        left = torch.tensor([N // 3, 0, 0, N])[:B, None]
        right = torch.tensor([N, N - N // 3, N, N])[:B, None]
        mask = (index >= left) & (index < right) & ((torch.rand(B, N, generator=generator) > 0.3) | (index % 5 == 0))
    if kind in ("segments", "both"):
        segments = (torch.rand(B, N, generator=generator) < 0.08).cumsum(dim=1)
        segments[0] = 7  # one segment over all ranks
    return mask, segments


def owed(B, N, mask, segments):
    """The tokens (B,N) whose output is specified: all but padding at the ends of rows and segments."""
    where = layout_of_masks(B, N, mask, segments, torch.device("cpu"))
    real, run = where.reals(B), torch.zeros(B, N, dtype=torch.int64) if where.run is None else where.run
    same = run[:, :, None] == run[:, None, :]
    past = (same & real[:, None, :]).tril().any(dim=2)
    return past & (same & real[:, None, :]).triu().any(dim=2)


def difference(x, y):
    """The largest deviation, relative to the largest entry of y."""
    return float((x - y).abs().max() / y.abs().max().clamp(min=1e-30))


def compare_mixer(group, name, options, causal, kind, dtype, N, equal):
    """How far the cut mixer is from the whole one: output, gradients of x, gradients of parameters."""
    torch.manual_seed(0)
    B, size, rank = 4, dist.get_world_size(group), dist.get_rank(group)
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=causal, **options).to(dtype)
    x, weight = torch.randn(B, N, 16, dtype=dtype, requires_grad=True), torch.randn(B, N, 16, dtype=dtype)
    mask, segments = masks(kind, B, N)
    weight = weight * owed(B, N, mask, segments)[..., None]
    y = mixer(x, key_mask=mask, segments=segments)
    expected = torch.autograd.grad((y * weight).sum(), [x, *mixer.parameters()])
    here = slice(sum(cuts(N, size, equal)[:rank]), sum(cuts(N, size, equal)[: rank + 1]))
    mine = x.detach()[:, here].requires_grad_()
    local = sequence_parallel(mixer, group)(
        mine,
        key_mask=None if mask is None else mask[:, here],
        segments=None if segments is None else segments[:, here],
    )
    gradients = torch.autograd.grad((local * weight[:, here]).sum(), [mine, *mixer.parameters()])
    for gradient in gradients[1:]:
        dist.all_reduce(gradient, group=group)
    kept = (weight != 0)[:, here]
    y, local = y.detach(), local.detach()
    out = float(((local - y[:, here]) * kept).abs().max() / (y * (weight != 0)).abs().max())
    into = float((gradients[0] - expected[0][:, here]).abs().max() / expected[0].abs().max())
    return [out, into, *(difference(a, b) for a, b in zip(gradients[1:], expected[1:], strict=True))]


def check_contract(group, name, options, causal, lengths):
    """`check_attention` on every rank, of a function that cuts the sequence: the failures, or nothing."""
    torch.manual_seed(0)
    size = dist.get_world_size(group)
    mixer = linnet.create_mixer(name, width=16, heads=2, causal=causal, **options)
    core = sequence_parallel(mixer, group).core

    def attend(q, k, v, key_mask=None, segments=None):
        B, N, extra = len(q), q.shape[2], -q.shape[2] % size
        if extra:  # masked tokens that fill the last slice
            q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, extra)) for x in (q, k, v))
            mask = torch.ones(B, N, dtype=torch.bool) if key_mask is None else key_mask.bool()
            key_mask = torch.nn.functional.pad(mask, (0, extra))
            if segments is not None:
                segments = torch.cat([segments, segments[:, -1:].expand(-1, extra)], dim=1)
        q, k, v = (scatter_sequence(x, group, 2) for x in (q, k, v))
        rest = [None if x is None else scatter_sequence(x, group) for x in (key_mask, segments)]
        return gather_sequence(core.to(q.dtype)(q, k, v, *rest), group, 2)[:, :, :N]

    attend.causal = causal
    report = check_attention(attend, heads=2, head_dim=8, lengths=lengths, raises=False)
    return [str(check) for check in report.checks if not check.passed], [check.name for check in report.checks]


def tiny_model(causal=True, **overrides):
    """A model of every kind of layer that can be cut, and of hybrids of them."""
    torch.manual_seed(0)
    fields = {"layers": ["diag", "norm", "lln_diag", "diag+elu", "norm|lln", "diag>performer"], "width": 16, "heads": 2}
    fields |= {"ffn_width": 24, "vocab_size": 50, "options": {"diag": {"block": 6}, "performer": {"features": 12}}}
    preset = "transnormer_t2_lm_small" if causal else "transnormer_t2_roberta_small"
    return linnet.create_model(preset, **{**fields, **overrides}).double().eval()


def total_loss(model, ids, targets, mask, segments):
    """The summed cross entropy and the number of its terms."""
    logits = model(ids, key_mask=mask, segments=segments)
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    return cross_entropy(logits[real], targets[real], reduction="sum"), real.sum()


def compare_model(group, causal, kind, overrides, spread):
    """How far a cut model is from the whole one: loss and gradients; `spread`: over two ranks by FSDP, too."""
    model, whole = tiny_model(causal, **overrides), tiny_model(causal, **overrides)
    B, N, size = 4, 32, dist.get_world_size(group)
    ids, targets = torch.randint(50, (B, N)), torch.randint(50, (B, N))
    mask, segments = masks(kind, B, N)
    loss, count = total_loss(whole, ids, targets, mask, segments)
    (loss / count).backward()
    rows = slice(None)
    if spread:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("sequence", "data"))
        group, rows = mesh["sequence"].get_group(), mesh.get_local_rank("data")
        rows = slice(2 * rows, 2 * rows + 2)
        sequence_parallel_model(model, group)
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        sequence_parallel_model(model, group)
    here = [None if x is None else scatter_sequence(x[rows], group) for x in (ids, targets, mask, segments)]
    mine, terms = total_loss(model, *here)
    scale = size / count if spread else 1 / count  # FSDP averages over all ranks of its mesh
    (mine * scale).backward()
    if not spread:
        reduce_sequence_gradients(model, group)
    total = sum_over_sequence(mine, group) if not spread else None
    found = [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in model.parameters()]
    worst = max(difference(a, p.grad) for a, p in zip(found, whole.parameters(), strict=True))
    return worst, 0.0 if total is None else float((total - loss).detach().abs() / loss.detach())


def measure_traffic(group, name, options, causal, N, kind="plain"):
    """Bytes received and collectives of a forward and a backward pass, in float32, of a batch of two rows."""
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    cut = sequence_parallel(linnet.create_mixer(name, width=16, heads=2, causal=causal, **options), group)
    mask, segments = (None if x is None else x.chunk(size, 1)[rank] for x in masks(kind, 2, N))
    cut(torch.randn(2, N // size, 16, requires_grad=True), key_mask=mask, segments=segments).sum().backward()
    traffic = cut.core.ranks.traffic
    return traffic.forward, traffic.backward, traffic.masks, traffic.calls


def misuse(group, what):
    """The error of every rank for slices that do not fit together."""
    rank = dist.get_rank(group)
    cut = sequence_parallel(linnet.create_mixer("cosformer", width=16, heads=2, causal=True, max_length=16), group)
    x, rest = torch.randn(2, 8, 16), {}
    if what == "rows":
        x = x[: 1 + rank % 2]
    elif what == "segments":
        rest = {"segments": torch.zeros(2, 8, dtype=torch.int64)} if rank == 0 else {}
    elif what == "padded length":
        rest = {"key_mask": torch.ones(2, 8, dtype=torch.bool)}
    try:
        scatter_sequence(torch.zeros(1, 7), group) if what == "divide" else cut(x, **rest)
    except (ValueError, RuntimeError) as error:
        return str(error)
    return "no error"
