"""English for messages: numbers with their nouns, articles, and the nearest of several names."""

from __future__ import annotations

from collections.abc import Iterable


def count(n: int, what: str) -> str:
    """``1 worker``, ``2 workers``."""
    return f"{n} {what}{'' if n == 1 else 's'}"


def a(noun: str) -> str:
    """``a list``, ``an int``, ``an ndarray``."""
    vowel = noun.lower().startswith(("a", "e", "i", "o", "u", "nd"))
    return f"{'an' if vowel else 'a'} {noun}"


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is spelt most like `name`; None where none is like it."""
    from difflib import get_close_matches

    known = {other.lower(): other for other in names}
    found = get_close_matches(name.lower(), known, 1)
    return known[found[0]] if found else None
