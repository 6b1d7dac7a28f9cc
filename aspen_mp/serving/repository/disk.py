"""A model repository as it lies on disk: ``name/version/model.onnx``, and beside the versions an optional ``config.toml``.

Links are followed: whoever may write into the folder decides which models are served. Names that come from clients never become paths; they
are looked up among the results of `scan`.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from aspen_mp.client.arguments import MOST_INSTANCES
from aspen_mp.client.streams.tolerance import checked
from aspen_mp.control.wire.protocol import LEAST_SHARE, MOST_SHARE
from aspen_mp.planner.job.options import Objective, Precision
from aspen_mp.shm.errors import AspenError, ConfigError, ResourceLimitError
from aspen_mp.shm.scarcity import is_scarce, reason
from aspen_mp.system import filesystem

MODEL: Final = "model.onnx"
CONFIG: Final = "config.toml"
_TRITON: Final = "config.pbtxt"
_NO_MODELS: Final = {"lost+found"}
"""Folders that file systems make."""
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")
_NOT_THERE: Final = {errno.ENOENT, errno.ENOTDIR, errno.EBADF, errno.ELOOP}
"""Errors of a path that leads nowhere."""


class Batching(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests that are run together. `max_batch`: rows at most; `max_delay_ms`: how long the first of them waits for others."""

    max_batch: Annotated[int, Meta(ge=2, le=4096)]
    max_delay_ms: Annotated[float, Meta(ge=0, le=1000)] = 1.0


Difference = Annotated[float, Meta(ge=0, le=1e38)]
Pooling = Literal["mean", "cls", "last", "none"]


class Embeddings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model with a tokenizer beside it makes embeddings. Every None means: as sentence-transformers has noted beside the model.

    Attributes:
        output: The output that vectors come from. None: "sentence_embedding", else the first [batch, tokens, hidden], else [batch, hidden].
        pooling: What becomes of the vectors of a text's tokens: their mean, the first, or the last one; "none" where the model has pooled.
            None without a note: "mean".
        normalize: Whether vectors are made as long as 1. None without a note: those that are pooled here.
        max_tokens: Tokens of a text, at most. None without a note: 512.
        truncate: Whether longer texts lose their end; otherwise they are refused.
        prefix: What is put before each text.
    """

    output: Annotated[str, Meta(min_length=1)] | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    max_tokens: Annotated[int, Meta(ge=1, lt=1 << 24)] | None = None
    truncate: bool = False
    prefix: Annotated[str, Meta(max_length=65536)] | None = None


class Streaming(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The streams of a model's sequences, as of `Model.stream`. `tol`: for all inputs, or {input: difference}; `memory_mib`: `memory`."""

    tol: Difference | dict[str, Difference] = 0.0
    noise: Difference = 0.0
    layer_tol: Difference = 0.0
    refresh: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    same_bits: bool | None = None
    memory_mib: Annotated[int, Meta(ge=1, lt=1 << 31)] | None = None

    def __post_init__(self) -> None:
        checked(self.tol, self.noise, self.layer_tol, self.refresh, self.same_bits)

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of `Model.stream`."""
        memory = None if self.memory_mib is None else self.memory_mib << 20
        found = {name: getattr(self, name) for name in ("tol", "noise", "layer_tol", "refresh", "same_bits")}
        return {**found, "memory": memory}


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is loaded and run.

    Attributes:
        instances: How many requests execute at the same time. None: what the profile says.
        precision: "f32" or "bf16". None: what the profile says.
        objective: "latency" or "throughput". None: what the profile says.
        share: Weight where core time is short.
        priority: Class of requests that name none.
        deadline_ms: Milliseconds that a request has if it names none. None: any time.
        versions: How many of the newest versions are served.
        shapes: {input: shape} to plan and warm up before the model is served, where it leaves dimensions open.
        batching: None: each request is run by itself.
        embeddings: None: as noted beside the model, if it makes embeddings.
        sequences: How frames of sequences are run.
        pieces: Whether requests may begin to run while their bodies come. Their results may differ by rounding errors.
    """

    instances: Annotated[int, Meta(ge=1, le=MOST_INSTANCES)] | None = None
    precision: Precision | None = None
    objective: Objective | None = None
    share: Annotated[float, Meta(ge=LEAST_SHARE, le=MOST_SHARE)] = 1.0
    priority: Literal["high", "normal", "low"] = "normal"
    deadline_ms: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    versions: Annotated[int, Meta(ge=1, le=64)] = 1
    shapes: dict[str, list[Annotated[int, Meta(ge=0)]]] | None = None
    batching: Batching | None = None
    embeddings: Embeddings | None = None
    sequences: Streaming = Streaming()
    pieces: bool = True


def read_config(path: Path) -> Config:
    """The configuration of a model; the defaults where there is no file. ConfigError names file and key; else as `unreadable`."""
    try:
        with filesystem.open(path, encoding="utf-8") as file:
            return msgspec.convert(tomllib.loads(file.read()), Config)
    except FileNotFoundError:
        return Config()
    except (OSError, MemoryError, tomllib.TOMLDecodeError, UnicodeDecodeError, msgspec.ValidationError) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: BaseException) -> AspenError:
    """The error to raise where a file of a repository cannot be read. It is ResourceLimitError where the system lacks something, so that a
    later attempt may succeed, and ConfigError elsewhere."""
    kind = ResourceLimitError if is_scarce(error) else ConfigError
    return kind(f"{path} cannot be read: {reason(error) if isinstance(error, MemoryError) else error}")


