"""Puts prebuilt CPU kernels into a wheel, if LINNET_PREBUILT is 1 in the environment: `make wheels` sets it."""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PrebuiltKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the kernels and marks the wheel with its platform; without the variable, the wheel stays pure."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the libraries to the wheel that is being built."""
        if os.environ.get("LINNET_PREBUILT") != "1" or version != "standard":
            return
        sys.path.insert(0, self.root)  # needs torch, so such a wheel is built without isolation
        from linnet.ops.cpu.build import build_prebuilt

        place = Path(self.root, "build", "prebuilt")
        shutil.rmtree(place, ignore_errors=True)
        for library in build_prebuilt(place):
            build_data["force_include"][str(library)] = f"linnet/ops/cpu/prebuilt/{library.name}"
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
