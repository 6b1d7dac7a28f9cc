"""Where a client segment (`shm/protocol/layout.h`) has its slots."""

from __future__ import annotations

from typing import Final

from aspen_mp.shm.bindings._control import CLIENT_BYTES, SLOTS

SLOT_BYTES: Final = 128 + 256
FIRST_SLOT: Final = CLIENT_BYTES - SLOTS * SLOT_BYTES
"""Slots are the last that a client segment has."""
