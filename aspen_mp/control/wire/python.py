"""Chooses the Python that children run, and where they look for modules. Every child of ours that is Python is started with a command from
here.

A child looks for modules where its parent does, with two exceptions. So a file called `select.py` in a folder of models takes no module's
place. The working directory is left out, unless `PYTHONPATH` names it. The folder of the program comes last. A working directory that holds
aspen_mp itself comes last, too.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from aspen_mp.shm.errors import ConfigError
from aspen_mp.system import filesystem

VARIABLE: Final = "ASPEN_MP_PYTHON"
"""The environment variable that names the interpreter of children."""
_PROBE_S: Final = 10.0
"""How long a program may take to say that it is a Python. A program that is none may wait for ever."""
_SAYS: Final = "import sys; print(sys.implementation.cache_tag, sys.abiflags)"
_LOOKS_RIGHT: Final = re.compile(r"\.?python[\w.-]*", re.IGNORECASE)
_FIRST: Final = "import sys;sys.path[:]=dict.fromkeys([*{path!r},*sys.path]);del sys.argv[0];"


def command(module: str, *arguments: str, function: str = "main") -> list[str]:
    """The command that calls a function of a module. `sys.argv` is the module's name and `arguments`, as after ``python -m``."""
    return running(f"from {module} import {function};{function}()", module, *arguments)


def running(code: str, *argv: str) -> list[str]:
    """The command that runs `code` with this `sys.argv`."""
    ignored = [flag for flag, given in (("-E", sys.flags.ignore_environment), ("-s", sys.flags.no_user_site)) if given]
    return [interpreter(), "-P", *ignored, "-c", _FIRST.format(path=search_path()) + code, *argv]


def search_path() -> list[str]:
    """The folders in which children look for modules. Those relative to a working directory that has been removed lead nowhere."""
    asked = {os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder}
    here = program = ""
    with suppress(FileNotFoundError):
        here = os.getcwd()
    with suppress(AttributeError, FileNotFoundError):  # an interactive Python has no file
        file = sys.modules["__main__"].__file__
        program = os.path.dirname(os.path.realpath(file)) if file else ""
    first: list[str] = []
    last: list[str] = []
    for each in sys.path:
        with suppress(FileNotFoundError):
            folder = os.path.abspath(each)
            if folder in asked or folder not in {here, program}:
                first.append(folder)
            elif folder == program or os.path.isdir(os.path.join(folder, "aspen_mp")):
                last.append(folder)
    return first + last


@functools.cache
def interpreter() -> str:
    """The Python that children run: of this version, and of this virtual environment if there is one. ConfigError where there is none.

    In most programs this is `sys.executable`. Where Python is embedded, that is another program, or empty.
    """
    if named := os.environ.get(VARIABLE):
        import shutil  # not before: it takes long, and is seldom needed

        found = shutil.which(named)
        if found is None or not _says_so(found):
            raise ConfigError(f"{VARIABLE} is {named!r}, which is not a Python {_version()} that can be run. {_ADVICE}")
        return os.path.abspath(found)
    odd: list[str] = []
    for candidate in _candidates():
        if not filesystem.access(candidate, os.X_OK):
            continue
        if not _LOOKS_RIGHT.fullmatch(os.path.basename(candidate)):
            odd.append(candidate)
        elif os.path.basename(candidate) == f"python{_version()}" or _is_this(candidate) or _says_so(candidate):
            return candidate
    # Last, as such a program may do anything with the arguments of a Python: a frozen program would start once more.
    for candidate in odd:
        if not getattr(sys, "frozen", False) and _says_so(candidate):
            return candidate
    raise ConfigError(
        f"aspen-mp starts processes that run Python {_version()}, and found none: sys.executable is {sys.executable!r}. {_ADVICE}"
    )


_ADVICE: Final = f"Set {VARIABLE} to the path of the Python in which aspen-mp is installed"


def _version() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def _candidates() -> Iterator[str]:
    """Programs that may be this Python, the likeliest first. The files .pth of a virtual environment count only for its own Python."""
    name = f"python{_version()}"
    yield sys.executable or ""
    if sys.exec_prefix != sys.base_exec_prefix:
        yield os.path.join(sys.exec_prefix, "bin", name)
    yield getattr(sys, "_base_executable", None) or ""
    yield os.path.join(sys.base_exec_prefix, "bin", name)
    import sysconfig  # not before: it takes long, and is seldom needed

    yield os.path.join(sysconfig.get_config_var("BINDIR") or "", name)
    yield os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.__file__))), "bin", name)


def _is_this(candidate: str) -> bool:
    """Whether this process runs the program."""
    try:
        return os.path.samefile(candidate, "/proc/self/exe")
    except OSError:
        return False


def _says_so(candidate: str) -> bool:
    """Whether the program, when it is run, says that it is a Python like this one."""
    import subprocess

    try:
        done = subprocess.run(
            [candidate, "-I", "-S", "-c", _SAYS],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PROBE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return False
    return done.stdout.split() == f"{sys.implementation.cache_tag} {sys.abiflags}".encode().split()
