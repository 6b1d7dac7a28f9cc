"""Words for what happened, and marks of what must happen now and then."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable


class History:
    """Lines of a history. Two runs of one seed have the same lines, and so the same digest.

    Attributes:
        marks: How often each rare thing has happened.
        lines: What happened; empty unless it is kept.
    """

    def __init__(self, keep: bool = False, tell: Callable[[str], object] | None = None) -> None:
        self.clock: Callable[[], int] = lambda: 0
        self.hidden = ""
        """A folder whose name differs from run to run."""
        self.lines: list[str] = []
        self.marks: Counter[str] = Counter()
        self.notes = 0
        self._keep = keep
        self._tell = tell
        self._hash = hashlib.blake2b(digest_size=8)

    def note(self, what: str, detail: str = "") -> None:
        if self.hidden and self.hidden in detail:
            detail = detail.replace(self.hidden, "~")
        line = f"{self.clock() / 1e9 - 1000:12.6f}  {what}{' ' if detail else ''}{detail}"
        self.notes += 1
        self._hash.update(line.encode())
        if self._keep:
            self.lines.append(line)
        if self._tell is not None:
            self._tell(line)

    def sometimes(self, mark: str) -> None:
        """Something rare that a night's histories have to reach."""
        self.marks[mark] += 1

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()
