"""The papers' competitors in plain torch operations, as their released code computes them, with linnet's parameters.

Each form does the same passes over memory as the code of its authors, or of the paper that compares it, and equals
linnet's mechanism where both draw the same samples. They show what a mechanism costs before it is rewritten.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from linnet.attention.flash import FlashAttention
from linnet.attention.flash_quad import GatedMixer, GatedUnit
from linnet.attention.linformer import LinformerAttention
from linnet.attention.long_short import LongShortAttention


class InformerAsReleased(nn.Module):
    """ProbSparse attention: the sampled keys of all queries are gathered at once."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o (B,H,N,E)."""
        (N, D), u = q.shape[2:], min(q.shape[2], self.factor * math.ceil(math.log(q.shape[2])))
        index = torch.randint(N, (N, u))
        keys = k[:, :, None].expand(-1, -1, N, -1, -1)[:, :, torch.arange(N)[:, None], index]  # (B, H, N, u, D)
        scores = (q[:, :, :, None] @ keys.mT).squeeze(3)
        M = scores.amax(dim=-1) - scores.sum(dim=-1) / N
        best = M.topk(u, sorted=False).indices[..., None]  # (B, H, u, 1)
        weights = (q.gather(2, best.expand(-1, -1, -1, D)) @ k.mT * D**-0.5).softmax(dim=-1)
        o = v.mean(dim=2, keepdim=True).expand_as(v).clone()
        return o.scatter(2, best.expand(-1, -1, -1, v.shape[3]), weights @ v)


class CosformerAsReleased(nn.Module):
    """ReLU features beside their cosine and sine, and prefix sums of k v^T for all tokens where causal."""

    def __init__(self, max_length: int, causal: bool) -> None:
        super().__init__()
        self.max_length, self.causal = max_length, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o (B,H,N,E)."""
        angle = (math.pi / 2 * torch.arange(1, q.shape[2] + 1) / self.max_length)[:, None]
        q, k = (torch.cat([x.relu() * angle.sin(), x.relu() * angle.cos()], dim=-1) for x in (q, k))
        if self.causal:
            S = torch.einsum("bhnd,bhne->bhnde", k, v).cumsum(dim=2)
            z = 1 / (q * k.cumsum(dim=2)).sum(dim=-1).clamp_min(1e-6)
            return torch.einsum("bhnd,bhnde,bhn->bhne", q, S, z)
        z = 1 / torch.einsum("bhnd,bhd->bhn", q, k.sum(dim=2)).clamp_min(1e-6)
        return torch.einsum("bhnd,bhde,bhn->bhne", q, k.mT @ v, z)


class LinformerAsReleased(nn.Module):
    """The formula of the paper: all scores with the mixed keys are stored."""

    def __init__(self, core: LinformerAttention) -> None:
        super().__init__()
        self.core = core

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o (B,H,N,E) for rows of the greatest length."""
        k, v = (torch.einsum("hkn,bhnd->bhkd", self.core.E, x) for x in (k, v))
        return torch.einsum("bhnd,bhkd->bhnk", q * q.shape[3] ** -0.5, k).softmax(dim=-1) @ v


