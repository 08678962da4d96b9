"""Kernels check saved tensors again: a change since the forward pass raises one line and never crashes."""

import os
import subprocess
import sys

import pytest

from linnet.ops.backend import no_cpu_backend

pytestmark = pytest.mark.skipif(bool(no_cpu_backend()), reason=f"no kernels: {no_cpu_backend()}")

PROGRAM = """
import sys
import torch
from torch.autograd.graph import saved_tensors_hooks
from linnet.errors import InputError
from linnet.ops import block_attention, exp_attention, linear_attention
from linnet.ops.block import attend_in_blocks_dropping
from linnet.ops.dropout import dropout
from linnet.ops.exp_block import exp_block_mean
from linnet.ops.features import EluFeatures
from linnet.ops.glu import glu
from linnet.ops.linear import attend_linearly
from linnet.ops.masks import layout_of_masks
from linnet.ops.positions import position_turns, rotary_position_angles, turn_by_position
from linnet.ops.rms import srms
from linnet.ops.rules import BlockRule, ExpRule, LinearRule

B, H, N, D = 2, 2, 512, 16
WIDE = (B, H, N, D)
real = torch.ones(B, N, dtype=torch.bool)
real[0, -9:] = False
ids = torch.arange(N).div(100, rounding_mode="floor").expand(B, N)
where = layout_of_masks(B, N, real, ids, torch.device("cpu"))
scales = torch.rand(2, B, H, N, 1) + 0.5
turns = position_turns(rotary_position_angles(D), torch.arange(N))
masks = {"key_mask": real, "segments": ids}
S, z = torch.rand(B, H, D, D), torch.rand(B, H, D)


def features(q, k, v):
    theta, u = rotary_position_angles(D).requires_grad_(), torch.nn.functional.normalize(torch.ones(D), dim=0)
    rule = LinearRule(True, features=EluFeatures("elu", theta, u, where.position))
    return attend_linearly(q, k, v, where, rule)[0]


OPS = {
    "linear": lambda q, k, v: linear_attention(q, k, v, normalize=True, **masks),
    "linear_state": lambda q, k, v: linear_attention(q, k, v, normalize=True, state=(S, z)),
    "linear_bidirectional": lambda q, k, v: linear_attention(q, k, v, causal=False),
    "features": features,
    "exponential": lambda q, k, v: exp_attention(q, k, v, **masks),
    "exponential_state": lambda q, k, v: exp_attention(q, k, v, state=(S, z, z)),
    "exponential_bidirectional": lambda q, k, v: exp_attention(q, k, v, causal=False),
    "exp_block": lambda q, k, v: exp_block_mean(q, k, v, where, 64, ExpRule(True, *scales)),
    "block": lambda q, k, v: block_attention(q, k, v, **masks),
    "block_dropout": lambda *qkv: attend_in_blocks_dropping(*qkv, where, 64, BlockRule("softmax", True, 0.25, 0.1)),
    "srms": lambda q, k, v: srms(q, (1, 3)),
    "glu": lambda q, k, v: glu(q, "silu"),
    "dropout": lambda q, k, v: dropout(q, 0.1),
    "rotate": lambda q, k, v: turn_by_position(q, turns),
}


def shorter(x):
    return x.narrow(x.dim() - 1 - (x.dim() > 2), 0, 1).clone() if x.dim() else x.expand(2).clone()


def halved(x):
    return x.half() if x.is_floating_point() else x.to(torch.int8)


def emptied(x):
    x = x.clone()
    x.untyped_storage().resize_(0)
    return x


def through_a_hook(op, attack):
    # Each saved tensor in turn: how many there are, the first run tells.
    count, chosen = 1, 0
    while chosen < count:
        leaves = [torch.randn(WIDE, requires_grad=True) for _ in range(3)]
        packed = []
        unpack = lambda i: attack(packed[i]) if i == chosen else packed[i]
        with saved_tensors_hooks(lambda x: packed.append(x) or len(packed) - 1, unpack):
            y = op(*leaves)
        count = len(packed)
        converted = attack is halved and packed[chosen].dim() == 1  # theta and u may have any type
        if packed[chosen].numel() and not converted:
            refused(lambda: y.sum().backward(), chosen)
        chosen += 1
    return count


def through_data(op, attack):
    # The leaves that the op saves themselves; of a view, the graph has its own shape and type.
    for i in range(3):
        leaves = [torch.randn(WIDE, requires_grad=True) for _ in range(3)]
        packed = []
        with saved_tensors_hooks(lambda x: packed.append((x.data_ptr(), x.shape)) or x, lambda x: x):
            op(*leaves)
        y = op(*leaves)
        if (leaves[i].data_ptr(), leaves[i].shape) in packed:
            if attack is emptied:
                leaves[i].untyped_storage().resize_(0)
            else:
                leaves[i].data = attack(leaves[i].data)
            refused(lambda: y.sum().backward(), i)


def refused(backward, which):
    try:
        backward()
    except InputError as error:
        if "\\n" in str(error):
            sys.exit(f"{name}, tensor {which}: more than one line: {error}")
        print(name, which, error, flush=True)
    else:
        sys.exit(f"{name}, tensor {which}: a tensor that changed was read")


attack = {"shorter": shorter, "halved": halved, "emptied": emptied}[sys.argv[1]]
for name, op in OPS.items():
    saved = through_a_hook(op, attack)
    through_data(op, attack)
    print("done", name, saved, flush=True)
"""


@pytest.mark.parametrize("attack", ["shorter", "halved", "emptied"])
def test_a_saved_tensor_that_changed_is_refused(attack: str) -> None:
    """In a process of its own: what this guards against would take the test runner with it."""
    command = [sys.executable, "-c", PROGRAM, attack]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=300)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    assert done.stdout.count("done ") == 14
