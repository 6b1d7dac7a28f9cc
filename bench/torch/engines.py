"""The ways to run a PyTorch module that are compared: each turns a module into something to call.

Caches of compiled code go to a folder that the parent names. So a first process finds none and a second finds the first one's.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aspen_mp.bench.peers.rounds import OURS

Call = Callable[..., Any]
Prepare = Callable[[Any, str | None, Path], Call]
"""Takes the module, the name of a runtime that several processes share or None, and a folder for caches."""

EAGER, INDUCTOR, FLOOR, AHEAD = "eager", "inductor", "traced", "aspen-mp-ahead"


def _eager(module: Any, runtime: str | None, caches: Path) -> Call:
    del runtime, caches
    return module  # type: ignore[no-any-return]


def _traced(module: Any, runtime: str | None, caches: Path) -> Call:
    del runtime, caches
    import torch

    return torch.compile(module, backend="aot_eager")  # type: ignore[no-any-return]


def _inductor(module: Any, runtime: str | None, caches: Path) -> Call:
    del runtime, caches
    import torch

    return torch.compile(module)  # type: ignore[no-any-return]


def _frozen(module: Any, runtime: str | None, caches: Path) -> Call:
    import torch._inductor.config as inductor

    inductor.freezing = True
    return _inductor(module, runtime, caches)


def _tuned(module: Any, runtime: str | None, caches: Path) -> Call:
    del runtime, caches
    import torch
    import torch._inductor.config as inductor

    inductor.freezing = True
    return torch.compile(module, mode="max-autotune")  # type: ignore[no-any-return]


def _openvino(module: Any, runtime: str | None, caches: Path) -> Call:
    del runtime
    import openvino.torch  # noqa: F401
    import torch

    config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    options = {"device": "CPU", "model_caching": True, "cache_dir": str(caches), "config": config}
    return torch.compile(module, backend="openvino", options=options)  # type: ignore[no-any-return]


def _aspen(module: Any, runtime: str | None, caches: Path) -> Call:
    del caches
    import torch

    if runtime is not None:  # one of several processes: PyTorch's own copy of the weights goes
        import aspen_mp

        return aspen_mp.optimize(module, runtime=runtime, release=True)  # type: ignore[no-any-return]
    return torch.compile(module, backend="aspen_mp")  # type: ignore[no-any-return]


def _ahead(module: Any, runtime: str | None, caches: Path) -> Call:
    """The first process writes the file, in its first call. Processes after it load the file and never trace."""
    import aspen_mp.torch

    file = caches / "ahead.onnx"
    loaded: Call | None = None

    def run(*args: Any, **keywords: Any) -> Any:
        nonlocal loaded
        if loaded is None:
            if not file.exists():
                caches.mkdir(parents=True, exist_ok=True)
                aspen_mp.torch.compile_ahead(module, keywords or args, file)
            loaded = aspen_mp.torch.load_ahead(file, runtime=runtime)
        return loaded(*args, **keywords)

    return run


@dataclass(frozen=True, slots=True)
class Engine:
    """`module`: what must be importable; `package`: whose version is reported; `settings`: what differs from the defaults."""

    name: str
    module: str
    package: str
    prepare: Prepare
    settings: str

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec("torch") is not None and importlib.util.find_spec(self.module) is not None

    @property
    def version(self) -> str:
        return importlib.metadata.version(self.package)


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(OURS, "aspen_mp", "aspen-mp", _aspen, 'torch.compile(module, backend="aspen_mp")'),
        Engine(EAGER, "torch", "torch", _eager, "the module itself"),
        Engine(INDUCTOR, "torch", "torch", _inductor, "torch.compile(module)"),
        Engine(FLOOR, "torch", "torch", _traced, 'torch.compile(module, backend="aot_eager"): traced, then run by PyTorch'),
        Engine("inductor-frozen", "torch", "torch", _frozen, "torch.compile(module) with weights frozen"),
        Engine("inductor-tuned", "torch", "torch", _tuned, 'torch.compile(module, mode="max-autotune") with weights frozen'),
        Engine(AHEAD, "aspen_mp", "aspen-mp", _ahead, "aspen_mp.torch.load_ahead of a file that compile_ahead wrote"),
        Engine("openvino", "openvino", "openvino", _openvino, 'torch.compile(module, backend="openvino"), float32, latency hint'),
    )
}
DEFAULT = (OURS, EAGER, INDUCTOR, "inductor-frozen", "openvino")
"""Engines that are measured where nobody says which: tuning takes minutes for each network."""


def use_caches(folder: Path) -> None:
    """Make every engine keep what it compiles below `folder`; before PyTorch is imported."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "inductor")
    os.environ["ASPEN_MP_CACHE"] = str(folder / "plans")
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compiler processes that is still there while others are measured


def pin(cores: list[int]) -> None:
    """One thread of PyTorch's a core; read when its OpenMP library is loaded, so before PyTorch is imported."""
    os.sched_setaffinity(0, cores)
    os.environ["OMP_NUM_THREADS"] = str(len(cores))
    os.environ["OMP_PROC_BIND"] = "true"
    os.environ["OMP_PLACES"] = ",".join(f"{{{core}}}" for core in cores)
