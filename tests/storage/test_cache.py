"""The cache folder is in the user's home; without a home it is private and temporary."""

import subprocess
import sys
from pathlib import Path

from linnet.storage import cache_folder


def test_the_cache_is_in_the_home_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert cache_folder() == tmp_path / ".cache" / "linnet"


def test_without_a_home_the_cache_is_private_and_ends_with_the_process():
    """Others could fill a folder whose name they can guess."""
    program = """
from pathlib import Path
from linnet.storage import cache_folder
def homeless():
    raise RuntimeError("Could not determine home directory.")
Path.home = homeless
print(cache_folder(), cache_folder() == cache_folder(), oct(cache_folder().stat().st_mode & 0o777))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    folder, same, mode = done.stdout.split()
    assert (same, mode) == ("True", "0o700")
    assert f"you have no home folder: {folder} keeps the data until this process ends" in done.stderr
    assert not Path(folder).exists()
