"""Texts to vectors: tokens, groups of texts of similar length, the model's runs, pooling."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.protocol.inference import Call
from aspen_mp.serving.repository.disk import Embeddings, unreadable
from aspen_mp.serving.telemetry import steps
from aspen_mp.serving.text import recipe
from aspen_mp.serving.text.recipe import Recipe, Unsuitable
from aspen_mp.shm.errors import ConfigError, DeadlineMissed, RequestError
from aspen_mp.system import clock, filesystem

TOKENIZER: Final = "tokenizer.json"
STEP: Final = 16
"""Texts are padded to a multiple of this, so that a few plans serve all lengths. With half of it, short texts cost a tenth less, but long
ones more; with twice as much, all of them cost more."""
MOST_ROWS: Final = 16
"""Texts of a run. Their number is a power of two, for the same reason. With half as many, a run takes the same time for each; with twice as
many, more."""
MOST_RUNS: Final = 4
"""Runs of a request at the same time: the next ones are prepared while workers compute, and others have their turn."""
SLOW_TEXT: Final = 2048
"""Characters from which on tokens are made in a thread: about a millisecond of WordPiece. To ask a thread takes a fifteenth of that."""
SLOW_POOLING: Final = 1 << 22
"""Elements from which on they are pooled in a thread: about a millisecond."""
_PADS: Final = ("[PAD]", "<pad>", "<|endoftext|>")

Tokens = Sequence[int]
Vectors = npt.NDArray[np.float32]


class Runs(Protocol):
    """The runner of the model: a `shelf.Shelved`."""

    async def run(self, call: Call) -> Any:
        """The results of a call, {output: array}. Errors are those of `Model.run_async`."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text as the model takes it. `kinds`: of which part of the text each token is, zeros but for tokenizers that say otherwise."""

    ids: Tokens
    kinds: Tokens


@dataclass(frozen=True, slots=True)
class Group:
    """Texts that are run together. `places`: theirs in the request; `columns`: tokens, with padding."""

    places: list[int]
    columns: int


