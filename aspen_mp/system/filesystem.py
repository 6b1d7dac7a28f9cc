"""Files and folders by their names."""

from __future__ import annotations

import builtins
from os import access, chmod, listdir, makedirs, mkdir, rename, scandir, stat, statvfs, truncate, umask, unlink, utime
from os.path import exists, isdir, isfile, islink, realpath

TYPE_CHECKING = False  # typing costs more to import than the rest of this file
if TYPE_CHECKING:
    from os import PathLike

__all__ = [
    "access",
    "chmod",
    "exists",
    "gettempdir",
    "isdir",
    "isfile",
    "islink",
    "listdir",
    "makedirs",
    "mkdir",
    "mkdtemp",
    "open",
    "realpath",
    "rename",
    "rmtree",
    "scandir",
    "stat",
    "statvfs",
    "truncate",
    "umask",
    "unlink",
    "utime",
]

open = builtins.open


def gettempdir() -> str:
    """Return the folder of temporary files, as `tempfile.gettempdir`."""
    import tempfile  # not before: few processes need it

    return tempfile.gettempdir()


def mkdtemp(prefix: str) -> str:
    """Make a new folder for temporary files, as `tempfile.mkdtemp`. Return its path."""
    import tempfile  # not before: few processes need it

    return tempfile.mkdtemp(prefix=prefix)


def rmtree(path: str | PathLike[str], *, ignore_errors: bool = False) -> None:
    """Remove a folder and all that it holds, as `shutil.rmtree`."""
    import shutil  # not before: few processes need it

    shutil.rmtree(path, ignore_errors=ignore_errors)
