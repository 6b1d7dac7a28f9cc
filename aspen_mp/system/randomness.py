"""Random numbers that nobody can guess."""

from __future__ import annotations

from os import urandom

__all__ = [
    "urandom",
]