@dataclass(frozen=True, slots=True)
class Found:
    """A version on disk. `stamp` changes with any of its files and with the configuration."""

    name: str
    version: int
    path: str
    stamp: str
    config: Config = field(compare=False)


@dataclass(slots=True)
class Contents:
    """The result of a scan. `versions`: of each model, the newest first. `broken`: {model: why none of it can be read}. `unread`: sentences
    about files that were meant to be read and are not. `lacks`: whether some of `broken` failed for want of descriptors or memory: a later
    scan may find it."""

    versions: dict[str, list[Found]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    lacks: bool = False


def scan(root: Path) -> Contents:
    """The content of a repository. OSError where the folder itself cannot be read. Folders whose names begin with a dot are not models."""
    contents = Contents(unread=[_misplaced(file, root / file.stem) for file in _models(root)])
    for folder in _models_of(root):
        if why := unfit(folder.name):
            shown = os.fsencode(folder.name).decode(errors="backslashreplace")
            contents.unread.append(f"model {shown} of {root} is not served: {why}")
            if not _mode(root / shown):
                contents.broken[shown] = why
            continue
        try:
            config = read_config(folder / CONFIG)
            versions = [found for each in _versions_of(folder) if (found := _found(folder.name, each, config)) is not None]
            contents.unread += _unread(folder, versions)
        except (ConfigError, ResourceLimitError, OSError, MemoryError) as error:
            contents.broken[folder.name] = str(error) if isinstance(error, AspenError) else reason(error)
            contents.lacks |= lacks(error)
            continue
        if versions:
            contents.versions[folder.name] = sorted(versions, key=lambda found: -found.version)
    return contents


def lacks(error: BaseException) -> bool:
    """Whether what has failed with this error is to be tried again later, though no file has changed."""
    return isinstance(error, ResourceLimitError) or is_scarce(error)


def _unread(folder: Path, versions: list[Found]) -> list[str]:
    """As of `Contents`, in a model's folder."""
    said = []
    if not versions:
        beneath = [each for each in _entries(folder) if stat.S_ISDIR(_mode(each)) and each.name[0] != "."]
        said = [_misplaced(file, folder) for each in (folder, *beneath) for file in _models(each)]
    if stat.S_ISREG(_mode(folder / _TRITON)) and not stat.S_ISREG(_mode(folder / CONFIG)):
        said.append(f"{folder / _TRITON} is not read. Say in {folder / CONFIG} what is to differ from the defaults")
    return said


def _models(folder: Path) -> list[Path]:
    return [each for each in _entries(folder) if each.suffix == ".onnx" and each.name[0] != "." and stat.S_ISREG(_mode(each))]


def _misplaced(file: Path, folder: Path) -> str:
    return f"{file} is not a version of a model. Put it at {folder / '1' / MODEL}, or serve the file by itself"


def single(name: str, path: Path) -> Found:
    """A model that is a file by itself, as version 1. FileNotFoundError where it is missing."""
    return Found(name, 1, filesystem.realpath(path, strict=True), _stamp([path]), Config())


def folders(root: Path) -> Iterator[Path]:
    """Every folder whose changes matter: the repository, its models, their versions."""
    yield root
    for model in _models_of(root):
        yield model
        yield from _versions_of(model)


def unfit(name: str) -> str:
    """Return why no model can have this name; an empty text where one can."""
    if not name or name.startswith(".") or "/" in name:
        return "the name of a model must not be empty, begin with a dot, or have a slash. Rename it"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8. Rename it"
    return ""


def _models_of(root: Path) -> list[Path]:
    return [each for each in _entries(root) if each.name[0] != "." and each.name not in _NO_MODELS and stat.S_ISDIR(_mode(each))]


def _versions_of(model: Path) -> list[Path]:
    return [each for each in _entries(model) if _VERSION.fullmatch(each.name) and stat.S_ISDIR(_mode(each))]


def _found(name: str, folder: Path, config: Config) -> Found | None:
    path = folder / MODEL
    if not stat.S_ISREG(_mode(path)):
        return None
    stamp = _stamp([folder.parent / CONFIG, *_entries(folder)])
    return Found(name, int(folder.name), str(path), stamp, config)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder / name for name in filesystem.listdir(folder))


def _mode(path: Path) -> int:
    """The type and permissions of what is at the path; 0 where there is nothing. OSError where that cannot be told."""
    try:
        return filesystem.stat(path).st_mode
    except OSError as error:
        if error.errno in _NOT_THERE:
            return 0
        raise


def _stamp(files: list[Path]) -> str:
    """Tells contents of these files at different times apart. OSError where the system lacks something, which changes no file."""
    parts = []
    for file in files:
        try:
            about = filesystem.stat(file)
        except OSError as error:
            if is_scarce(error):
                raise
            continue
        parts.append(f"{file.name}:{about.st_ino}:{about.st_size}:{about.st_mtime_ns}")
    return "|".join(parts)
