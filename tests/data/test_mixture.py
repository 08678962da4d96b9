"""Mixtures: shares by weight, each block once per epoch, no sample lost or doubled by kills and changes of ranks."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from linnet.data.mixture import PERIOD, _keys, draw_mixture_samples, mixture_shares, permute_mixture_places
from linnet.errors import InputError


def drawn(start, stop, shares=(7000, 3000), counts=(900, 41), seed=5):
    return draw_mixture_samples(seed, np.arange(start, stop), shares, counts)


def test_shares_follow_the_weights():
    assert mixture_shares({"a": 0.7, "b": 0.2, "c": 0.1}) == (7000, 2000, 1000)
    assert mixture_shares({"a": 3.0, "b": 1.0}) == (7500, 2500)
    assert mixture_shares({"a": 1.0, "b": 1.0, "c": 1.0}) == (3334, 3333, 3333)
    assert mixture_shares({"only": 1e9}) == (PERIOD,)
    with pytest.raises(InputError, match=r"^data\.mixture\.b\.weight is 1e-06: that is under one of 10,000 samples"):
        mixture_shares({"a": 1.0, "b": 1e-6})


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 4097])
def test_a_permutation_has_each_place_once(count):
    for epoch in range(3):
        assert sorted(permute_mixture_places(np.arange(count), count, _keys(1, 0, epoch))) == list(range(count))


def test_permutations_are_uniform():
    found = np.array([permute_mixture_places(np.arange(8), 8, _keys(0, 0, epoch)) for epoch in range(800)])
    for place in range(8):
        assert abs(np.bincount(found[:, place], minlength=8) - 100).max() < 4 * (100 * 7 / 8) ** 0.5


def test_every_ten_thousand_samples_have_the_shares_and_every_epoch_each_block_once():
    owners, blocks, epochs = drawn(0, 3 * PERIOD)
    for period in range(3):
        assert np.bincount(owners[period * PERIOD : (period + 1) * PERIOD]).tolist() == [7000, 3000]
    for corpus, count in enumerate((900, 41)):
        mine = owners == corpus
        for epoch in range(int(epochs[mine].max())):
            assert sorted(blocks[mine & (epochs == epoch)]) == list(range(count))
        assert (np.diff(epochs[mine]) >= 0).all()


def test_any_part_of_a_run_is_what_the_whole_run_has_there():
    whole = drawn(0, 2 * PERIOD)
    for start, stop in ((0, 1), (9_990, 10_010), (12_345, 12_409)):
        for part, all_of_it in zip(drawn(start, stop), whole, strict=True):
            assert part.tolist() == all_of_it[start:stop].tolist()
    assert drawn(0, 50, seed=6)[1].tolist() != drawn(0, 50)[1].tolist()


def test_the_order_stays_the_same_from_version_to_version():
    owners, blocks, epochs = drawn(20_000, 20_006, (6000, 4000), (10**12, 7), seed=0)
    assert owners.tolist() == [1, 0, 0, 1, 1, 0]
    assert blocks.tolist() == [6, 649499018110, 328580386765, 2, 3, 866799899132]
    assert epochs.tolist() == [1142, 0, 0, 1143, 1143, 0]


# One rank of a training: it reads its rows of each micro-batch, says so, and after each update the first rank records
# that the update is done, as a checkpoint does. Ranks wait for one another as in an all-reduce.
RANKS = """
import os, random, signal, sys, time
from pathlib import Path
import numpy as np
from linnet.data.mixture import draw_mixture_samples
from linnet.data.packing import Blocks, Stream
from linnet.data.sharded_corpus import load_sharded_corpus
from linnet.data.shards import ShardTokens, open_shards
from linnet.data.sources import Place
from linnet.data.tokenizer import Tokenizer

folder, text, batch, kills = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
quiet = lambda what: lambda done, total: None
corpus = load_sharded_corpus("text", Place("data.path", text, None, "text", False), "parts", {}, folder, quiet)
shards = open_shards(corpus, Tokenizer("bytes"), "train", folder, quiet).shards
blocks = Blocks(Stream("train", ShardTokens(shards), 0, 0), 4)
STEPS = -(-10_000 // batch)
done = folder / "done"

def rank(number, world, start):
    per = batch // world
    for step in range(start, STEPS):
        rows = np.arange(step * batch + number * per, step * batch + (number + 1) * per)
        _, found, epochs = draw_mixture_samples(3, rows, (10_000,), (len(blocks),))
        tokens, _ = blocks.tokens(found)
        with open(folder / f"read-{step}", "a") as log:  # one write: lines of ranks do not mix
            log.write("".join(f"{step} {e} {b} {t}\\n" for e, b, t in zip(epochs, found, tokens[:, 0])))
        with open(folder / f"met-{world}-{start}-{step}", "ab") as met:
            met.write(b".")
        while os.path.getsize(folder / f"met-{world}-{start}-{step}") < world:
            time.sleep(0.001)
        if number == 0:
            (folder / "next").write_text(str(step + 1))
            os.replace(folder / "next", done)
        else:
            while not done.exists() or int(done.read_text()) <= step:
                time.sleep(0.001)
    os._exit(0)

def now():
    return int(done.read_text()) if done.exists() else 0

chance, killed, turn = random.Random(0), 0, 0
while now() < STEPS:
    world, start = (4, 2, 3)[turn % 3], now()
    turn += 1
    for stale in folder.glob("met-*"):
        stale.unlink()
    for step in range(start, STEPS):  # what was read after the last finished update is read again
        (folder / f"read-{step}").unlink(missing_ok=True)
    ranks = []
    for number in range(world):
        pid = os.fork()
        if pid == 0:
            rank(number, world, start)
        ranks.append(pid)
    if killed < kills:
        goal = start + chance.randrange(1, 2 * STEPS // kills)
        while now() < min(goal, STEPS - 10 * (kills - killed)):
            time.sleep(0.001)
        time.sleep(chance.random() * 0.004)
        os.kill(chance.choice(ranks), signal.SIGKILL)  # one rank dies, and the launcher ends the others
        killed += 1
        for pid in ranks:
            os.kill(pid, signal.SIGKILL)
    for pid in ranks:
        os.waitpid(pid, 0)
print(killed, turn, len(blocks))
"""


def test_no_sample_is_lost_or_doubled_over_ranks_kills_and_changes_of_world_size(tmp_path):
    """10,000 samples in batches of 24, read by 4, 2 and 3 real processes in turn, which are killed 20 times."""
    batch, kills, text = 24, 20, Path(__file__).parents[2] / "LICENSE"
    command = [sys.executable, "-c", RANKS, str(tmp_path), str(text), str(batch), str(kills)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    killed, turns, count = map(int, done.stdout.split())
    assert (killed, turns) == (kills, kills + 1)
    steps = -(-10_000 // batch)
    lines = [line.split() for step in range(steps) for line in (tmp_path / f"read-{step}").read_text().splitlines()]
    read = [(int(epoch), int(block)) for _, epoch, block, _ in lines]
    assert len(read) == steps * batch >= 10_000
    _, blocks, epochs = draw_mixture_samples(3, np.arange(steps * batch), (PERIOD,), (count,))
    assert Counter(read) == Counter(zip(epochs.tolist(), blocks.tolist(), strict=True))
    last = int(epochs.max())
    assert last > 3
    for epoch in range(last):  # each block once in each finished epoch
        assert sorted(block for e, block in read if e == epoch) == list(range(count))
    data = text.read_bytes()  # and what was read is the text
    assert all(int(token) == 4 + data[4 * int(block)] for _, _, block, token in lines)
