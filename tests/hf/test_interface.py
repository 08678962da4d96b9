"""The attention function: grouped heads, scales, windows, and padding through the mask that is registered with it."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from linnet import create_attention
from linnet.errors import UnsupportedError
from linnet.hf.interface import NAME, attend_softmax, attend_through_interface


def test_both_functions_are_registered():
    """With the attention alone, Transformers would pass no mask, and padding would leak."""
    assert NAME in AttentionInterface().valid_keys() and NAME in AttentionMaskInterface().valid_keys()


def test_grouped_heads_and_scale():
    module = torch.nn.Module()
    module.linnet = create_attention("lln", heads=4, head_dim=8, causal=False)
    q, k, v = torch.randn(2, 4, 11, 8), torch.randn(2, 2, 11, 8), torch.randn(2, 2, 11, 8)
    wide_k, wide_v = (x.repeat_interleave(2, dim=1) for x in (k, v))
    o, weights = attend_through_interface(module, q, k, v, None, scaling=8**-0.5)
    assert weights is None
    assert torch.equal(o.transpose(1, 2), module.linnet(q, wide_k, wide_v))
    halved, _ = attend_through_interface(module, q, k, v, None, scaling=0.5 * 8**-0.5)
    torch.testing.assert_close(halved.transpose(1, 2), module.linnet(q / 2, wide_k, wide_v))


@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_the_softmax_of_untouched_layers(window, causal):
    q, k, v = torch.randn(3, 2, 2, 9, 8)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[1, 5:] = False
    i = torch.arange(9)
    seen = mask[:, None, None, :] & ((i[:, None] - i).abs() <= (9 if window is None else window))
    seen = seen & (i[:, None] >= i) if causal else seen
    expected = scaled_dot_product_attention(q, k, v, attn_mask=seen)
    found = attend_softmax(q, k, v, mask, window, causal, 0.0)
    assert found.isfinite().all()
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1, :, :5], expected[1, :, :5])


def test_what_changes_the_scores_is_refused():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(UnsupportedError, match="Module passes softcap"):
        attend_through_interface(torch.nn.Module(), q, q, q, None, softcap=30.0)
