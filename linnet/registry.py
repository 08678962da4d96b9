"""Registries map names to classes: a file in a package registers its class with `@REGISTRY.add("its_name")`.

The file name is the public name (`folder/file` for a file in a subfolder), so the names are known without importing
anything heavy. If public names have hyphens, file names have underscores instead.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from linnet.errors import unknown_name_error
from linnet.plugins import load_plugins

T = TypeVar("T", bound=Any)


class Registry:
    """The classes of one package by name: `names()` lists them, `registry[name]` imports the file of one."""

    def __init__(self, kind: str, package: str, machinery: tuple[str, ...] = (), joint: str = "_") -> None:
        self.kind = kind
        self.package = package
        self.machinery = machinery
        self.joint = joint  # between the words of a public name
        self._added: dict[str, Any] = {}

    def add(self, name: str) -> Callable[[T], T]:
        """A class decorator: registers a class under a unique `name` and sets its attribute `name`."""

        def register(cls: T) -> T:
            if name in self._added:
                raise ValueError(f"{self.kind} {name!r} is registered twice: {self._added[name]} and {cls}")
            self._added[name] = cls
            cls.name = name
            return cls

        return register

    def names(self) -> list[str]:
        """Sorted names: the files of the package, and the classes that a user or a plug-in has added."""
        load_plugins()
        return sorted({*self.own_names(), *self._added})

    def own_names(self) -> list[str]:
        """Sorted names of the files of the package; imports nothing."""
        spec = find_spec(self.package)
        places = (spec.submodule_search_locations if spec is not None else None) or []
        return sorted(name.replace("_", self.joint) for name in set(_files(places)) - set(self.machinery))

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def __getitem__(self, name: str) -> Any:
        if not isinstance(name, str) or name not in self._added:
            if name not in self.own_names():
                if name not in self.names():
                    raise unknown_name_error(self.kind, name, self.names())
                return self._added[name]
            importlib.import_module(f"{self.package}.{name.replace('/', '.').replace(self.joint, '_')}")
        return self._added[name]


def _files(places: Iterable[str]) -> Iterator[str]:
    """The names of the files in these folders; `folder/file` for files in subfolders."""
    for module in pkgutil.iter_modules(places):
        if module.ispkg:
            inside = [f"{place}/{module.name}" for place in places if Path(place, module.name).is_dir()]
            yield from (f"{module.name}/{name}" for name in _files(inside))
        else:
            yield module.name


ATTENTION = Registry(
    "attention",
    "linnet.attention",
    machinery=("base", "cut", "features", "multihead", "projections", "relative", "replace", "rows"),
)
INSTRUMENT = Registry("instrument", "linnet.instruments", machinery=("analyze", "base", "plots"))
TASK = Registry(
    "task",
    "linnet.tasks",
    machinery=("base", "glue/base", "lra/base", "metrics", "parts", "sentences", "sharded_text", "text"),
)
DEFAULT_TASK = "causal_lm"  # for recipes that name none
STUDY = Registry(
    "study",
    "linnet.studies",
    machinery=(
        "ablation",
        "base",
        "claims",
        "drawn",
        "encoder_texts",
        "fine_tuned",
        "index",
        "perplexity",
        "pictured",
        "records",
        "sweep",
        "systems",
        "trained",
        "unfinished",
        "untrained",
        "watched",
    ),
    joint="-",
)
