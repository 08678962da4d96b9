"""Small real models for the tests of linnet.models."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from linnet import describe_attention
from linnet.models.backbone import Model
from linnet.models.presets import SYSTEMS, create_model

OPTIONS = {"diag": {"block": 8}, "flash": {"chunk": 8}, "long_short": {"chunk": 4}}
TINY = {"vocab_size": 61, "width": 32, "heads": 2, "ffn_width": 40, "options": OPTIONS}


def able(flag: str) -> list[str]:
    """The systems of the presets whose mechanisms declare this capability."""
    return sorted(name for name, parts in SYSTEMS.items() if all(describe_attention(m)[flag] for m in parts[:2]))


def pytest_generate_tests(metafunc):
    """Parametrize `system` over all systems, `packed_system` and the like over capable ones, `kind` over both."""
    if "system" in metafunc.fixturenames:
        metafunc.parametrize("system", sorted(SYSTEMS))
    for flag in ("packed", "recurrent"):
        if f"{flag}_system" in metafunc.fixturenames:
            metafunc.parametrize(f"{flag}_system", able(flag))
    if "kind" in metafunc.fixturenames:
        metafunc.parametrize("kind", ["lm", "roberta"])


@pytest.fixture
def tiny() -> Callable[..., Model]:
    """`tiny("vanilla_lm")`: that preset with narrow layers and perturbed weights, in evaluation mode."""

    def build(name: str, **overrides) -> Model:
        model = create_model(f"{name}_small", **(TINY | overrides)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    return build


@pytest.fixture
def padded() -> Callable[..., tuple[Tensor, Tensor]]:
    """`padded(rows, side, N)`: rows of different lengths in N columns, padded with 60, and the key mask."""

    def fill(rows: Sequence[Tensor], side: str, N: int) -> tuple[Tensor, Tensor]:
        ids, mask = torch.full((len(rows), N), 60), torch.zeros(len(rows), N, dtype=torch.bool)
        for b, row in enumerate(rows):
            place = slice(0, len(row)) if side == "right" else slice(N - len(row), N)
            ids[b, place], mask[b, place] = row, True
        return ids, mask

    return fill
