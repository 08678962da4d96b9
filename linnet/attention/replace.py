"""Replace every nn.MultiheadAttention of a model by linnet's, keeping its weights, and undo that."""

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from torch import nn

from linnet.attention.multihead import MultiheadAttention
from linnet.errors import InputError, LinnetError, UnsupportedError
from linnet.registry import ATTENTION

# Options of cross-attention, unless given: positions relate tokens of one sequence, and statistics of a whole sample
# would let a decoder's token depend on later ones.
ACROSS = {"positions": "none", "statistics": "prefix"}
PARAMETERS = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias")


class Change(NamedTuple):
    """One replaced module: its name in the model, the former module, and the new one."""

    name: str
    before: nn.Module
    after: MultiheadAttention

    def __str__(self) -> str:
        core = self.after.core
        given = "".join(f", {key}={getattr(core.options, key)!r}" for key in sorted(core.options.model_fields_set))
        new = sum(parameter.numel() for parameter in core.parameters())
        more = f", {new:,} new parameters" if new else ""
        return f"{self.name}: {_mechanism(self.before)} -> {core.name}{given}{more}"


class Replacement:
    """The changes of one `replace_attention`, which `undo` takes back; `print` shows one line per module."""

    def __init__(self, model: nn.Module, changes: list[Change]) -> None:
        self.model, self.changes = model, changes
        replaced = {id(change.before) for change in changes}
        encoders = [part for part in model.modules() if isinstance(part, nn.TransformerEncoder)]
        touched = [encoder for encoder in encoders if replaced & {id(part) for part in encoder.modules()}]
        self._nesting = [encoder for encoder in touched if encoder.use_nested_tensor]

    def __len__(self) -> int:
        return len(self.changes)

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __str__(self) -> str:
        count = f"{len(self)} attention module{'s' * (len(self) != 1)} replaced; the weights are kept"
        return "\n".join([*map(str, self.changes), count])

    def undo(self) -> None:
        """Restore the former modules, with the current weights."""
        for change in self.changes:
            if self.model.get_submodule(change.name) is not change.after:
                raise LinnetError(f"{change.name} has been replaced again: undo that first")
        for name, before, after in self.changes:
            _share(after, before)
            self.model.set_submodule(name, before, strict=True)
        for encoder in self._nesting:
            encoder.use_nested_tensor = True

    def _do(self) -> None:
        for name, before, after in self.changes:
            _share(before, after)
            self.model.set_submodule(name, after, strict=True)
        for encoder in self._nesting:  # torch would make padded rows nested tensors, which only its own module reads
            encoder.use_nested_tensor = False


