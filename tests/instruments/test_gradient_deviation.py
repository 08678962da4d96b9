"""The relative deviation of gradient norms, from the norms themselves and from the records of a run."""

import pytest
import torch

from linnet.errors import InputError
from linnet.instruments import gradient_deviation
from linnet.instruments.gradient_deviation import gradient_deviation_of_records


def test_deviation_over_updates():
    norms = torch.tensor([[1.0, 2.0], [3.0, 2.0]])
    assert gradient_deviation(norms).tolist() == [0.5, 0.0]
    with pytest.raises(InputError, match="two updates or more"):
        gradient_deviation(torch.ones(1))
    with pytest.raises(InputError, match="finite"):
        gradient_deviation(torch.tensor([1.0, torch.nan]))


def test_deviation_from_the_means_of_records():
    norms = torch.rand(17, 3, dtype=torch.float64) + 0.1
    records = [
        {"updates": len(g), "grad_means": g.mean(dim=0).tolist(), "grad_squares": g.square().mean(dim=0).tolist()}
        for g in norms.split([5, 5, 5, 2])
    ]
    assert torch.allclose(gradient_deviation_of_records([{"step": 1}, *records]), gradient_deviation(norms))
    assert gradient_deviation_of_records([{"step": 1}]) is None
