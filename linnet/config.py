"""Configuration: frozen sections without unknown keys, and one line for what is wrong in them."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from linnet.errors import InputError, unknown


class Section(BaseModel):
    """A table of settings: frozen, and a misspelt key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


S = TypeVar("S", bound=Section)


def parse_section(cls: type[S], table: Mapping[str, Any], name: str) -> S:
    """`table` as a `cls`, or a one-line error that names the key, the value and what is allowed."""
    for key in table:
        if key not in cls.model_fields:
            if not cls.model_fields:
                raise InputError(f"{name} has no options: {key}={table[key]!r} is not allowed")
            raise unknown(f"key of {name}", key, cls.model_fields)
    try:
        return cls(**table)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in (name, *first["loc"]))
        if first["type"] == "missing":
            raise InputError(f"{place} is missing") from None
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(f"{place} is {first['input']!r}: {message}") from None
