"""Samples: inputs of a model that somebody gives so that it can be tried on them, as files or as arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from aspen_mp.client.signature import ValueInfo
from aspen_mp.shm.errors import RequestError
from aspen_mp.shm.words import count

Array: TypeAlias = npt.NDArray[Any]
Feeds: TypeAlias = dict[str, Array]
Given: TypeAlias = str | os.PathLike[str] | Iterable[Mapping[str, Any] | Any]
FORMS: Final = (".npz", ".npy", ".pb")
HOW: Final = (
    "Save each sample as an .npz file with an array for each input, or as a folder with NAME.npy for each input. "
    "A model of one input also takes .npy and .pb files"
)


class Samples(Sequence[Feeds]):
    """Samples of a model. Each is read from its file, and compared with the model's inputs, when it is asked for.

    `given`: a folder, a file, or an iterable of {input: array}; for a model of one input also of arrays. A folder's samples come in the
    order of their names. A lone file may hold many samples along the first dimension of its arrays. RequestError
    where there are none.
    """

    def __init__(self, given: Given, inputs: Sequence[ValueInfo]) -> None:
        self._inputs = [info for info in inputs if info.kind == "tensor"]
        where = f"in {os.fspath(given)}" if isinstance(given, (str, os.PathLike)) else "among those given"
        self._entries: list[tuple[str, Any]] = _files(Path(given)) if isinstance(given, (str, os.PathLike)) else _arrays(given)
        if not self._entries:
            raise RequestError(f"there are no samples {where}. {HOW}")
        if len(self._entries) == 1:
            self._entries = self._cut(*self._entries[0])

    @property
    def labels(self) -> list[str]:
        """A name of each sample: of its file, or of its place."""
        return [label for label, _ in self._entries]

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Feeds: ...
    @overload
    def __getitem__(self, index: slice) -> list[Feeds]: ...
    def __getitem__(self, index: int | slice) -> Feeds | list[Feeds]:
        if isinstance(index, slice):
            return [self._read(*entry) for entry in self._entries[index]]
        return self._read(*self._entries[index])

    def split(self, held_out: int | None = None) -> tuple[list[int], list[int]]:
        """Return the numbers of the samples to choose by, and of those to judge by. None holds every fifth one out, from the end; a lone
        sample serves for both. RequestError where none would be left to choose by."""
        n = len(self)
        if held_out is None:
            judged = list(range(n - 1, 0, -5))[::-1]
            return ([k for k in range(n) if k not in judged], judged) if n > 1 else ([0], [0])
        if held_out >= n:
            raise RequestError(
                f"{count(held_out, 'sample')} cannot be held out of {n}. Give more samples, or hold {count(max(n - 1, 0), 'sample')} out"
            )
        chosen, judged = list(range(n - held_out)), list(range(n - held_out, n))
        return chosen, judged or chosen

    def _read(self, label: str, entry: Any) -> Feeds:
        return self._checked(label, self._loaded(label, entry))

    def _loaded(self, label: str, entry: Any) -> Feeds:
        if isinstance(entry, Path):
            entry = _of_folder(entry) if entry.is_dir() else _of_file(entry)
        if isinstance(entry, Mapping):
            return {str(name): np.asarray(value) for name, value in entry.items()}
        needed = [info.name for info in self._inputs if not info.optional]
        if len(needed) != 1:
            raise RequestError(
                f"{label} is one array, and the model has the inputs {', '.join(i.name for i in self._inputs)}. "
                "Give an array for each, by its name"
            )
        return {needed[0]: np.asarray(entry)}

    def _checked(self, label: str, feeds: Feeds) -> Feeds:
        """In the model's order and of its types. RequestError for names, types and shapes that do not fit."""
        known = {info.name: info for info in self._inputs}
        if strange := [name for name in feeds if name not in known]:
            raise RequestError(f"{label}: the model has no input {strange[0]!r}. Its inputs are {', '.join(known)}")
        if missing := [name for name, info in known.items() if name not in feeds and not info.optional]:
            raise RequestError(f"{label} has no array {missing[0]!r}. A sample needs {', '.join(known)}")
        return {name: _fitting(label, info, feeds[name]) for name, info in known.items() if name in feeds}

    def _cut(self, label: str, entry: Any) -> list[tuple[str, Any]]:
        """A sample of many rows as samples of as many as the model takes; where it takes any number, of one."""
        feeds = self._loaded(label, entry)
        shapes = {info.name: info.shape for info in self._inputs}
        heads = {(shapes.get(name) or ("",))[0] for name in feeds}
        rows = {value.shape[0] if value.ndim else 0 for value in feeds.values()}
        if len(heads) != 1 or len(rows) != 1:
            return [(label, entry)]
        (head,), (n,) = heads, rows
        each = head if isinstance(head, int) else 1
        if not each or n <= each or n % each:
            return [(label, entry)]
        return [(f"{label}, rows from {k}", {name: value[k : k + each] for name, value in feeds.items()}) for k in range(0, n, each)]


