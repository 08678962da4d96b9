"""Plug-ins: attentions, tasks, instruments and studies of other packages, from the entry points `linnet.plugins`.

A package names a module in its pyproject.toml, and linnet imports it at the first lookup in a registry:

    [project.entry-points."linnet.plugins"]
    mine = "my_package.attention"
"""

import sys
from importlib.metadata import entry_points

GROUP = "linnet.plugins"
_loaded: list[str] = []  # names, so that every plug-in is imported once


def load_plugins() -> None:
    """Import every plug-in, whose classes register themselves; a plug-in that fails prints one line and is skipped."""
    if _loaded:
        return
    _loaded.append(GROUP)  # before the imports, because a plug-in may look up names
    for plugin in sorted(entry_points(group=GROUP), key=lambda found: found.name):
        try:
            plugin.load()
            _loaded.append(plugin.name)
        except Exception as error:  # noqa: BLE001  another package may raise anything
            package = f" of {plugin.dist.name}" if plugin.dist is not None else ""
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"linnet: warning: plug-in {plugin.name}{package} cannot be imported: {why}", file=sys.stderr)
