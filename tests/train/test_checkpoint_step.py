"""Which step `--checkpoint` stands for."""

import pytest

from linnet.errors import InputError
from linnet.screen import Screen
from linnet.train.checkpoint_step import run_checkpoint_step
from linnet.train.run import resume_run, start_run

QUIET = Screen(quiet=True)


@pytest.mark.parametrize("loss", ["-1.0", '"x"', "null", "[1]"])
def test_the_best_step_comes_from_the_checkpoint_not_from_the_log(config, tmp_path, loss):
    start_run(config(steps=2), tmp_path / "run", QUIET)
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write(f'{{"step": 1, "split": "valid", "loss": {loss}}}\n')
    assert run_checkpoint_step(tmp_path / "run", "best") == 2
    assert resume_run(tmp_path / "run", QUIET).valid["step"] == 2


def test_a_number_of_thousands_of_digits_is_not_a_step(tmp_path):
    with pytest.raises(InputError, match="it must be last, best or a step number") as error:
        run_checkpoint_step(tmp_path, "9" * 5000)
    assert len(str(error.value)) < 200
