"""check_attention finds the faults of an attention and names them."""

import pytest
import torch
from torch import Tensor, nn

from linnet.errors import InputError
from linnet.testing import check_attention
from linnet.testing.contract import Check


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


def last_tokens_see_all(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A remainder block without its causal mask."""
    N = q.shape[2]
    see = torch.ones(N, N, dtype=torch.bool).tril()
    see[N // 64 * 64 :] = True
    return nn.functional.scaled_dot_product_attention(q, k, v, see)


def first_token_sees_the_second(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    see = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    see[:1, 1:2] = True
    return nn.functional.scaled_dot_product_attention(q, k, v, see)


def reads_the_row_above(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q, k, v) + 1e-3 * torch.cat([torch.zeros_like(v[:1]), v[:-1]])


def one_mask_for_all(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    return softmax(q, k, v, None if key_mask is None else key_mask[:1])


def sees_holes(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
    """It masks padding at the ends, but not a masked key in between."""
    if key_mask is not None:
        key_mask = (key_mask.cumsum(1) > 0) & (key_mask.flip(1).cumsum(1).flip(1) > 0)
    return softmax(q, k, v, key_mask)


def one_division_for_all(q: Tensor, k: Tensor, v: Tensor, segments: Tensor | None = None) -> Tensor:
    see = None if segments is None else segments[:1, None, :, None] == segments[:1, None, None, :]
    return nn.functional.scaled_dot_product_attention(q, k, v, see)


def cannot_be_trained(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return softmax(q, k, v).detach()


def test_a_good_function_passes() -> None:
    report = check_attention(softmax, causal=False)
    assert report.passed and "padding does not change the result" in str(report)


@pytest.mark.parametrize(
    "fn,causal,what",
    [
        (leaks_the_future, True, "reads the future"),
        (leaks_the_batch, False, "reads batch mates"),
        (ignores_its_mask, False, "padding changes the result"),
        (forgets, False, "a second call differs"),
        (last_tokens_see_all, True, "reads the future"),
        (first_token_sees_the_second, True, "reads the future"),
        (reads_the_row_above, False, "reads batch mates"),
        (one_mask_for_all, False, "padding changes the result"),
        (sees_holes, False, "padding changes the result"),
        (one_division_for_all, False, "packing changes the result"),
        (cannot_be_trained, False, "no gradient reaches the inputs"),
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


def test_an_option_may_disable_the_recurrent_form() -> None:
    report = check_attention("lln", causal=True, raises=False, options={"statistics": "tensor"})
    assert not report["reads the future"].passed and "recurrent form" not in str(report)


def test_anything_but_an_attention_is_refused_in_one_line() -> None:
    assert check_attention(torch.nn.functional.scaled_dot_product_attention, causal=False).passed
    for fn, message in (
        (3, "must be a name"),
        (lambda q, k, v: v[:, :, :1], "must return the shape of v"),
        (lambda q, k, v: (v,), "returns a tuple"),
        (lambda q: q, "fails at all lengths"),
    ):
        with pytest.raises(InputError, match=message):
            check_attention(fn, causal=False)
    with pytest.raises(InputError, match="lengths is 7"):
        check_attention("elu", causal=True, lengths=7)


@pytest.mark.parametrize("lengths", [(), (0,), (-3,), ("a",), (2.0,)])
def test_invalid_lengths_are_refused(lengths) -> None:
    with pytest.raises(InputError, match="lengths is"):
        check_attention(softmax, causal=False, lengths=lengths)


def test_checks_that_do_not_apply_are_left_out() -> None:
    report = check_attention(softmax, causal=True, lengths=(1,))
    assert "reads the future" not in str(report) and "gradient" not in str(report)
    with pytest.raises(InputError, match="options is given"):
        check_attention(softmax, causal=False, options={"a": 1})


def test_a_passed_check_reads_as_the_promise_that_was_kept() -> None:
    assert str(Check("reads the future", 0.0, 0.0)).startswith("ok   does not read the future: ")
    assert str(Check("reads the future", 1.0, 0.0)).startswith("FAIL reads the future: ")
    assert "ok   gradients reach the inputs" in str(Check("no gradient reaches the inputs", 0.0, 0.0))
    assert "ok   a second call does not differ: " in str(Check("a second call differs", 0.0, 0.0))
