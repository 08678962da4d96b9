"""All promises, in the order of their numbers."""

from tests.prove import (  # noqa: F401  importing them registers their promises
    code,
    crafted,
    damage,
    disk,
    export,
    generation,
    kernels,
    kills,
    lasting,
    leftovers,
    mechanisms,
    network,
    numbers,
    ranks,
    recipes,
    resuming,
    signals,
    sources,
    supply,
)
from tests.prove.promise import PROMISES, Promise


def ordered_promises() -> list[Promise]:
    """All promises: 1, 2, 2b, 3, ..."""
    return sorted(PROMISES.values(), key=lambda each: (int(each.number.rstrip("abc")), each.number))
