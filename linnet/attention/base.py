"""What every mechanism shares: the core on (B,H,N,D), and the mixer that puts projections around it.

A mechanism is a `Core` with a name, in one file. Its flags say what it can do. It defines `attend` (fast) and `dense`
(the weights A): `finish(attend(q, k, v))` must equal `finish(A @ v)`. A mechanism that needs other projections has its
own `Mixer`.
"""

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from linnet.attention.cut import check_whole_sequence, layout_over_ranks
from linnet.attention.projections import (
    Device,
    Projections,
    Type,
    attention_on_device,
    check_attention_causal,
    check_attention_count,
    parse_attention_options,
    share_heads_in_attention,
)
from linnet.attention.rows import Kernel, weight_rows
from linnet.config import Settings
from linnet.errors import InputError, UnsupportedError
from linnet.ops.cut import CutRanks
from linnet.ops.masks import Layout, check_qkv_for_masks, check_state_and_mask, crosses_masks, layout_of_masks
from linnet.ops.memory import Maybe
from linnet.ops.precision import State, accumulator_precision
from linnet.registry import ATTENTION

if TYPE_CHECKING:
    from linnet.ops.cpu.decode import Stepper


class Core(nn.Module):
    """One attention mechanism on q, k (B,H,N,D) and v (B,H,N,E)."""

    name: ClassVar[str] = "this attention"  # set by the registry
    Options: ClassVar[type[Settings]] = Settings
    what: ClassVar[str]  # the idea in one line
    paper: ClassVar[str]
    cost: ClassVar[str]  # time for N tokens of head width D
    causal_form: ClassVar[bool] = True
    bidirectional_form: ClassVar[bool] = True
    recurrent: ClassVar[bool] = True  # prefill and step exist where causal
    packed: ClassVar[bool] = True  # segments are supported
    any_length: ClassVar[bool] = True
    cross: ClassVar[bool] = False  # `attend` and `dense` accept queries from another sequence
    chooses: ClassVar[bool] = False  # q and k determine a discrete choice, so a mixer projects them in float32
    core_form: ClassVar[bool] = True  # the core works without its mixer, so create_attention can return it
    state_types: tuple[str, ...] = ()  # types of a state's tensors: "sum", "input", "moment", "count" or "flag"
    qkv_gain: ClassVar[float] = 2**-0.5  # of the Xavier initialization of the query, key and value projections
    stepper: "Stepper | None" = None  # a kernel for a whole decoding step
    ranks: CutRanks | None = None  # those that share the sequence, if it is cut

    def __init__(self, heads: int, head_dim: int, causal: bool, options: Settings) -> None:
        super().__init__()
        self.heads, self.head_dim, self.causal, self.options = heads, head_dim, causal, options
        self.relative: str = getattr(options, "positions", "none")  # compilers cannot trace this in a call
        if causal and not self.causal_form:
            raise UnsupportedError(f"{self.name} has no causal form: causal=False is allowed")
        if not causal and not self.bidirectional_form:
            raise UnsupportedError(f"{self.name} has no bidirectional form: causal=True is allowed")
        if causal and self.relative == "rope2d":
            raise UnsupportedError(f"{self.name}: positions='rope2d' has no causal form: causal=False is allowed")

    @classmethod
    def mixer(cls, width: int, heads: int, causal: bool, options: Settings) -> "Mixer":
        """The core with its projections: x (B,N,width) -> y (B,N,width)."""
        return Mixer(cls(heads, width // heads, causal, options))

    def extra_repr(self) -> str:
        """What `print(core)` shows."""
        chosen = "".join(f", {key}={value!r}" for key, value in self.options.model_dump().items())
        return f"heads={self.heads}, head_dim={self.head_dim}, causal={self.causal}{chosen}"

    @property
    def has_weights(self) -> bool:
        """Whether one matrix of weights per head describes the mechanism with its options."""
        return True

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Maybe = None, segments: Maybe = None) -> Tensor:
        """o (B,H,N,E) of q, k (B,H,N,D) and v (B,H,N,E).

        If the mechanism has cross-attention and causal is False, k and v may differ from q in length, and their number
        of heads may divide that of q: consecutive query heads then share a key head. `key_mask` then masks keys only.
        Tensors of equal length count as self-attention, where a masked token is not a query either (`lln` leaves it
        out of its statistics); `MultiheadAttention` checks instead whether query and key are the same tensor.
        """
        return self.run(q, k, v, self.layout(q, k, v, key_mask, segments), self.causal)

    def run(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        """`forward` of checked tensors; the caller gives the direction."""
        if causal and not self.causal_form:
            raise UnsupportedError(f"{self.name} has no causal form")
        k, v = share_heads_in_attention(k, q), share_heads_in_attention(v, q)
        return self.finish(self.attend(q, k, v, where, causal)).to(v.dtype)

    def layout(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Maybe, segments: Maybe, cross: bool = False) -> Layout:
        """The layout of the tokens, computed once per call; raises for tensors that do not fit this core.

        `cross`: q is a different sequence from k and v, even if its length is the same.
        """
        self._check(q, k, v, segments, cross=not self.causal)
        where = layout_over_ranks(self.ranks, k, key_mask, segments)
        if crosses_masks(q, k, segments) or cross:
            self.check_cross()
            where = where.seen_by(q.shape[2])
        return where

    def check_cross(self) -> None:
        """Raise if queries and keys must be the same tokens."""
        check_whole_sequence(self, "attend across")
        if not self.cross:
            raise UnsupportedError(f"{self.name} has no cross-attention: q, k and v must agree in length and heads")
        if self.relative != "none":
            raise UnsupportedError(
                f"{self.name}: positions={self.relative!r} relates tokens of one sequence: cross-attention needs 'none'"
            )

    def _check(self, q: Tensor, k: Tensor, v: Tensor, segments: Maybe, cross: bool = False) -> None:
        """Raise for tensors that do not fit this core."""
        _, H, _ = check_qkv_for_masks(q, k, v, cross)
        if (H, q.shape[3]) != (self.heads, self.head_dim):
            raise InputError(f"q has {H} heads of width {q.shape[3]}: this core has {self.heads} of {self.head_dim}")
        if segments is not None and not self.packed:
            raise UnsupportedError(f"{self.name} does not support segments: put each sequence in its own row")

    def weights(
        self, q: Tensor, k: Tensor, key_mask: Maybe = None, segments: Maybe = None, normalize: bool = False
    ) -> Tensor:
        """Dense A (B,H,N,N): A @ v is the output before any norm. `normalize` divides each row by its sum."""
        check_whole_sequence(self, "show its weights")
        where = self.layout(q, k, k, key_mask, segments)
        A = self.dense(q, share_heads_in_attention(k, q), where, self.causal)
        if not normalize:
            return A
        total = A.sum(dim=-1, keepdim=True)
        return torch.where(total == 0, 0, A / torch.where(total == 0, 1, total))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        """The weighted sum of the values, without the weights."""
        raise NotImplementedError

    def dense(self, q: Tensor, k: Tensor, where: Layout, causal: bool) -> Tensor:
        """The weights, written like their equation."""
        raise NotImplementedError

    def definition(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, causal: bool) -> Tensor:
        """What `attend` must equal; overridden where the values pass a norm before they are summed."""
        return self.dense(q, k, where, causal) @ v

    def kernel(self, q: Tensor, k: Tensor) -> Kernel | None:
        """The features of an unpadded batch in float64, where the weights are products of features."""
        return None

    def rows(self, q: Tensor, k: Tensor, start: int, stop: int) -> Tensor:
        """Rows `start` to `stop` of `weights`, (B,H,stop-start,N), for unpadded batches too long for a whole matrix."""
        return weight_rows(self, q, k, start, stop)

    def finish(self, o: Tensor) -> Tensor:
        """Apply the mechanism's norm to the weighted sum, if it has one."""
        return o

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Maybe = None, state: State | None = None
    ) -> tuple[Tensor, State]:
        """A causal `forward` from a state, and the state after the last real token."""
        self._check(q, k, v, None)
        self.check_recurrent()
        where = layout_of_masks(q.shape[0], q.shape[2], key_mask, None, q.device)
        o, state = self.extend(q, k, v, where, self._checked_state(state, v))
        return self.finish(o).to(v.dtype), state

    def step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """The next token: q, k, v (B,H,1,.) and the state after the previous token."""
        quick = self.quick_step(q, k, v, state) if self.causal else None
        if quick is not None:
            return quick
        self._check(q, k, v, None)
        self.check_recurrent()
        if q.shape[2] != 1:
            raise InputError(f"step takes one token, not {q.shape[2]}: prefill takes several")
        checked = self._checked_state(state, v)
        if checked is None:
            raise InputError("state is None: prefill starts a state")
        o, state = self.advance(q, k, v, checked)
        return self.finish(o).to(v.dtype), state

    def quick_step(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State] | None:
        """A whole step in one kernel call; the kernel checks its arguments, and None means that it rejects them."""
        stepper = self.stepper
        return None if stepper is None else stepper.step(q, k, v, state)

    def _checked_state(self, state: State | None, v: Tensor) -> State | None:
        """A state of the right shapes, converted back to the types that this mechanism keeps."""
        check_state_and_mask(state, self.state_shapes(v.shape[0], v.shape[3]), v.device)
        if state is None or not self.state_types:
            return state
        types = {"sum": accumulator_precision(v.dtype), "input": v.dtype}
        types |= {"moment": torch.float64, "count": torch.int64, "flag": torch.bool}
        return tuple(part.to(types[kind]) for part, kind in zip(state, self.state_types, strict=True))

    def advance(self, q: Tensor, k: Tensor, v: Tensor, state: State) -> tuple[Tensor, State]:
        """`extend` by one token; overridden where a faster form exists."""
        return self.extend(q, k, v, layout_of_masks(q.shape[0], 1, None, None, q.device), state)

    def state_shapes(self, B: int, E: int) -> list[tuple[int | None, ...]]:
        """The shapes of a state's tensors; None means any size."""
        raise NotImplementedError

    def extend(self, q: Tensor, k: Tensor, v: Tensor, where: Layout, state: State | None) -> tuple[Tensor, State]:
        """A causal `attend` from a state, and the state after it."""
        raise NotImplementedError

    def cut_hurdle(self) -> str:
        """Why a sequence cannot be cut over ranks; "" if `attend` takes a `CutLayout`, which adds sums over ranks."""
        return "it does not say how its state crosses"

    def check_recurrent(self) -> None:
        """Raise if there is no recurrent state."""
        check_whole_sequence(self, "prefill or step")
        if not (self.causal and self.recurrent):
            why = "it was built with causal=False" if self.recurrent else "it has no recurrent state"
            raise UnsupportedError(f"{self.name} cannot prefill or step: {why}")


class Mixer(Projections):
    """A core between its projections: x (B,N,M) -> y (B,N,M)."""

    core: Core

    def forward(self, x: Tensor, key_mask: Maybe = None, segments: Maybe = None) -> Tensor:
        """y (B,N,M) of x (B,N,M)."""
        self._check(x)
        return self._merge(self.core(*self._split(x), key_mask=key_mask, segments=segments), x)

    def prefill(self, x: Tensor, key_mask: Maybe = None, state: State | None = None) -> tuple[Tensor, State]:
        """y, and the state after the last real token; `state` continues an earlier prefill or step."""
        self._check(x)
        o, state = self.core.prefill(*self._split(x), key_mask=key_mask, state=state)
        return self._merge(o, x), state

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """y_t (B,1,M) of the next token x_t (B,1,M), and the state after it."""
        self._check(x_t)
        o, state = self.core.step(*self._split(x_t), state)
        return self._merge(o, x_t), state

    def weights(self, x: Tensor, normalize: bool = False, key_mask: Maybe = None, segments: Maybe = None) -> Tensor:
        """Dense attention weights (B,H,N,N) before any norm; `normalize`: rows divided by their sum."""
        self._check(x)
        q, k, _ = self._split(x)
        return self.core.weights(q, k, key_mask, segments, normalize)


def create_attention(
    name: str, *, heads: int, head_dim: int, causal: bool, device: Device = None, dtype: Type = None, **options: Any
) -> Core:
    """Create the core of a mechanism by name: o = core(q, k, v, key_mask=None, segments=None)."""
    cls: type[Core] = ATTENTION[name]
    if not cls.core_form:
        raise UnsupportedError(f"{name} is a mixer only, with its own projections: create_mixer builds it")
    check_attention_count("heads", heads)
    check_attention_count("head_dim", head_dim)
    check_attention_causal(causal)
    with attention_on_device(device):
        return cls(heads, head_dim, causal, parse_attention_options(cls.Options, options, name)).to(dtype)


def create_mixer(
    name: str, *, width: int, heads: int, causal: bool, bias: bool = True, device: Device = None, dtype: Type = None,
    **options: Any,
) -> Mixer:  # fmt: skip
    """Create a mechanism with its projections by name: y = mixer(x, key_mask=None, segments=None).

    `bias` is that of the projections.
    """
    cls: type[Core] = ATTENTION[name]
    check_attention_count("width", width)
    check_attention_count("heads", heads)
    if width % heads:
        raise InputError(f"width {width} and heads {heads}: heads must divide width")
    check_attention_causal(causal)
    with attention_on_device(device):
        mixer = cls.mixer(width, heads, causal, parse_attention_options(cls.Options, options, name))
    for layer in () if bias else (part for part in mixer.children() if isinstance(part, nn.Linear)):
        layer.register_parameter("bias", None)
    return mixer.to(dtype)


def describe_attention(name: str) -> dict[str, Any]:
    """Describe a mechanism and its capabilities."""
    cls: type[Core] = ATTENTION[name]
    about: dict[str, Any] = {key: getattr(cls, key) for key in ("what", "paper", "cost")}
    about |= {"causal": cls.causal_form, "bidirectional": cls.bidirectional_form}
    about |= {"recurrent": cls.recurrent and cls.causal_form, "packed": cls.packed, "any_length": cls.any_length}
    return {**about, "cross": cls.cross and cls.bidirectional_form, "core": cls.core_form}
