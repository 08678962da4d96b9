"""What a core says about a sequence that is cut over ranks: whether it can be, and what it then cannot do."""

from typing import ClassVar

import torch
from torch import Tensor, nn

from linnet.errors import UnsupportedError
from linnet.ops.cut import CutRanks
from linnet.ops.masks import Layout, layout_of_masks
from linnet.ops.memory import Maybe


class CutForm(nn.Module):
    """A core that may be one of many, each of which has a slice of the tokens."""

    name: ClassVar[str]
    relative: str
    ranks: CutRanks | None = None  # those that share the sequence

    def cut_hurdle(self) -> str:
        """Why a sequence cannot be cut over ranks; "" if `attend` takes a `CutLayout`, which adds sums over ranks."""
        return "it does not say how its state crosses"

    def check_whole(self, what: str) -> None:
        """Raise a one-line error if the sequence is cut over ranks."""
        if self.ranks is not None:
            raise UnsupportedError(f"{self.name} cannot {what}: its sequence is cut over {self.ranks.size} ranks")

    def place_tokens(self, x: Tensor, key_mask: Maybe, segments: Maybe) -> Layout:
        """Where the tokens of x (B,H,N,D) stand in the whole sequence."""
        device: torch.device = x.device
        if self.ranks is not None:
            return self.ranks.layout(x.shape[0], x.shape[2], key_mask, segments, device)
        return layout_of_masks(x.shape[0], x.shape[2], key_mask, segments, device)


def grid_cut_hurdle(core: CutForm) -> str:
    """Why a core with these positions cannot be cut over ranks, or ""."""
    return "positions='rope2d' reads rows as squares" if core.relative == "rope2d" else ""
