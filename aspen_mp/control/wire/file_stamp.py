"""A file's stamp: numbers of its status that change when its contents do."""

from __future__ import annotations

import os

Stamp = tuple[int, ...]


def of_contents(info: os.stat_result) -> Stamp:
    """Device, inode, size and time of the last write: the file is the same as long as these are."""
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def of_change(info: os.stat_result) -> Stamp:
    """`of_contents`, and the time of the last change, which nobody can set: it changes with the file's names and mode, too."""
    return (*of_contents(info), info.st_ctime_ns)


def contents(change: Stamp) -> Stamp:
    """The stamp of `of_contents`, from that of `of_change`."""
    return change[:-1]
