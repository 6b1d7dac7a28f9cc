"""Functions of onnxruntime's module that are about the process: versions, loggers, telemetry, threads, devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aspen_mp.client import arguments
from aspen_mp.compat.onnxruntime.errors import Fail, Unavailable

SURFACE: Final = "1.32.0"
"""The version of onnxruntime whose names this package has. Programs choose opsets by it."""

_SEVERITIES: Final = 4
_workers: int | None = None


def get_version_string() -> str:
    """The version of onnxruntime whose surface this is; aspen-mp's own is `aspen_mp.__version__`."""
    return SURFACE


def get_build_info() -> str:
    import aspen_mp

    return f"ORT Build Info: aspen-mp {aspen_mp.__version__}, surface of onnxruntime {SURFACE}"


def get_device() -> str:
    """Return `CPU`: there is no other device."""
    return "CPU"


def has_collective_ops() -> bool:
    return False


def get_ep_devices() -> list[Any]:
    """None: the CPU is not a device of a plug-in."""
    return []


def set_default_logger_severity(severity: int) -> None:
    """Checked, and does nothing: errors are exceptions, and `Runtime(log=…)` says which events become lines."""
    arguments.whole("severity", severity, 0, _SEVERITIES)


def set_default_logger_verbosity(verbosity: int) -> None:
    """Checked, and does nothing."""
    arguments.whole("verbosity", verbosity, -(1 << 31), (1 << 31) - 1)


def set_default_logger_callback(callback: Callable[..., object] | None, *more: Any) -> None:
    """Does nothing: nothing is logged in this process."""


def disable_telemetry_events() -> None:
    """Does nothing: nothing is sent anywhere."""


def enable_telemetry_events() -> None:
    """Does nothing: nothing is sent anywhere."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """Does nothing: no libraries of other devices are used."""


def print_debug_info() -> None:
    """Prints versions and the machine; `aspen-mp doctor` says more."""
    import platform
    from importlib import metadata

    print(f"{get_build_info()}\nPython {platform.python_version()}, {platform.platform()}, {platform.machine()}")
    for package in ("numpy", "onnx"):
        print(f"{package} {metadata.version(package)}")


def set_global_thread_pool_sizes(intra_op_num_threads: int, inter_op_num_threads: int) -> None:
    """Workers of the runtime that sessions share, if it has not started; 0: one for each core. Fail where it was called before.

    The options of all sessions that share it must say `use_per_session_threads = False` from then on, as in onnxruntime."""
    global _workers  # noqa: PLW0603
    if _workers is not None:
        raise Fail("Global thread pools have already been created, cannot replace them")
    arguments.whole("inter_op_num_threads", inter_op_num_threads, 0)
    _workers = arguments.whole("intra_op_num_threads", intra_op_num_threads, 0, arguments.MOST_WORKERS)


def global_workers(options: Any) -> int:
    """The number given to `set_global_thread_pool_sizes`, 0 without a call. Unavailable, a RuntimeError, where a session's options say
    otherwise."""
    own = getattr(options, "use_per_session_threads", True)
    if own and _workers is not None:
        raise Unavailable("use_per_session_threads must be false when using a global thread pool (set_global_thread_pool_sizes)")
    if not own and _workers is None:
        raise Unavailable("without use_per_session_threads, call set_global_thread_pool_sizes before the first session is made")
    return _workers or 0


def create_and_register_allocator(memory_info: Any, arena_config: Any = None) -> None:
    """Does nothing: memory is the runtime's."""


def create_and_register_allocator_v2(provider: str, memory_info: Any, options: Any = None, arena_config: Any = None) -> None:
    """Does nothing: memory is the runtime's."""
