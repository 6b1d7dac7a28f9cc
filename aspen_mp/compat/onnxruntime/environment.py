"""Functions of onnxruntime's module that are about the process: versions, loggers, telemetry, threads, devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from aspen_mp.client import arguments

SURFACE: Final = "1.32.0"
"""The version of onnxruntime whose names this package has. Programs choose opsets by it."""

_SEVERITIES: Final = 4
_workers = 0


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
    """None: the CPU is no device of a plug-in."""
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
    """Workers of the runtime that sessions share, if it has not started; 0: one for each core."""
    global _workers  # noqa: PLW0603
    _workers = arguments.whole("intra_op_num_threads", intra_op_num_threads, 0, arguments.MOST_WORKERS)
    arguments.whole("inter_op_num_threads", inter_op_num_threads, 0)


def global_workers() -> int:
    """What `set_global_thread_pool_sizes` was given last."""
    return _workers


def create_and_register_allocator(memory_info: Any, arena_config: Any = None) -> None:
    """Does nothing: memory is the runtime's."""


def create_and_register_allocator_v2(provider: str, memory_info: Any, options: Any = None, arena_config: Any = None) -> None:
    """Does nothing: memory is the runtime's."""
