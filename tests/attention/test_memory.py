"""What calls itself cheaper than quadratic never holds a matrix of N x N: peak memory of training at 16,384 tokens."""

import json
import subprocess
import sys

from tests.attention.cases import ABOUT, FORMS

N = 16_384
QUADRATIC = 4 * N * N  # bytes of one head's scores
CHEAPER = [(*form, ABOUT[form[0]]["any_length"]) for form in FORMS if "N^2" not in ABOUT[form[0]]["cost"]]
PROGRAM = """
import json, resource, sys
import torch, linnet

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
    train(*form, 256)
    before = peak()
    train(*form, int(sys.argv[2]))
    print(form[0], peak() - before)
"""


def test_no_matrix_of_all_pairs() -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps(CHEAPER), str(N)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, _ in grown] == [form[0] for form in CHEAPER]
    for name, more in grown:
        assert int(more) < QUADRATIC / 4, name
