"""Models on every node of a Ray cluster: `Predictor` for Ray Data, `deployment` for Ray Serve.

Ray is an extra, ``pip install 'aspen-mp[ray]'``. Importing this package does not import it. `Predictor` works without Ray, too, in other
engines that run a class on batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aspen_mp.ray.predictor import Predictor as Predictor
    from aspen_mp.ray.replica import deployment as deployment

__all__ = ["Predictor", "deployment"]

_WHERE = {"Predictor": "aspen_mp.ray.predictor", "deployment": "aspen_mp.ray.replica"}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'aspen_mp.ray' has no attribute {name!r}")
    import importlib

    value = globals()[name] = getattr(importlib.import_module(_WHERE[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
