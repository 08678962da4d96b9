"""What a core does where its sequence is cut over ranks: it places its slice of the tokens, and refuses the rest."""

from typing import ClassVar, Protocol

from torch import Tensor

from linnet.errors import UnsupportedError
from linnet.ops.cut import CutRanks
from linnet.ops.masks import Layout, layout_of_masks
from linnet.ops.memory import Maybe


class _Cut(Protocol):
    """What these functions need of a core."""

    name: ClassVar[str]
    ranks: CutRanks | None


def check_whole_sequence(core: _Cut, what: str) -> None:
    """Raise a one-line error if the sequence is cut over ranks."""
    if core.ranks is not None:
        raise UnsupportedError(f"{core.name} cannot {what}: its sequence is cut over {core.ranks.size} ranks")


def layout_over_ranks(ranks: CutRanks | None, x: Tensor, key_mask: Maybe, segments: Maybe) -> Layout:
    """The layout of the tokens of x (B,H,N,D) in the whole sequence, of which each of the `ranks` has a slice."""
    place = layout_of_masks if ranks is None else ranks.layout
    return place(x.shape[0], x.shape[2], key_mask, segments, x.device)


def grid_cut_hurdle(relative: str) -> str:
    """Why a core with these relative positions cannot be cut over ranks, or ""."""
    return "positions='rope2d' reads rows as squares" if relative == "rope2d" else ""
