"""Promise 21: what linnet is made of is known."""

import re
import subprocess
import sys
import tomllib
import zipfile

from tests.prove.promise import Trials, promise
from tests.prove.runs import ROOT

MOST = 8  # direct dependencies


@promise(
    "21",
    "What is installed is known: every locked package has hashes, there are few, and the wheel holds only linnet.",
    "Every line of the lock file, the direct dependencies, and every name in the wheel. torch comes from a file of its "
    "own, since its build for CPUs is not on the index.",
)
def known_supply(trials: Trials) -> None:
    """Lock file, dependencies, wheel."""
    lines = (ROOT / "requirements.lock").read_text().replace("\\\n", "").splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            hashed = re.fullmatch(r"[a-z0-9-]+==[0-9.]+\S*( +--hash=sha256:[0-9a-f]{64})+", line)
            trials.check(bool(hashed), f"{line[:60]} has no hash")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    trials.check(len(project["dependencies"]) <= MOST, f"{len(project['dependencies'])} direct dependencies")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(trials.folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = trials.folder.glob("*.whl")
    for name in zipfile.ZipFile(wheel).namelist():
        ours = name.startswith(("linnet/", "linnet_attention-"))
        trials.check(ours and not name.endswith((".so", ".pyc")), f"{name} is in the wheel")
    trials.skipped.append("known holes of the packages: pip-audit needs the network")