class Embedder:
    """A model's tokenizer and the steps for its output. Used on the event loop; long work is done in threads."""

    def __init__(self, tokenizer: Any, chosen: Recipe, inputs: Sequence[ValueInfo]) -> None:
        self.recipe = chosen
        self._tokenizer = tokenizer
        self._words = tokenizer.get_vocab_size()
        padding = tokenizer.padding
        ids = [found for name in _PADS if (found := tokenizer.token_to_id(name)) is not None]
        self._pad = padding["pad_id"] if padding else (ids or [0])[0]
        self._dtypes = {info.name: info.dtype for info in inputs if info.name in chosen.inputs}
        tokenizer.no_padding()
        if chosen.truncate:
            tokenizer.enable_truncation(chosen.max_tokens)
        else:
            tokenizer.no_truncation()

    # ---- tokens

    async def tokens(self, texts: Sequence[str] | Sequence[Tokens]) -> list[Text]:
        """Texts, or tokens that are taken as they are. RequestError names the first that is too long, empty, or no token."""
        if texts and not isinstance(texts[0], str):
            found = [self._given(k, each) for k, each in enumerate(texts)]  # type: ignore[arg-type]
        elif sum(map(len, texts)) + len(self.recipe.prefix) * len(texts) > SLOW_TEXT:
            found = await asyncio.to_thread(self._encoded, texts)  # type: ignore[arg-type]
        else:
            found = self._encoded(texts)  # type: ignore[arg-type]
        for k, text in enumerate(found):
            if len(text.ids) > self.recipe.max_tokens:
                raise RequestError(
                    f"input {k} has {len(text.ids)} tokens, and the model takes {self.recipe.max_tokens}. Send shorter texts, or set "
                    "embeddings.truncate in the model's config.toml"
                )
            if not text.ids:
                raise RequestError(f"input {k} is empty")
        return found

    def _given(self, k: int, ids: Tokens) -> Text:
        for token in ids:
            if not 0 <= token < self._words:
                raise RequestError(f"input {k}: {token} is not a token. The model's tokenizer has those from 0 to {self._words - 1}")
        if self.recipe.truncate:
            ids = ids[: self.recipe.max_tokens]
        return Text(ids, [0] * len(ids))

    def _encoded(self, texts: Sequence[str]) -> list[Text]:
        prefix = self.recipe.prefix
        return [Text(each.ids, each.type_ids) for each in self._tokenizer.encode_batch_fast([prefix + text for text in texts])]

    # ---- groups

    def groups(self, texts: Sequence[Text]) -> Iterator[Group]:
        """Texts of equal numbers of tokens, padding included, the shortest first: each group is one run of the model."""
        step = STEP if self.recipe.pads else 1
        most = self.recipe.rows or MOST_ROWS
        by_columns: dict[int, list[int]] = {}
        for place, text in enumerate(texts):
            columns = self.recipe.columns or min(-(-len(text.ids) // step) * step, self.recipe.max_tokens)
            by_columns.setdefault(columns, []).append(place)
        for columns, places in sorted(by_columns.items()):
            at = 0
            while left := len(places) - at:
                n = min(most, left if self.recipe.rows else 1 << (left.bit_length() - 1))
                yield Group(places[at : at + n], columns)
                at += n

    def feeds(self, texts: Sequence[Text], columns: int) -> dict[str, npt.NDArray[Any]]:
        """The model's inputs for a group of texts, [texts, columns] each. Where the model fixes their number, the last is repeated."""
        rows = [*texts, *[texts[-1]] * ((self.recipe.rows or 0) - len(texts))]
        shape = len(rows), columns
        made = {
            "input_ids": np.full(shape, self._pad, np.int64),
            "attention_mask": np.zeros(shape, np.int64),
            "token_type_ids": np.zeros(shape, np.int64),
            "position_ids": np.broadcast_to(np.arange(columns, dtype=np.int64), shape),
        }
        for k, text in enumerate(rows):
            n = len(text.ids)
            made["input_ids"][k, :n] = text.ids
            made["attention_mask"][k, :n] = 1
            made["token_type_ids"][k, :n] = text.kinds
        return {name: np.ascontiguousarray(made[name], dtype) for name, dtype in self._dtypes.items()}

    def example(self) -> dict[str, npt.NDArray[Any]]:
        """Inputs to warm up with: one short text."""
        columns = self.recipe.columns or min(STEP, self.recipe.max_tokens)
        return self.feeds([Text([self._pad] * columns, [0] * columns)], columns)

    # ---- vectors

    async def embed(self, texts: Sequence[Text], model: Runs, *, priority: str | None, deadline_ms: float | None) -> Vectors:
        """The vectors of texts, [texts, hidden], in their order. Errors are those of `Model.run_async`."""
        ends = None if deadline_ms is None else clock.monotonic() + deadline_ms / 1000
        vectors: list[Any] = [None] * len(texts)
        trace = steps.CURRENT.get()

        async def run(group: Group) -> None:
            with steps.part_of(trace, steps.TEXTS, **{"aspen_mp.tokens": group.columns}) as part:
                await compute(group, part)

        async def compute(group: Group, part: steps.StepTrace | None) -> None:
            left = None if ends is None else (ends - clock.monotonic()) * 1000
            if left is not None and left <= 0:
                raise DeadlineMissed(f"the deadline of {deadline_ms:g} ms has passed before all {len(texts)} texts were run. Send fewer")
            rows = [texts[place] for place in group.places]
            call = Call(
                id="",
                feeds=self.feeds(rows, group.columns),
                outputs=[self.recipe.output],
                binary={},
                binary_default=False,
                priority=priority,
                deadline_ms=left,
            )
            output = (await model.run(call))[self.recipe.output]
            if part is not None:
                part.enter(steps.POOL)
            lengths = [len(row.ids) for row in rows]
            if output.size > SLOW_POOLING:
                found = await asyncio.to_thread(pooled, output, lengths, self.recipe)
            else:
                found = pooled(output, lengths, self.recipe)
            for place, vector in zip(group.places, found, strict=True):
                vectors[place] = vector

        await _some_at_a_time(run, self.groups(texts))
        return np.stack(vectors)


async def _some_at_a_time(run: Callable[[Group], Any], groups: Iterable[Group]) -> None:
    """Runs all groups, `MOST_RUNS` at the same time. The first error ends those that run, and is raised."""
    waiting = iter(groups)

    async def work() -> None:
        for group in waiting:
            await run(group)

    tasks = [asyncio.ensure_future(work()) for _ in range(MOST_RUNS)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def pooled(output: npt.NDArray[Any], lengths: Sequence[int], chosen: Recipe) -> Vectors:
    """One vector for each text, [texts, hidden]. `output` may have rows and columns of padding behind them."""
    rows = output[: len(lengths)]
    if chosen.pooling == "mean":
        sums = np.empty((len(lengths), rows.shape[2]), np.float32)
        for states, n, total in zip(rows, lengths, sums, strict=True):
            np.add.reduce(states[:n], axis=0, dtype=np.float32, out=total)
        rows = sums / np.array(lengths, np.float32)[:, None]
    elif chosen.pooling == "cls":
        rows = rows[:, 0]
    elif chosen.pooling == "last":
        rows = rows[np.arange(len(lengths)), np.array(lengths) - 1]
    found = rows.astype(np.float32)  # a copy: the output may lie where the next request writes
    return normalized(found) if chosen.normalize else found


def normalized(vectors: Vectors) -> Vectors:
    """Vectors of length 1. One of zeros stays."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def find(path: str, settings: Embeddings | None, inputs: Sequence[ValueInfo], outputs: Sequence[ValueInfo]) -> Embedder | str:
    """The embedder of the model at `path`, or why it has none. It is looked for in the folder of the model.

    ConfigError where `settings` ask for one and there is none; as `disk.unreadable` where a file beside the model cannot be read.
    """
    folder = Path(path).parent
    try:
        if not filesystem.isfile(folder / TOKENIZER):
            raise Unsuitable(f"there is no {TOKENIZER} beside it")
        chosen = recipe.find(folder, settings or Embeddings(), inputs, outputs)
        return Embedder(_tokenizer(folder / TOKENIZER), chosen, inputs)
    except Unsuitable as error:
        if settings is not None:
            raise ConfigError(f"{path} makes no embeddings: {error}") from None
        return str(error)


def _tokenizer(path: Path) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # cores are for workers
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise Unsuitable("tokenizers is not installed. Install it beside the server: pip install 'aspen-mp[text]'") from None
    try:
        with filesystem.open(path, "rb") as file:
            return Tokenizer.from_buffer(file.read())
    except Exception as error:  # those of tokenizers have no class of their own
        raise unreadable(path, error) from None
