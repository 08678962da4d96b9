"""Mechanisms that claim less than quadratic memory never hold an N x N matrix: training at 16,384 tokens."""

import json
import subprocess
import sys

from tests.attention.cases import ABOUT, FORMS

N = 16_384
SMALL = 2**25  # bytes that do not matter
CHEAPER = [(*form, ABOUT[form[0]]["any_length"]) for form in FORMS if "N^2" not in ABOUT[form[0]]["cost"]]
PROGRAM = """
import json, os, resource, sys
import torch, linnet

torch.set_num_threads(1)

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def train(name, causal, any_length, N):
    options = {} if any_length else {"max_length": N}
    core = linnet.create_mixer(name, width=16, heads=1, causal=causal, **options).core
    for masked in (False, True):
        q, k, v = (torch.randn(1, 1, N, core.head_dim, requires_grad=True) for _ in range(3))
        real = torch.arange(N)[None] < 0.9 * N
        core(q, k, v, key_mask=real if masked else None).sum().backward()

for form in json.loads(sys.argv[1]):
    for N in map(int, sys.argv[2:]):
        if os.fork() == 0:  # a process of its own, since a peak never falls
            train(*form, 256)
            before = peak()
            train(*form, N)
            print(json.dumps([form[0], N, peak() - before]), flush=True)
            os._exit(0)
        assert os.wait()[1] == 0
"""


def test_no_matrix_of_all_pairs() -> None:
    """Half the tokens take about half the memory, not a quarter as a matrix would, and the total is small."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(CHEAPER), str(N // 2), str(N)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [name for name, _, _ in found] == [form[0] for form in CHEAPER for _ in range(2)]
    for (name, _, half), (_, _, whole) in zip(found[::2], found[1::2], strict=True):
        assert whole < 2.5 * half + SMALL, name
        assert whole < 4 * N * N / 2, name
