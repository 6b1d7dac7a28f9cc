"""Puts the modules that are compiled for simulations in place of the ordinary ones.

`tests` has to be on the path.

    from simulation.native import modules
    modules.enable()  # before anything of aspen_mp is imported
    from simulation.native import _hooks
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from simulation.native import build


class _Finder:
    """Finds the compiled modules before any other finder does."""

    def __init__(self, files: dict[str, Path]) -> None:
        self.files = files

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        file = self.files.get(name)
        return file and spec_from_file_location(name, file, loader=ExtensionFileLoader(name, str(file)))


def enable() -> None:
    """Compile what is not up to date, load the hooks, and have `import` find the simulation's modules from now on.

    Raises:
        RuntimeError: something of aspen_mp has been imported already.
        build.NotBuiltError: there is no ordinary build.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    early = sorted(name for name in sys.modules if name == "aspen_mp" or name.startswith("aspen_mp."))
    if early:
        raise RuntimeError(f"{early[0]} has been imported already, with the ordinary modules: enable the simulation's first")
    build.build()
    sys.meta_path.insert(0, _Finder({module.name: build.place(module) for module in build.MODULES}))
    flags = sys.getdlopenflags()
    sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)  # the others find its functions by their names
    try:
        importlib.import_module(build.HOOKS.name)
    finally:
        sys.setdlopenflags(flags)
