"""Named tensors as safetensors bytes: written part by part without copying the whole, parsed without executing code.

The format is a length (8 bytes), a JSON header, and the data of all tensors one after the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from linnet.errors import LinnetError
from linnet.storage.state import state_fault, unique_state_keys

if TYPE_CHECKING:
    from torch import Tensor, dtype

# The torch types that can be stored, in the order of the safetensors library: the widest comes first in a file.
TYPES = {
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F32": "float32",
    "U32": "uint32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "U16": "uint16",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
ORDER = {stored: rank for rank, stored in enumerate(TYPES)}
LONGEST_HEADER = 100_000_000  # bytes, as in the safetensors library

Size = Annotated[int, Field(ge=0, le=2**62)]


class _Entry(BaseModel):
    """The header entry of one tensor."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    dtype: str
    shape: list[Size]
    data_offsets: Annotated[list[Size], Field(min_length=2, max_length=2)]


_HEADER = TypeAdapter(dict[str, _Entry])


def pack_tensors(tensors: Mapping[str, Tensor]) -> tuple[Iterator[bytes | memoryview], dict[str, str]]:
    """The parts of a safetensors file, yielded one at a time, and the ties: a shared name -> the stored name."""
    stored: dict[str, Tensor] = {}
    tied: dict[str, str] = {}
    places: dict[tuple[object, ...], str] = {}
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in places:
            tied[name] = places[place]
        else:
            places[place], stored[name] = name, tensor
    types = {name: _stored_type(name, tensor.dtype) for name, tensor in stored.items()}
    order = sorted(stored, key=lambda name: (ORDER[types[name]], name))
    return _parts({name: stored[name] for name in order}, types), tied


def _stored_type(name: str, dtype: dtype) -> str:
    import torch

    found = next((key for key, value in TYPES.items() if getattr(torch, value) == dtype), None)
    if found is None:
        raise LinnetError(f"{name} is of type {dtype}: linnet stores {', '.join(TYPES.values())}")
    return found


def _parts(stored: Mapping[str, Tensor], types: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The header, then the bytes of each tensor; a contiguous CPU tensor is not copied."""
    import torch

    entries, end = {}, 0
    for name, tensor in stored.items():
        start, end = end, end + tensor.nbytes
        entries[name] = {"dtype": types[name], "shape": list(tensor.shape), "data_offsets": [start, end]}
    header = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(8, "little") + header
    for tensor in stored.values():
        flat = tensor.resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        yield flat.view(torch.uint8).numpy().data


def unpack_tensors(data: bytearray, tied: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of `pack_tensors`, as views of `data`; tied names share one tensor.

    Raises LinnetError for bytes that linnet would not have written.
    """
    try:
        tensors = _tensors(data)
        both = tensors.keys() & tied.keys()
        if both:
            raise ValueError(f"{min(both)} is stored and tied")
        return tensors | {name: tensors[stored] for name, stored in tied.items()}
    except ValidationError as error:
        raise LinnetError(f"these are not tensors that linnet wrote: {state_fault(error)}") from error
    except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise LinnetError(f"these are not tensors that linnet wrote: {type(error).__name__}: {error}") from error


def _tensors(data: bytearray) -> dict[str, Tensor]:
    """Views of the data after the header; raises unless every byte belongs to exactly one tensor."""
    import torch

    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, LONGEST_HEADER):
        raise ValueError(f"the header has {length} bytes, the file {len(data)}")
    entries = _HEADER.validate_python(json.loads(data[8 : 8 + length], object_pairs_hook=unique_state_keys))
    start, tensors, end = 8 + length, {}, 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        if entry.dtype not in TYPES:
            raise ValueError(f"{name} is of the type {entry.dtype!r}")
        kind: dtype = getattr(torch, TYPES[entry.dtype])
        begin, count = end, math.prod(entry.shape)
        end = begin + count * kind.itemsize
        if entry.data_offsets != [begin, end] or start + end > len(data):
            raise ValueError(f"the place of {name} is {entry.data_offsets}")
        numbers = memoryview(data)[start + begin : start + end]
        flat = torch.frombuffer(numbers, dtype=kind) if count else torch.empty(0, dtype=kind)
        tensors[name] = flat.view(entry.shape)
    if start + end != len(data):
        raise ValueError(f"{len(data) - start - end} bytes belong to no tensor")
    return tensors
