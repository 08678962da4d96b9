"""`linnet audit --against`: equal tensors pass, a changed one fails, and wrong files are one-line errors."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import linnet
from linnet.errors import LinnetError
from linnet.testing.against import check_against


def recorded(folder: Path, change: float = 0.0, drop: str = "", **metadata: str) -> Path:
    """Nystromformer written out once more in plain torch, in float64, with its gradients."""
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(2, 3, 32, 8, dtype=torch.float64) for _ in range(4))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    Lq, Lk = (x.unflatten(2, (4, 8)).mean(dim=3) for x in leaves[:2])
    first, last, A = ((a @ b.mT * 8**-0.5).softmax(dim=-1) for a, b in ((leaves[0], Lk), (Lq, leaves[1]), (Lq, Lk)))
    Z = A.mT / (A.sum(dim=-1).amax(dim=-1) * A.sum(dim=-2).amax(dim=-1))[..., None, None]
    eye = torch.eye(4, dtype=torch.float64)
    for _ in range(6):
        AZ = A @ Z
        Z = 0.25 * Z @ (13 * eye - AZ @ (15 * eye - AZ @ (7 * eye - AZ)))
    o = first @ Z @ last @ leaves[2]
    slopes = torch.autograd.grad(o, leaves, g)
    tensors = {"q": q, "k": k, "v": v, "g": g, "o": o.detach() + change}
    tensors |= dict(zip(("dq", "dk", "dv"), slopes, strict=True))
    tensors.pop(drop, None)
    about = {"attention": "nystromformer", "causal": "false", "options": json.dumps({"landmarks": 4})} | metadata
    path = folder / "reference.safetensors"
    save_file({name: x.contiguous() for name, x in tensors.items()}, path, {k: v for k, v in about.items() if v})
    return path


def test_another_implementation_is_equal_in_values_and_gradients(tmp_path: Path) -> None:
    found = check_against(recorded(tmp_path))
    assert found["passed"] and found["differences"].keys() == {"o", "dq", "dk", "dv"}
    assert max(found["differences"].values()) < 1e-12
    assert not check_against(recorded(tmp_path, change=1e-6))["passed"]


def test_mixers_and_models_are_compared_with_their_weights(tmp_path: Path) -> None:
    torch.manual_seed(1)
    mixer, x = linnet.create_mixer("norm", width=16, heads=2, causal=True), torch.randn(1, 9, 16)
    model = linnet.create_model("transnormer_t2_lm_small", vocab_size=50, max_length=32).eval()
    ids = torch.randint(50, (2, 7))
    for made, inputs, about in (
        (mixer, {"x": x}, {"attention": "norm", "causal": "true", "heads": "2"}),
        (model, {"ids": ids}, {"preset": "transnormer_t2_lm_small", "options": '{"vocab_size": 50, "max_length": 32}'}),
    ):
        weights = {f"weights.{name}": value.clone() for name, value in made.state_dict().items()}
        o = made(*inputs.values()).detach()
        save_file({**inputs, **weights, "o": o}, tmp_path / "a.safetensors", about)
        assert check_against(tmp_path / "a.safetensors")["passed"]
        name = next(iter(weights))
        save_file({**inputs, **weights, name: weights[name] + 1, "o": o}, tmp_path / "a.safetensors", about)
        assert not check_against(tmp_path / "a.safetensors")["passed"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drop": "o"}, "it must hold o, and q, k, v or x or ids"),
        ({"drop": "g"}, "it must hold g, the gradient of o"),
        ({"attention": ""}, "metadata has no attention"),
        ({"causal": "no"}, "causal='no': it must be 'true' or 'false'"),
        ({"options": "[]"}, "it must be a JSON object"),
        ({"options": '{"landmark": 4}'}, "landmark"),
        ({"secret": "1"}, "metadata has 'secret'"),
        ({"attention": "linformer", "options": "{}"}, "lacks weights.E"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, change: dict[str, str], message: str) -> None:
    with pytest.raises(LinnetError, match="(?s)^(?!.*\n).*" + message.replace("[", r"\[")):
        check_against(recorded(tmp_path, **change))


def test_what_is_no_safetensors_file(tmp_path: Path) -> None:
    with pytest.raises(LinnetError, match="is not a file"):
        check_against(tmp_path / "absent")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(LinnetError, match="is not a safetensors file"):
        check_against(tmp_path / "text")
