"""Small real models in Transformers. Every test of this folder is skipped where transformers is not installed."""

from collections.abc import Callable

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="needs transformers, the extra `hf`")
TINY = {
    "vocab_size": 61,
    "width": 32,
    "heads": 2,
    "ffn_width": 40,
    "options": {"diag": {"block": 8}, "flash": {"chunk": 8}, "long_short": {"chunk": 4}},
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch):
    """Nothing may ask the network, and progress bars stay out of the captured output."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture
def tiny() -> Callable[..., torch.nn.Module]:
    """`tiny("lln_lm", LinnetForCausalLM)`: that preset with narrow layers, perturbed weights and its own output."""
    from linnet.hf import LinnetConfig

    def build(name: str, cls: type, **overrides) -> torch.nn.Module:
        model = cls(LinnetConfig.from_preset(f"{name}_small", **({"tie": False} | TINY | overrides))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        return model

    return build
