"""Promise 11: wrong configurations give one line, and configurations that are right train."""

import random
import shutil
import time
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from linnet.config import load_recipe_config, parse_config
from linnet.errors import LinnetError
from linnet.registry import ATTENTION
from linnet.train.check import check_config
from linnet.train.run import start_run
from tests.prove.promise import Trials, promise
from tests.prove.runs import QUIET, small_run

WEIRD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([10**400, -1, 1e308]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)


@promise(
    "11",
    "A wrong configuration gives one line that names the field, at once; a right one trains.",
    "Configurations that Hypothesis draws: recipes with wrong types, unknown keys, huge numbers, NaN and nesting; "
    "broken TOML files. Then random mechanisms, sizes, schedules and precisions that really train two steps.",
)
def wrong_configurations(trials: Trials) -> None:
    """2,000 that are parsed, then 500 that train."""
    base = small_run(trials.folder).model_dump(mode="json", exclude_none=True)
    keys = [(section, key) for section in ("data", "model", "train") for key in base[section]]
    keys += [("", "task"), ("", "seed"), ("", "pretrain"), ("", "model"), ("", "data"), ("", "train")]
    place = st.sampled_from(keys) | st.tuples(st.sampled_from(["", "data", "model", "train"]), st.text(max_size=12))

    @seed(0)
    @settings(
        max_examples=trials.number(1800, 60),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(st.tuples(place, WEIRD), min_size=1, max_size=3))
    def parse(changes: list[tuple[tuple[str, str], Any]]) -> None:
        table = {key: dict(value) if isinstance(value, dict) else value for key, value in base.items()}
        for (section, key), value in changes:
            into = table.get(section) if section else table
            if isinstance(into, dict):
                into[key] = value
        start = time.perf_counter()
        trials.one_line(lambda: check_config(parse_config(table)), changes)
        if time.perf_counter() - start > 5:
            trials.check(False, f"{changes}: it took {time.perf_counter() - start:.1f} s")

    parse()
    rng, path = random.Random(0), trials.folder / "broken.toml"
    whole = b'task = "causal_lm"\n[data]\ncontext = 16\n[train]\nsteps = 4\nbetas = [0.9, 0.98]\n'
    for i in range(trials.number(200, 10)):
        at = rng.randrange(len(whole))
        path.write_bytes(whole[:at] + rng.randbytes(rng.randint(0, 5)) + whole[at + rng.randint(0, 5) :])
        trials.one_line(lambda: check_config(load_recipe_config(path)), f"broken file {i}")
    _random_runs(trials, rng)


def _random_runs(trials: Trials, rng: random.Random) -> None:
    """Configurations that are drawn to be right: what is refused is refused in one line, all others train."""
    trained, wanted = 0, trials.number(500, 6)
    for _ in range(4 * wanted):
        if trained == wanted:
            break
        task = rng.choice(("causal_lm", "causal_lm", "masked_lm", "recall"))
        table = small_run(trials.folder, task).model_dump(mode="json", exclude_none=True)
        heads = rng.choice((1, 2, 4))
        names = [rng.choice(ATTENTION.names()) for _ in range(rng.randint(1, 3))]
        table["model"] |= {"layers": names, "width": heads * rng.choice((4, 8)), "heads": heads}
        table["model"] |= {"ffn_width": rng.choice((8, 20)), "dropout": rng.choice((0.0, 0.1, 0.5))}
        table["model"] |= {
            "norm_position": rng.choice(("pre", "post")),
            "positions": rng.choice(("none", "sinusoidal")),
        }
        train = {"steps": 2, "warmup": rng.randint(0, 2), "batch": rng.randint(1, 3), "accumulate": rng.randint(1, 2)}
        train |= {"schedule": rng.choice(("constant", "cosine", "inverse_sqrt", "polynomial", "one_cycle"))}
        train |= {"clip": rng.choice((0.0, 1.0)), "precision": rng.choice(("float32", "float32", "bfloat16"))}
        train |= {"save_async": rng.random() < 0.5, "eval_every": rng.randint(0, 2), "lr": 10 ** rng.uniform(-5, -2)}
        table["train"] |= train
        table["seed"] = rng.randrange(1000)
        folder = trials.folder / "run"
        try:
            config = parse_config(table)
            check_config(config)
        except LinnetError as error:
            trials.check("\n" not in str(error), f"{names}: {error}")
            continue
        if trials.one_line(lambda config=config, folder=folder: start_run(config, folder, QUIET), f"{names} {table}"):
            trained += 1
        shutil.rmtree(folder, ignore_errors=True)
    trials.measured["Configurations that trained two steps"] = trained
    trials.check(trained == wanted, f"{trained} of {wanted} configurations trained")
