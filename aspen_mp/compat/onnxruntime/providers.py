"""Execution providers: there is one. Other names are checked as onnxruntime checks them, and warned of."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aspen_mp.compat.onnxruntime.errors import Unavailable

CPU: Final = "CPUExecutionProvider"
_OTHERS: Final = (
    *("Tensorrt", "CUDA", "MIGraphX", "OpenVINO", "Dnnl", "VitisAI", "QNN", "Nnapi", "VSINPU", "Js", "CoreML", "Dml"),
    *("Rknpu", "WebNN", "WebGpu", "Xnnpack", "CANN", "Azure", "NvTensorRTRTX", "ROCM", "ACL", "ArmNN", "Tvm", "SNPE"),
)
KNOWN: Final = (*(f"{name}ExecutionProvider" for name in _OTHERS), CPU)


def get_all_providers() -> list[str]:
    """Every name that onnxruntime knows, the CPU's last."""
    return list(KNOWN)


def get_available_providers() -> list[str]:
    """The only provider: the CPU."""
    return [CPU]


def check_and_normalize_provider_args(
    providers: Any, provider_options: Any, available_provider_names: Sequence[str], *, stacklevel: int = 2
) -> tuple[list[str], list[dict[str, str]]]:
    """Names of providers and the options of each, in the order given. ValueError for names that onnxruntime does not take either; a warning
    for names that do not exist here, or occur twice."""
    if providers is None:
        return [], []
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError(f"'providers' should be a sequence of names, not {providers!r} ({type(providers).__name__})")
    pairs = _with_options(providers, provider_options)
    found: dict[str, dict[str, str]] = {}
    for name, options in pairs:
        if name in found:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=stacklevel)
            continue
        if name not in available_provider_names:
            there = ", ".join(available_provider_names)
            text = f"Specified provider '{name}' is not in available provider names. aspen-mp runs on the CPU; available: '{there}'"
            warnings.warn(text, stacklevel=stacklevel)
        found[name] = {str(key): str(value) for key, value in options.items()}
    return list(found), list(found.values())


def _with_options(providers: Sequence[Any], options: Any) -> list[tuple[str, Mapping[Any, Any]]]:
    if options is not None:
        if not isinstance(options, Sequence) or len(options) != len(providers):
            raise ValueError("'provider_options' must be a sequence, of as many as 'providers'")
        if not all(isinstance(name, str) for name in providers) or not all(isinstance(entry, Mapping) for entry in options):
            raise ValueError("with 'provider_options', 'providers' must be names and the options dicts")
        return list(zip(providers, options, strict=True))
    pairs: list[tuple[str, Mapping[Any, Any]]] = []
    for provider in providers:
        match provider:
            case str():
                pairs.append((provider, {}))
            case (str(), Mapping()) if isinstance(provider, tuple):
                pairs.append(provider)
            case _:
                raise ValueError(f"providers must be names or (name, options) pairs, not {provider!r} ({type(provider).__name__})")
    return pairs


def known(providers: Sequence[str]) -> None:
    """Unavailable, a RuntimeError, for a name that nobody knows."""
    for name in providers:
        if name not in KNOWN:
            raise Unavailable(f"Unknown Provider Type: {name}")
