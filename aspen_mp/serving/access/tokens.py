"""Bearer tokens: which clients are answered."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aspen_mp.serving.protocol.statuses import Refused
from aspen_mp.shm.errors import ConfigError
from aspen_mp.system import filesystem

LEAST_LENGTH: Final = 16
_SCHEME: Final = "bearer "


def digests(path: Path) -> list[str]:
    """SHA-256 of each token of a file with one a line; empty lines and those that begin with ``#`` are none. ConfigError, OSError."""
    try:
        with filesystem.open(path, encoding="ascii") as file:
            lines = [line.strip() for line in file.read().splitlines()]
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: a token consists of ASCII characters") from None
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise ConfigError(f"{path} has no token. Write one a line, as from: openssl rand -hex 32")
    if any(len(token) < LEAST_LENGTH for token in tokens):
        raise ConfigError(f"{path}: a token has less than {LEAST_LENGTH} characters, and could be guessed. Use: openssl rand -hex 32")
    return [hashlib.sha256(token.encode()).hexdigest() for token in tokens]


class Tokens:
    """The tokens of a server, of which it keeps digests alone. Without any, everybody is answered."""

    def __init__(self, digests: Sequence[str]) -> None:
        self._digests = digests

    @property
    def asked(self) -> bool:
        """Whether clients need one."""
        return bool(self._digests)

    def check(self, authorization: str) -> None:
        """Refused (401) unless this header, as the client sent it, names a token."""
        if not self.knows(authorization):
            raise Refused(401, "this server wants a token. Send it in the header: Authorization: Bearer TOKEN")

    def knows(self, authorization: str) -> bool:
        """Whether this header names a token. Where none is asked for, every header does."""
        if not self._digests:
            return True
        scheme, token = authorization[: len(_SCHEME)], authorization[len(_SCHEME) :].strip()
        found = hashlib.sha256(token.encode()).hexdigest()
        known = [hmac.compare_digest(found, each) for each in self._digests]  # all of them: the time tells nothing
        return scheme.lower() == _SCHEME and any(known)