def replace_attention(model: nn.Module, name: str, *, modules: str = "*", **options: Any) -> Replacement:
    """Replace each nn.MultiheadAttention of `model` by the mechanism `name`; prints and returns what has changed.

    Encoder and decoder layers of torch are included. Parameters are shared, not copied, so an existing optimizer still
    fits; those that a mechanism adds (such as the angles of `norm`) are new. `modules` selects names by a pattern, such
    as "encoder.*". `options` are those of the mechanism, and `dropout`, by default each module's own. If one
    module cannot be replaced, nothing changes and the error names it. `undo()` of the result reverts everything.
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: it must be an nn.Module")
    if isinstance(model, nn.MultiheadAttention):
        raise InputError("model is itself an nn.MultiheadAttention: linnet.MultiheadAttention takes its state_dict")
    found, _ = _attention_modules(model), ATTENTION[name]  # a wrong name is an error of its own
    if not found:
        raise InputError("model has no nn.MultiheadAttention: use linnet.create_attention or create_mixer in its code")
    chosen = {place: role for place, role in found.items() if fnmatchcase(place, modules)}
    if not chosen:
        raise InputError(f"modules is {modules!r}: it matches none of {', '.join(found)}")
    made: dict[int, MultiheadAttention] = {}  # a module that a model uses in several places gets one replacement
    changes = []
    for place, check in chosen.items():
        before = model.get_submodule(place)
        try:
            after = made[id(before)] if id(before) in made else _successor(before, name, options, check)
        except InputError as error:
            selectable = isinstance(error, UnsupportedError) and len(found) > 1  # no selection mends a wrong name
            other = "; modules= selects others" if selectable else ""
            raise type(error)(f"{place}: {error}{other}") from None
        made[id(before)] = after
        changes.append(Change(place, before, after))
    replacement = Replacement(model, changes)
    replacement._do()
    print(replacement)
    return replacement


Check = Callable[[MultiheadAttention], None]  # raises if the mechanism does not fit the module's role


def _attention_modules(model: nn.Module) -> dict[str, Check]:
    """The attention of a model by name, each with the check of its role in a layer of torch."""
    found: dict[str, Check] = {}
    for name, parent in model.named_modules(remove_duplicate=False):
        decoder = isinstance(parent, nn.TransformerDecoderLayer)
        for part, child in parent._modules.items():  # named_children would show a shared module once
            if isinstance(child, nn.MultiheadAttention | MultiheadAttention):
                causal, cross = decoder and part == "self_attn", decoder and part == "multihead_attn"
                check = _check_causal if causal else _check_cross if cross else _check_nothing
                found[f"{name}.{part}" if name else part] = check
    return found


def _check_nothing(module: MultiheadAttention) -> None:
    """Check nothing here: outside torch's layers, the calls decide."""


def _check_causal(module: MultiheadAttention) -> None:
    if not module.core.causal_form:
        raise UnsupportedError(f"{module.core.name} has no causal form, which a decoder needs")


def _check_cross(module: MultiheadAttention) -> None:
    module.core.check_cross()


def _successor(before: Any, name: str, options: dict[str, Any], check: Check) -> MultiheadAttention:
    """linnet's module in place of `before`, before it shares the parameters."""
    _check_replaceable(before)
    cross = check is _check_cross or not before.kdim == before.vdim == before.embed_dim
    given = {key: value for key, value in options.items() if key != "dropout"}
    for key, value in ACROSS.items() if cross else ():
        if key in ATTENTION[name].Options.model_fields:
            given.setdefault(key, value)
    weight = next(getattr(before, key) for key in PARAMETERS if getattr(before, key, None) is not None)
    after = MultiheadAttention(
        before.embed_dim,
        before.num_heads,
        dropout=options.get("dropout", before.dropout),
        bias=before.in_proj_bias is not None,
        kdim=before.kdim,
        vdim=before.vdim,
        batch_first=before.batch_first,
        device=weight.device,
        dtype=weight.dtype,
        attention=name,
        options=given,
    )
    check(after)
    return after.train(before.training)


def _check_replaceable(before: Any) -> None:
    """Raise for a module with behavior beyond its parameters."""
    if type(before) not in (nn.MultiheadAttention, MultiheadAttention):
        raise UnsupportedError(f"it is a {type(before).__name__}: only nn.MultiheadAttention itself is replaced")
    if getattr(before, "bias_k", None) is not None or getattr(before, "add_zero_attn", False):
        raise UnsupportedError("add_bias_kv and add_zero_attn are not supported")
    if before._forward_hooks or before._forward_pre_hooks or before._backward_hooks or before._backward_pre_hooks:
        raise UnsupportedError("it has hooks, which would be lost: remove them first")


def _share(source: Any, target: Any) -> None:
    """Let one module share the projections, and so the parameters, of another."""
    for name in PARAMETERS:
        if getattr(source, name, None) is not None:
            setattr(target, name, getattr(source, name))
    target.out_proj = source.out_proj
    target.train(source.training)


def _mechanism(module: nn.Module) -> str:
    """The mechanism of torch's module or of linnet's."""
    return module.core.name if isinstance(module, MultiheadAttention) else "softmax"
