"""Warnings at the start of a server that strangers could reach or read the secrets of."""

from __future__ import annotations

import ipaddress
import stat
import sys
from pathlib import Path

from aspen_mp.system import filesystem


def warnings(address: str, token_file: Path | None, *, tls: bool) -> list[str]:
    """A sentence for each thing that is open to others. `address`: the one that the server listens at."""
    host = ipaddress.ip_address(address.partition("%")[0])
    found = []
    if not host.is_loopback and token_file is None:
        found.append(f"everybody who reaches {address} is answered. Use --token-file, or listen at 127.0.0.1 behind a proxy")
    if not host.is_loopback and token_file is not None and not tls:
        found.append(f"tokens come unencrypted to {address}. Use --certificate and --key, or listen at 127.0.0.1 behind a proxy with TLS")
    if token_file is not None and (mode := stat.S_IMODE(filesystem.stat(token_file).st_mode)) & 0o077:
        found.append(f"others may read {token_file}, whose mode is {mode:04o}. Use: chmod 600 {token_file}")
    return found


def warn(address: str, token_file: Path | None, *, tls: bool) -> None:
    """Says each of `warnings` once, on standard error."""
    for text in warnings(address, token_file, tls=tls):
        print(f"aspen-mp serve: warning: {text}", file=sys.stderr, flush=True)
