"""The plain forms compute the same results as the ops that they are compared with."""

import torch

from linnet.attention.base import create_attention
from linnet.bench.forms import (
    CHUNK,
    chunked_torch_form,
    released_lln_diag_form,
    released_lln_form,
    torch_causal_softmax_form,
    torch_softmax_form,
)
from linnet.ops import reference
from linnet.testing import contract_difference


def test_batched_chunks_are_causal_linear_attention():
    for N in (CHUNK, 3 * CHUNK, 100):
        q, k, v = torch.randn(3, 2, 3, N, 8, dtype=torch.float64)
        assert contract_difference(chunked_torch_form(q, k, v), reference.linear_attention(q, k, v)) < 1e-12


def test_the_released_formulas_are_lln_with_the_deviations_of_the_tensor():
    q, k, v = torch.randn(3, 2, 3, 128, 64, dtype=torch.float64)
    options = {"statistics": "tensor", "match": "paper"}
    for name, form in (("lln", released_lln_form), ("lln_diag", released_lln_diag_form)):
        core = create_attention(name, heads=3, head_dim=64, causal=False, **options)
        assert contract_difference(form(q, k, v), core(q, k, v)) < 1e-6  # theirs adds 1e-8 to the denominator


def test_torch_softmax_in_both_forms():
    q, k, v = torch.randn(3, 1, 2, 10, 4, dtype=torch.float64)
    for form, causal in ((torch_softmax_form, False), (torch_causal_softmax_form, True)):
        core = create_attention("softmax", heads=2, head_dim=4, causal=causal)
        assert contract_difference(form(q, k, v), core(q, k, v)) < 1e-12
