"""check_attention finds what is wrong in an attention, and says so in words."""

import pytest
import torch
from torch import Tensor, nn

from linnet.errors import InputError
from linnet.testing import check_attention


def softmax(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None, :], -torch.inf)
    return scores.softmax(dim=-1) @ v


def leaks_the_future(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Softmax first, then the causal mask: the denominator has seen the future."""
    return (q @ k.mT).softmax(dim=-1).tril() @ v


def leaks_the_batch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q, k / k.std(), v)


def ignores_its_mask(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    return softmax(q, k, v)


def forgets(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q, k, v) + torch.rand(())


def test_a_good_function_passes() -> None:
    report = check_attention(softmax, causal=False)
    assert report.passed and "padding changes the result" in str(report)


@pytest.mark.parametrize(
    "fn,causal,what",
    [
        (leaks_the_future, True, "reads the future"),
        (leaks_the_batch, False, "reads batch mates"),
        (ignores_its_mask, False, "padding changes the result"),
        (forgets, False, "a second call differs"),
    ],
)
def test_each_fault_is_found(fn, causal: bool, what: str) -> None:
    with pytest.raises(AssertionError, match=f"FAIL {what}"):
        check_attention(fn, causal=causal)
    report = check_attention(fn, causal=causal, raises=False)
    assert not report[what].passed and not report.passed


def test_a_name_needs_a_direction() -> None:
    with pytest.raises(InputError, match="causal is None"):
        check_attention("norm")


def test_a_module_is_measured_in_its_own_half_precision() -> None:
    class Projected(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(8, 8)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.out(softmax(q, k, v))

    module = Projected()
    assert check_attention(module, causal=False).passed
    assert module.out.weight.dtype == torch.float32


def test_an_option_may_take_the_recurrent_form_away() -> None:
    report = check_attention("lln", causal=True, raises=False, options={"statistics": "tensor"})
    assert not report["reads the future"].passed and "recurrent form" not in str(report)


def test_what_is_no_attention_is_one_line() -> None:
    assert check_attention(torch.nn.functional.scaled_dot_product_attention, causal=False).passed
    for fn, message in (
        (3, "must be a name"),
        (lambda q, k, v: v[:, :, :1], "must give the shape of v"),
        (lambda q, k, v: (v,), "gives a tuple"),
        (lambda q: q, "runs at none"),
    ):
        with pytest.raises(InputError, match=message):
            check_attention(fn, causal=False)
    with pytest.raises(InputError, match="lengths is 7"):
        check_attention("elu", causal=True, lengths=7)
