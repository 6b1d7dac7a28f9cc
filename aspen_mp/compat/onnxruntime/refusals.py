"""Names of onnxruntime's that have no counterpart: using one raises `Unsupported` and says what to do instead."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from aspen_mp.compat.onnxruntime.errors import Unsupported

_COMPILED: Final = "aspen-mp cannot read or write compiled models (EPContext). Load the ONNX model; the plan cache keeps its plan"
_PACKAGES: Final = "aspen-mp cannot read model packages. Load the ONNX model that is in them"
_PLUGINS: Final = "aspen-mp runs on the CPU and cannot load execution providers. Leave this call out"

ADVICE: Final = {
    "ModelPackage": _PACKAGES,
    "ModelPackageComponentContext": _PACKAGES,
    "ModelPackageContext": _PACKAGES,
    "ModelPackageOptions": _PACKAGES,
    "OrtEpContextData": _COMPILED,
    "OrtEpContextDataBuffer": _COMPILED,
    "OrtEpDevice": _PLUGINS,
    "OrtHardwareDevice": _PLUGINS,
    "OrtSyncStream": _PLUGINS,
}
"""Classes, and why none can be made."""


class AttributeRefused(Unsupported, AttributeError):
    """An attribute of a class that does not exist here."""


class _Refused(type):
    """The type of a class that can be named, for isinstance and annotations, and not used."""

    def __call__(cls, *args: Any, **named: Any) -> NoReturn:
        raise Unsupported(f"{cls.__name__}: {ADVICE[cls.__name__]}")

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeRefused(f"{cls.__name__}.{name}: {ADVICE[cls.__name__]}")


def __getattr__(name: str) -> Any:
    if name not in ADVICE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = _Refused(name, (), {"__doc__": f"Raises Unsupported: {ADVICE[name]}.", "__module__": __name__})
    globals()[name] = made
    return made


def register_execution_provider_library(registration_name: str, library_path: str) -> NoReturn:
    """Raises Unsupported: no execution providers are loaded."""
    raise Unsupported(_PLUGINS)


def unregister_execution_provider_library(registration_name: str) -> NoReturn:
    """Raises Unsupported: no execution providers are loaded."""
    raise Unsupported(_PLUGINS)