def _files(path: Path) -> list[tuple[str, Any]]:
    """The samples of a folder, by names: files of the known forms, and folders that hold some. Or the file itself."""
    if not path.exists():
        raise FileNotFoundError(f"there is no folder {path}. {HOW}")
    if path.is_file():
        return [(path.name, path)]
    found = [
        each
        for each in sorted(path.iterdir())
        if (each.is_file() and each.suffix in FORMS) or (each.is_dir() and any(file.suffix in FORMS for file in each.iterdir()))
    ]
    return [(each.name, each) for each in found]


def _arrays(given: Iterable[Any]) -> list[tuple[str, Any]]:
    if isinstance(given, Mapping):
        given = [given]
    return [(f"sample {k}", each) for k, each in enumerate(given)]


def _of_folder(path: Path) -> Feeds:
    return {file.stem: _one_array(file) for file in sorted(path.iterdir()) if file.suffix in (".npy", ".pb")}


def _of_file(path: Path) -> Feeds | Array:
    if path.suffix != ".npz":
        return _one_array(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: np.asarray(archive[name]) for name in archive.files}
    except Exception as error:  # each format has errors of its own
        raise _unreadable(path, error) from None


def _one_array(path: Path) -> Array:
    try:
        if path.suffix == ".pb":
            import onnx

            return np.asarray(onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes())))
        return np.asarray(np.load(path, allow_pickle=False))
    except Exception as error:  # each format has errors of its own
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> RequestError:
    return RequestError(f"{path} cannot be read as a sample: {error}. {HOW}")


def _fitting(label: str, info: ValueInfo, value: Array) -> Array:
    """The array with the input's type. A missing first dimension of one is added."""
    if value.dtype != info.dtype:
        if not np.can_cast(value.dtype, info.dtype, "same_kind") and not (value.dtype.kind in "iu" and info.dtype.kind in "iu"):
            raise RequestError(f"{label}: input {info.name!r} must be {info.dtype}, not {value.dtype}. Save the array as {info.dtype}")
        value = value.astype(info.dtype)
    shape = info.shape
    if shape is None or _fits(value.shape, shape):
        return value
    if len(shape) == value.ndim + 1 and _fits((1, *value.shape), shape):
        return value[None]
    want = "x".join(str(d) if d not in (None, "") else "?" for d in shape) or "scalar"
    got = "x".join(map(str, value.shape)) or "scalar"
    raise RequestError(f"{label}: input {info.name!r} must have shape {want}, not {got}. Save it in the shape that the model takes")


def _fits(shape: Sequence[int], wanted: Sequence[int | str | None]) -> bool:
    return len(shape) == len(wanted) and all(not isinstance(w, int) or w == d for d, w in zip(shape, wanted, strict=True))


def each_of(samples: Samples, numbers: Iterable[int]) -> Iterator[Feeds]:
    """The samples of some numbers, one after the other."""
    return (samples[k] for k in numbers)
