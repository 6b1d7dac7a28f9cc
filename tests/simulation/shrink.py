"""Makes a failing history shorter: fewer kinds of trouble, fewer acts, fewer users, fewer steps."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from simulation.story import Options

Run = Callable[[Options], dict[str, Any]]


def what_failed(found: dict[str, Any]) -> str:
    """The first violation, without what differs from history to history: names, numbers and times."""
    if not found["failed"]:
        return ""
    return re.sub(r"[0-9]+(\.[0-9]+)?", "N", found["failed"][0].splitlines()[0])[:120]


def shortest(options: Options, run: Run, tell: Callable[[str], object]) -> Options:
    """The shortest history found that fails in the same way."""
    first = run(options)
    wanted = what_failed(first)
    if not wanted:
        tell("this history does not fail")
        return options

    def fails(tried: Options) -> bool:
        return what_failed(run(tried)) == wanted

    for kind in first["trouble"]:
        tried = dataclasses.replace(options, without=(*options.without, kind))
        if fails(tried):
            options = tried
            tell(f"it fails without {kind}")
    for users in range(1, options.users):
        tried = dataclasses.replace(options, users=users)
        if fails(tried):
            options = tried
            tell(f"it fails with {users} users")
            break
    low, high = 0, 2 * options.acts
    while low + 1 < high:
        middle = (low + high) // 2
        if fails(dataclasses.replace(options, most=middle)):
            high = middle
        else:
            low = middle
    tried = dataclasses.replace(options, most=high)
    if fails(tried):
        options = tried
        tell(f"it fails with {high} acts of each user")
    last = run(options)
    tell(f"it has {last['steps']} steps and {last['virtual_s']:.3f} virtual seconds: {wanted}")
    return options


def command(options: Options, kind: str = "runtime") -> str:
    """The command that runs this history."""
    words = [f"python -m tests.simulation --kind {kind} --seed {options.seed} --trace"]
    ordinary = Options(options.seed)
    changed = [name for name in ("users", "acts", "steps") if getattr(options, name) != getattr(ordinary, name)]
    words += [f"--{name} {getattr(options, name)}" for name in changed]
    if options.streams:
        words.append("--streams")
    if options.most is not None:
        words.append(f"--most {options.most}")
    if options.without:
        words.append(f"--without {','.join(options.without)}")
    return " ".join(words)
