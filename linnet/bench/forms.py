"""The same attentions in plain torch operations, as one would write them without linnet."""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

CHUNK = 64
A, B = 0.14855178144710912, -0.35487039130661086  # the constants of the LLN paper's released code
EPS = 1e-8  # the default of that code


def chunked_torch_form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal linear attention on all chunks at once: o = q S + tril(q k^T) v, with S the state before each chunk."""
    N = q.shape[2]
    q, k, v = (pad(x, (0, 0, 0, -N % CHUNK)).unflatten(2, (-1, CHUNK)) for x in (q, k, v))  # (B, H, n, C, .)
    S = (k.mT @ v).cumsum(dim=2)  # (B, H, n, D, E), after each chunk
    S = pad(S[:, :, :-1], (0, 0, 0, 0, 1, 0))
    o = q @ S + (q @ k.mT).tril() @ v
    return o.flatten(2, 3)[:, :, :N]


def released_lln_form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Bidirectional LLN: deviations of the whole tensor, maxima subtracted, an epsilon in the denominator."""
    with torch.no_grad():
        sigma_q, sigma_k = q.std(), k.std()
        matched = (((sigma_q * sigma_k) ** 2 - B) / (2 * A)).sqrt()  # M13
        alpha, beta = matched / sigma_q, matched / sigma_k
    q, k = alpha * q, beta * k
    phi_q = torch.exp(q - q.amax(dim=3, keepdim=True).detach())
    phi_k = torch.exp(k - k.amax(dim=(2, 3), keepdim=True).detach())
    num = phi_q @ (phi_k.mT @ v)
    return num / (phi_q @ phi_k.sum(dim=2)[..., None] + EPS)


def released_lln_diag_form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The mean of `released_lln_form` and of softmax inside blocks of D tokens; N must be a multiple of D."""
    D = q.shape[3]
    a, b, c = (x.unflatten(2, (-1, D)) for x in (q, k, v))  # (B, H, N/D, D, .)
    near = (a @ b.mT * D**-0.5).softmax(dim=-1) @ c
    return (released_lln_form(q, k, v) + near.flatten(2, 3)) / 2  # M15


def torch_softmax_form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's fused attention over all keys."""
    return scaled_dot_product_attention(q, k, v)


def torch_causal_softmax_form(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's fused attention over the keys up to each token."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)
