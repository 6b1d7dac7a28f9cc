"""What aspen-mp raises. Every class derives from `AspenError`."""

from aspen_mp.shm.errors import (
    AspenError,
    ConfigError,
    ExternalDataError,
    ModelInvalidError,
    ModelParseError,
    PlanError,
    PoisonTile,
    ProtocolError,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ResourceLimitError,
    RuntimeLost,
    RuntimeNotFound,
    RuntimeStopping,
    UnsupportedModelError,
)

__all__ = [
    "AspenError",
    "ConfigError",
    "ExternalDataError",
    "ModelInvalidError",
    "ModelParseError",
    "PlanError",
    "PoisonTile",
    "ProtocolError",
    "RequestCancelled",
    "RequestError",
    "RequestTimeout",
    "ResourceLimitError",
    "RuntimeLost",
    "RuntimeNotFound",
    "RuntimeStopping",
    "UnsupportedModelError",
]
