"""Semantic search: embed a collection once, rank it by closeness to a question; every step is timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from .minilm import SIZE, Batch, Encoder

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Run = Callable[[dict[str, "NDArray[np.int64]"]], "NDArray[np.float32]"]  # the embedder, on whatever runtime
Advance = Callable[[], None]  # called after each batch


@dataclass(frozen=True, slots=True)
class Sentence:
    text: str
    topic: str


@dataclass(frozen=True, slots=True)
class Hit:
    rank: int
    score: float  # cosine of the angle between the embeddings
    text: str
    topic: str


@dataclass(slots=True)
class Embedded:
    """A collection's embeddings [sentences, 384] and the seconds each batch took."""

    vectors: NDArray[np.float32]
    batches: list[Batch]
    seconds: list[float] = field(default_factory=list)


def read_sentences(path: Path | None = None) -> list[Sentence]:
    """Sentences of a text file, one a line, "## " lines name topics; without a path, those of the package."""
    text = path.read_text("utf-8") if path else (resources.files(__package__) / "sentences.txt").read_text("utf-8")
    topic, found = "", []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("## "):
            topic = line[3:]
        elif line and not line.startswith("#"):
            found.append(Sentence(line, topic))
    return found


def shapes(batches: Sequence[Batch]) -> list[Batch]:
    """One batch of each input shape: what must be run once before all are planned."""
    return list({batch.shape: batch for batch in batches}.values())


def embed(run: Run, batches: list[Batch], advance: Advance = lambda: None) -> Embedded:
    """Runs all batches one after the other."""
    result = Embedded(np.empty((sum(len(b.places) for b in batches), SIZE.hidden), np.float32), batches)
    for batch in batches:
        begin = time.perf_counter()
        vectors = run(batch.feeds)
        result.seconds.append(time.perf_counter() - begin)
        result.vectors[batch.places] = vectors
        advance()
    return result


def rank(query: NDArray[np.float32], collection: NDArray[np.float32], sentences: Sequence[Sentence], top: int) -> list[Hit]:
    """The `top` sentences closest to `query` (unit length, [384])."""
    scores = collection @ query
    best = np.argsort(-scores, kind="stable")[:top]
    return [Hit(n, float(scores[i]), sentences[i].text, sentences[i].topic) for n, i in enumerate(best, start=1)]


def query_batch(encoder: Encoder, query: str) -> Batch:
    return encoder.batches([query], 1)[0]
