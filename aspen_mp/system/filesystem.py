"""Files and folders by their names."""

from __future__ import annotations

import builtins
from os import access, chmod, listdir, makedirs, mkdir, rename, scandir, stat, statvfs, truncate, umask, unlink, utime

__all__ = [
    "access",
    "chmod",
    "listdir",
    "makedirs",
    "mkdir",
    "open",
    "rename",
    "scandir",
    "stat",
    "statvfs",
    "truncate",
    "umask",
    "unlink",
    "utime",
]

open = builtins.open
