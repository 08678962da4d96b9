"""What calls itself cheaper than quadratic never holds a matrix of N x N: peak memory of training at 16,384 tokens."""

import json
import subprocess
import sys

import linnet

N = 16_384
QUADRATIC = 4 * N * N  # bytes of one head's scores
FORMS = [
    (name, form == "causal")
    for name in linnet.list_attention()
    for form in ("causal", "bidirectional")
    if linnet.describe_attention(name)[form] and "N^2" not in linnet.describe_attention(name)["cost"]
]
PROGRAM = """
import json, resource, sys
import torch, linnet

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def train(name, causal, N):
    core = linnet.create_mixer(name, width=16, heads=1, causal=causal).core
    q, k, v = (torch.randn(1, 1, N, core.head_dim, requires_grad=True) for _ in range(3))
    core(q, k, v).sum().backward()

for name, causal in json.loads(sys.argv[1]):
    train(name, causal, 256)
    before = peak()
    train(name, causal, int(sys.argv[2]))
    print(name, peak() - before)
"""


def test_no_matrix_of_all_pairs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(FORMS), str(N)], capture_output=True, text=True, check=True
    )
    grown = [line.split() for line in done.stdout.splitlines()]
    assert [name for name, _ in grown] == [name for name, _ in FORMS]
    for name, more in grown:
        assert int(more) < QUADRATIC / 4, name
