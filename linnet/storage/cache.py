"""The cache folder, for files that are slow to make: token streams and generated data sets."""

import atexit
import shutil
import tempfile
import warnings
from functools import lru_cache
from pathlib import Path

DAY = 86_400.0  # seconds; a temporary file of this age in a cache is abandoned


def cache_folder() -> Path:
    """The default cache folder, ~/.cache/linnet."""
    try:
        return Path.home() / ".cache" / "linnet"
    except RuntimeError:  # the user has no home, and others could fill a folder whose name they can guess
        return _private_folder()


@lru_cache(maxsize=1)
def _private_folder() -> Path:
    """A private folder that is removed when this process ends."""
    folder = tempfile.mkdtemp(prefix="linnet-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    warnings.warn(f"you have no home folder: {folder} keeps the data until this process ends", stacklevel=4)
    return Path(folder)
