"""Models that have a name instead of a file, such as "zoo:resnet50": the one place that knows which package builds them.

Such a package lies above this one, so it is imported when a model of its is named, and never otherwise.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

if TYPE_CHECKING:
    import onnx

COLLECTIONS: Final = {"zoo": "aspen_mp.bench.models"}
"""By the word before the colon: the module that builds the models."""


class Collection(Protocol):
    """What such a module offers."""

    def names(self, *, extra: bool = False) -> list[str]:
        """Names of its models; with `extra` also of those that only tests use."""

    def build(self, name: str, *, batch: int = 1, seq: int = 128, **options: Any) -> onnx.ModelProto:
        """A model. `batch`, `seq`: sizes of its inputs."""

    def inputs(self, model: onnx.ModelProto, *, seed: int = 0, batch: int = 1, seq: int = 128) -> dict[str, Any]:
        """Arrays for every input of a model that `build` returned, by name. `batch`, `seq`: of its symbolic dimensions."""


def collection(word: str) -> Collection:
    """The collection that a word of `COLLECTIONS` stands for."""
    return cast("Collection", importlib.import_module(COLLECTIONS[word]))


def find(text: str) -> tuple[Collection, str] | None:
    """The collection and the name in it that `text` means; None where it is no such name, but a path. FileNotFoundError where the
    collection has no such model."""
    word, colon, name = text.partition(":")
    if not colon or word not in COLLECTIONS:
        return None
    there = collection(word)
    names = there.names(extra=True)
    if name not in names:
        raise FileNotFoundError(f"the {word} has no {name!r}. It has {', '.join(sorted(names))}")
    return there, name
