"""An error in the planner process while it serves a client is told to this client alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

from aspen_mp.control.wire.connection import Connection
from aspen_mp.shm.errors import AspenError, ProtocolError, ResourceLimitError
from aspen_mp.shm.scarcity import is_scarce, reason


def guarded(connection: Connection, request: int | None, act: Callable[[], None]) -> None:
    """Runs `act`, and answers the request with what goes wrong in it. `request` None: the client has not been greeted, and cannot go on."""
    answer = connection.refuse if request is None else partial(connection.fail, request)
    try:
        act()
    except ProtocolError as error:
        connection.refuse(error)
    except AspenError as error:
        answer(error)
    except Exception as error:
        if is_scarce(error):
            answer(ResourceLimitError(f"the planner process has no more descriptors or memory: {reason(error)}"))
            return
        sys.excepthook(type(error), error, error.__traceback__)
        answer(AspenError(f"internal error of the planner process: {type(error).__name__}: {error}"))
