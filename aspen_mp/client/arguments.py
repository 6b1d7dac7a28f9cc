"""Checks of what users give, before anything of it is sent: a planner process would refuse it, too, but cannot say which argument it was.

Each function returns the value as the rest of the package wants it. TypeError for what is of another kind, ValueError for what is out of
range; the message names the argument, what was given and what is allowed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from reprlib import repr as short
from typing import Any, Final, TypeVar

from aspen_mp.control.wire.protocol import LEAST_SHARE, MOST_SHARE

T = TypeVar("T", bound=str)

MOST_WORKERS: Final = 256
MOST_CPU: Final = 65535
MOST_INSTANCES: Final = 32
MOST_NAME: Final = 4096
MOST_RECORDS: Final = (1 << 32) - 1
MOST_PREEMPT_MS: Final = 1000.0
WITHIN: Final = 0.01
"""The error that ``precision="auto"`` may have, unless somebody says otherwise."""
ENDLESS_S: Final = 1e9
"""A time-out of so many seconds (30 years) or more is none: clocks of the system cannot count them all."""


def whole(what: str, value: Any, least: int, most: int | None = None) -> int:
    """An integer, numpy's included; True and False are none."""
    allowed = f"at least {least}" if most is None else f"{least} to {most}"
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, {allowed}, not {short(value)} ({type(value).__name__})") from None
    if number < least or (most is not None and number > most):
        raise ValueError(f"{what} must be {allowed}, not {number}")
    return number


def flag(what: str, value: Any) -> bool:
    """True or False, or numpy's."""
    plain = value.item() if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () else value
    if not isinstance(plain, bool):
        raise TypeError(f"{what} must be True or False, not {short(value)} ({type(value).__name__})")
    return plain


def one_of(what: str, value: Any, allowed: Sequence[T]) -> T:
    """One of these strings."""
    for known in allowed:
        if isinstance(value, str) and value == known:
            return known
    raise ValueError(f"{what} must be {' or '.join(map(repr, allowed))}, not {short(value)}")


def text(what: str, value: Any, most: int = MOST_NAME) -> str:
    """A string that UTF-8 can encode."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a string, not {short(value)} ({type(value).__name__})")
    if len(value) > most:
        raise ValueError(f"{what} must have at most {most} characters, not {len(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be Unicode text, not {short(value)}") from None
    return str(value)


def cpus(what: str, value: Any) -> list[int]:
    """Numbers of CPUs, one at least."""
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a list of CPU numbers such as [0, 2], not {short(value)} ({type(value).__name__})")
    found = [whole(f"a CPU of {what}", cpu, 0, MOST_CPU) for cpu in value]
    if not 1 <= len(found) <= MOST_WORKERS:
        raise ValueError(f"{what} must name 1 to {MOST_WORKERS} CPUs, not {len(found)}")
    return found


def seconds(what: str, value: Any) -> float | None:
    """A time-out; None where there is none, which infinity stands for as well."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number of seconds or None, not {short(value)} ({type(value).__name__})")
    number = float(value)
    if math.isnan(number) or number < 0:
        raise ValueError(f"{what} must be at least 0 seconds, not {number:g}")
    return number if number < ENDLESS_S else None


def deadline(what: str, value: Any) -> int:
    """A time of more than 0 milliseconds, in nanoseconds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number of milliseconds or None, not {short(value)} ({type(value).__name__})")
    number = float(value)
    if math.isnan(number) or number <= 0:
        raise ValueError(f"{what} must be more than 0 milliseconds, not {number:g}")
    return max(1, int(min(number, ENDLESS_S * 1e3) * 1e6))


def share(what: str, value: Any) -> float:
    """A weight of models beside each other."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number, not {short(value)} ({type(value).__name__})")
    number = float(value)
    if not LEAST_SHARE <= number <= MOST_SHARE:  # NaN as well
        raise ValueError(f"{what} must be from {LEAST_SHARE:g} to {MOST_SHARE:g}, not {number:g}")
    return number


def bound(what: str, value: Any) -> float:
    """The largest error that is allowed."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number, not {short(value)} ({type(value).__name__})")
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError(f"{what} must be a number from 0, not {number:g}")
    return number


def grace(what: str, value: Any) -> float:
    """A number of seconds, which may be many."""
    limit = seconds(what, value)
    return ENDLESS_S if limit is None else limit


def milliseconds(what: str, value: Any, most: float) -> float:
    """A number of milliseconds from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{what} must be a number of milliseconds, not {short(value)} ({type(value).__name__})")
    number = float(value)
    if not 0 <= number <= most:
        raise ValueError(f"{what} must be 0 to {most:g} milliseconds, not {number:g}")
    return number


def shapes(what: str, value: Any) -> dict[str, tuple[int, ...]]:
    """Shapes by the names of inputs; whether a model has these inputs is for it to say."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{what} must be a dict {{input name: shape}}, not {short(value)} ({type(value).__name__})")
    return {text(f"a name of {what}", name): _shape(f"{what}[{short(name)}]", shape) for name, shape in value.items()}


def _shape(what: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{what} must be a shape such as (1, 3), not {short(value)} ({type(value).__name__})")
    return tuple(whole(f"a dimension of {what}", dim, 0) for dim in value)
