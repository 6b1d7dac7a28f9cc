"""The files of a folder as frames of a stream, what of each ran, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from aspen_mp.cli import output, sources
from aspen_mp.client.trials.samples import Samples

if TYPE_CHECKING:
    from aspen_mp import Model


class Frames(Sequence[dict[str, Any]]):
    """The frames of a folder, each read when it is asked for. `given`: NAME=FILE for inputs that are the same in each frame."""

    def __init__(self, folder: Path, model: Model, given: Sequence[str] | None) -> None:
        names = [info.name for info in model.inputs]
        files = sources.pairs(given, "--input")
        if strange := [name for name in files if name not in names]:
            raise typer.BadParameter(f"the model has no input {strange[0]!r}. Its inputs are {', '.join(names)}", param_hint="--input")
        self._same = {name: sources.load_array(path, name) for name, path in files.items()}
        self._samples = Samples(folder, [info for info in model.inputs if info.name not in files])
        stems = [Path(label).stem for label in self._samples.labels]
        self.labels = stems if len(set(stems)) == len(stems) else self._samples.labels
        """A name of each frame."""

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: Any) -> Any:
        return {**self._samples[index], **self._same}


def run(
    model: Model, frames: Frames, told: Mapping[str, Any], write: Callable[[str, dict[str, Any]], object], *, quiet: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run all frames through a stream with arguments `told`. `write` gets the name and the outputs of each.

    Returns the outputs of the last one in the model's order, and what `documents.plans.Streamed` says."""
    results: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        stream = stack.enter_context(model.stream(**told))
        with output.progress(f"planning frames of {model.name}", quiet=quiet):
            stream.run(frames[0])  # plans, and touches memory for the first time
        stream.reset()
        update = stack.enter_context(output.progress("running", quiet=quiet, moving=False))
        for k, label in enumerate(frames.labels):
            feeds = frames[k]
            began = time.perf_counter()
            results = stream.run(feeds)
            took = 1e3 * (time.perf_counter() - began)
            assert stream.last is not None
            rows.append({"frame": label, "ms": took, **asdict(stream.last)})
            results = {o.name: results[o.name] for o in model.outputs}
            write(label, results)
            update("", k + 1, len(frames))
        held = stream.nbytes
    later = [row["ms"] for row in rows[1:]]
    spread = {"median": float(np.median(later)), "p95": float(np.percentile(later, 95)), "min": min(later)} if later else None
    return results, {"bytes": held, "later_ms": spread, "frames": rows}


def show(streamed: Mapping[str, Any], whole: Mapping[str, Any]) -> None:
    """Print each frame, and all of them beside whole runs."""
    errors = any(row["error"] is not None for row in streamed["frames"])
    rows = []
    for row in streamed["frames"]:
        cells = [row["frame"], f"{row['ms']:.2f}", *(f"{row[key]:.1%}" for key in ("changed", "tiles", "work"))]
        rows.append([*cells, *([("" if row["error"] is None else f"{row['error']:.2e}")] if errors else [])])
    output.table("", ["frame", "ms", "changed", "tiles", "work", *(["error"] if errors else [])], rows, right=range(1, 6))
    held, times = output.mebibytes(streamed["bytes"]), streamed["later_ms"]
    output.out.print(f"\n{output.count(len(rows), 'frame')} through a stream, which holds {held} of shared memory")
    if times is not None:
        output.out.print(f"frames after the first: median {times['median']:.2f} ms, p95 {times['p95']:.2f} ms, min {times['min']:.2f} ms")
        ratio = whole["median"] / times["median"] if times["median"] else float("inf")
        output.out.print(
            f"the first frame whole, by Model.run: median {whole['median']:.2f} ms "
            f"({output.count(whole['runs'], 'run')} before the stream), {ratio:.2f} times as long"
        )
