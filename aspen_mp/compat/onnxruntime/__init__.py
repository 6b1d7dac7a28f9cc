"""onnxruntime's module: ``import aspen_mp.compat.onnxruntime as ort`` in programs that were written for it.

Every public name of onnxruntime is here; SURFACE.md says which of them work, which do nothing, and which raise. Names are imported when
they are first used. `aspen_mp` has the same names.
"""

from __future__ import annotations

from typing import Any

from aspen_mp.compat.onnxruntime.environment import SURFACE
from aspen_mp.compat.onnxruntime.names import WHERE

__version__ = SURFACE
__all__ = ["__version__", *sorted(WHERE), "cuda_version", "package_name", "version"]  # noqa: PLE0604

package_name = "aspen-mp"
version = SURFACE
cuda_version = ""


def __getattr__(name: str) -> Any:
    import importlib

    if name not in WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