class NystromAsReleased(nn.Module):
    """Three softmax matrices; the pseudo-inverse of the middle one begins with the largest norms of the whole batch."""

    def __init__(self, landmarks: int, steps: int) -> None:
        super().__init__()
        self.landmarks, self.steps = landmarks, steps

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o (B,H,N,E) for N a multiple of the landmarks."""
        q = q * q.shape[3] ** -0.5
        Lq, Lk = (x.unflatten(2, (self.landmarks, -1)).mean(dim=3) for x in (q, k))
        first, middle, last = ((a @ b.mT).softmax(dim=-1) for a, b in ((q, Lk), (Lq, Lk), (Lq, k)))
        Z = middle.mT / (middle.sum(dim=-1).amax() * middle.sum(dim=-2).amax())
        unit = torch.eye(self.landmarks)
        for _ in range(self.steps):
            AZ = middle @ Z
            Z = 0.25 * Z @ (13 * unit - AZ @ (15 * unit - AZ @ (7 * unit - AZ)))
        return first @ Z @ (last @ v)


class LongShortAsReleased(nn.Module):
    """A window and compressed keys, bidirectional: windows are copied, and one softmax runs over both parts."""

    def __init__(self, core: LongShortAttention) -> None:
        super().__init__()
        self.core = core

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o (B,H,N,E) for N a multiple of the window."""
        core, (B, H, N, D) = self.core, q.shape
        w = core.options.window or 8
        layers = core.compress, core.near_norm, core.far_norm
        compress, near, far = layers
        assert isinstance(near, nn.LayerNorm)
        assert isinstance(far, nn.LayerNorm)

        def normed(norm: nn.LayerNorm, x: Tensor) -> Tensor:
            return norm(x.transpose(1, 2).flatten(2)).unflatten(2, (H, -1)).transpose(1, 2)

        P = compress(k.transpose(1, 2).flatten(2)).unflatten(2, (H, -1)).permute(0, 2, 3, 1).softmax(dim=-1)
        far_k, far_v = normed(far, P @ k), normed(far, P @ v)
        q = q * D**-0.5
        windows = [pad(normed(near, x), (0, 0, w // 2, w // 2)).unfold(2, 2 * w, w).mT for x in (k, v)]
        near_k, near_v = (x.reshape(B, H, N // w, 2 * w, -1) for x in windows)
        scores = q.unflatten(2, (-1, w)) @ near_k.mT  # (B, H, N/w, w, 2w)
        outside = torch.zeros(N + w, dtype=torch.bool)
        outside[: w // 2] = outside[N + w // 2 :] = True
        scores = scores.masked_fill(outside.unfold(0, 2 * w, w)[:, None], -torch.inf)
        A = torch.cat([scores.flatten(2, 3), q @ far_k.mT], dim=-1).softmax(dim=-1)
        o = A[..., : 2 * w].unflatten(2, (-1, w)) @ near_v
        return o.flatten(2, 3) + A[..., 2 * w :] @ far_v


class GatedAsReleased(nn.Module):
    """FLASH-quad or FLASH around linnet's parameters, with projections."""

    def __init__(self, mixer: GatedMixer) -> None:
        super().__init__()
        self.mixer = mixer

    def forward(self, x: Tensor) -> Tensor:
        """y (B,N,M) for N a multiple of the chunk."""
        assert isinstance(self.mixer.core, GatedUnit)
        return self.mixer._merge(GatedCoreAsReleased(self.mixer.core)(*self.mixer._split(x)), x)


class GatedCoreAsReleased(nn.Module):
    """The same without projections: scores, biases and masks are separate passes, all are stored."""

    def __init__(self, core: GatedUnit) -> None:
        super().__init__()
        self.core = core

    def forward(self, z: Tensor, _: Tensor, v: Tensor) -> Tensor:
        """o (B,1,N,e) of Z, once as query and once as key, and V."""
        form = self._chunks if isinstance(self.core, FlashAttention) else self._pairs
        return form(self.core, z.squeeze(1), v.squeeze(1))[:, None]

    @staticmethod
    def _pairs(core: GatedUnit, z: Tensor, v: Tensor) -> Tensor:
        N = z.shape[1]
        q, k = core.features(z[:, None], z[:, None], torch.arange(N))
        scores = q.squeeze(1) @ k.squeeze(1).mT / N + core.bias.matrix(N, v.dtype)
        A = scores.relu().square()
        if core.causal:
            A = A.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), 0)
        return A @ v

    @staticmethod
    def _chunks(core: GatedUnit, z: Tensor, v: Tensor) -> Tensor:
        assert isinstance(core, FlashAttention)
        C = core.options.chunk
        parts = core.features(z[:, None], z[:, None], torch.arange(z.shape[1]))
        near_q, far_q, near_k, far_k, v = (x.squeeze(1).unflatten(1, (-1, C)) for x in (*parts, v[:, None]))
        A = (near_q @ near_k.mT / C + core.bias.matrix(C, v.dtype)).relu().square()  # (B, n, C, C)
        S = far_k.mT @ v / C
        if core.causal:
            A = A.masked_fill(torch.ones(C, C, dtype=torch.bool).triu(1), 0)
            S = pad(S.cumsum(dim=1)[:, :-1], (0, 0, 0, 0, 1, 0))
        else:
            S = S.sum(dim=1, keepdim=True)
        return (A @ v + far_q @ S).flatten(1, 2)
