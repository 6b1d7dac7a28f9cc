"""What a model is loaded from, once or again when the runtime was lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from aspen_mp.client import arguments, named_models
from aspen_mp.control.wire import file_stamp, protocol
from aspen_mp.planner.job.request import PlanRequest
from aspen_mp.shm.bindings._mapping import Memfd
from aspen_mp.shm.errors import ModelParseError, RuntimeLost
from aspen_mp.shm.words import a
from aspen_mp.system import descriptors, filesystem

if TYPE_CHECKING:
    import onnx

    from aspen_mp.client.session import Session


class ModelSource:
    """What a model is loaded from, and how: a path, or bytes or a file in memory, which are kept for another time if `keep`.

    `share`: its part of the core time, as of `Runtime.load`.
    """

    def __init__(
        self,
        path: str,
        data: bytes | Memfd | None,
        name: str,
        request: PlanRequest,
        share: float,
        *,
        keep: bool = False,
    ) -> None:
        self._path = path
        self._data = data
        self._keep = keep
        self._name, self._request, self._share = name, request, share
        self._stamp = _stamp(path) if path and keep else ()

    @property
    def travels(self) -> bool:
        """Whether it can be pickled: a file's path can, bytes would be copied into every pickled handle."""
        return self._data is None

    def load(self, session: Session, progress: Callable[[str, int, int], None] | None) -> protocol.Loaded:
        """RuntimeLost where a file is no longer what it was the first time: other results than before would be worse than none."""
        if self._path and self._keep and _stamp(self._path) != self._stamp:
            raise RuntimeLost(
                f"the runtime was lost, and {self._path} has changed since the model was loaded from it. Load the model again"
            )
        file = None
        try:
            if self._data is not None:
                file = self._data if isinstance(self._data, Memfd) else _memfd(self._data)
                if not self._keep:
                    self._data = None
            return session.load(self._path, -1 if file is None else file.fd, self._name, self._request, self._share, progress)
        finally:
            if file is not None and file is not self._data:
                file.close()


def _stamp(path: str) -> file_stamp.Stamp:
    try:
        return file_stamp.of_contents(filesystem.stat(path))
    except OSError:
        return ()


def _memfd(data: bytes) -> Memfd:
    file = Memfd("aspen-model")
    view = memoryview(data)
    while view:
        view = view[descriptors.write(file.fd, view) :]
    return file


def where(model: str | os.PathLike[str] | bytes | onnx.ModelProto | Memfd) -> tuple[str, bytes | Memfd | None, str]:
    """(absolute path, bytes or a file in memory that holds them, name): a path or bytes, not both."""
    named = named_models.find(model) if isinstance(model, str) else None
    if named is not None:
        collection, name = named
        return "", collection.build(name).SerializeToString(), name
    if isinstance(model, (str, os.PathLike)):
        path = os.path.abspath(os.fsdecode(model))
        if not filesystem.exists(path):
            raise FileNotFoundError(f"there is no model file {path}")
        return arguments.text("the path of a model", path), None, Path(path).stem
    if isinstance(model, Memfd):
        return "", model, "model"
    if isinstance(model, (bytes, bytearray, memoryview)):
        return "", bytes(model), "model"
    if hasattr(model, "SerializeToString") and hasattr(model, "graph"):
        try:
            return "", model.SerializeToString(), model.graph.name[: arguments.MOST_NAME] or "model"
        except ValueError as error:
            raise ModelParseError(f"the model cannot be serialised ({error}). Save it with external data, and load that file") from None
    raise TypeError(f"a model must be a path, bytes, an onnx.ModelProto or 'zoo:NAME', not {a(type(model).__name__)}")
