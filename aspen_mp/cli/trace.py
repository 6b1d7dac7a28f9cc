"""`aspen-mp trace`: what every worker does, tile by tile, of a model or of a runtime at work."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aspen_mp.cli import options, output, sources
from aspen_mp.cli.interrupt import Pause
from aspen_mp.cli.run import feeds_for, prepare
from aspen_mp.client.arguments import MOST_RECORDS

if TYPE_CHECKING:
    from aspen_mp import Model, Runtime
    from aspen_mp.tracing.trace import Trace


@output.command
def trace(
    model: Annotated[
        str | None, typer.Argument(help="An .onnx file or zoo:NAME, run on random inputs. Default: whatever the runtime does.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write the trace to this file, as JSON for ui.perfetto.dev. It is compressed if FILE ends in .gz.",
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw the timeline in this file. Needs matplotlib.")] = None,
    tiles: Annotated[
        Path | None,
        typer.Option("--tiles", metavar="FILE", help="Draw in this file which tiles of the last request ran. Needs matplotlib."),
    ] = None,
    changed: Annotated[
        float | None,
        typer.Option(
            "--changed",
            min=0.0,
            max=100.0,
            metavar="PERCENT",
            help="Run frames of a stream. In each, one square of the largest input has changed, with this share of its area.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=FILE", help="An input from a .npy, .npz or .pb file. May be given several times."),
    ] = None,
    batch: sources.BatchOption = None,
    seq: sources.SeqOption = None,
    shape: sources.ShapeOption = None,
    workers: options.Workers = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name",
            help="Use the running runtime of this name. Default with MODEL: a private runtime; without: 'default'.",
            callback=options.named,
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option("--repeat", "-r", min=1, help="Number of traced requests of MODEL, after one that is not traced.")
    ] = 3,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Number of requests of MODEL in flight at a time.")] = 1,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.0, help="Without MODEL: how long to trace. Default: until Ctrl-C.")
    ] = None,
    records: Annotated[
        int,
        typer.Option(
            "--records",
            min=0,
            max=MOST_RECORDS,
            help="Number of records that each worker keeps, about one per tile. 0: some hundred thousand.",
        ),
    ] = 0,
    as_json: output.Json = False,
) -> None:
    """Record what every worker does, tile by tile.

    Prints a summary of tiles, steals, idle gaps, joins and deaths. Writes a trace and a picture if asked to.
    """
    import aspen_mp

    if model is None and (workers is not None or inputs):
        raise typer.BadParameter(
            "without MODEL a running runtime is traced as it is. Give a MODEL, or leave out --workers and --input", param_hint="MODEL"
        )
    if name is not None and workers is not None:
        raise typer.BadParameter("a running runtime has its own workers. Leave out --workers or --name", param_hint="--name")
    if changed is not None and (model is None or concurrency != 1):
        raise typer.BadParameter("frames of a stream follow each other. Give a MODEL, and leave out --concurrency", param_hint="--changed")
    for path in (file, png, tiles):
        if path is not None and not path.absolute().parent.is_dir():
            raise FileNotFoundError(f"there is no folder {path.absolute().parent}. Make it first, or write elsewhere")
    if png is not None or tiles is not None:
        from aspen_mp.tracing import plot

        plot.check()
    if model is None:
        with aspen_mp.connect(name or "default", retry=False) as runtime:
            _report(_watch(runtime, seconds, records, quiet=as_json), file, png, tiles, as_json)
        return
    shapes = {key: sources.parse_shape(value) for key, value in sources.pairs(shape, "--shape").items()}
    source = sources.resolve(model, batch, seq)
    with aspen_mp.connect(name, retry=False) if name is not None else aspen_mp.Runtime(workers=workers) as runtime:
        with output.progress(f"loading {source.label}", quiet=as_json) as update:
            loaded = runtime.load(source.model, name=source.label, instances=max(2, min(32, concurrency)), progress=update)
        feeds = feeds_for(source, loaded, inputs, shapes, batch=batch, seq=seq, seed=0)
        with output.progress(f"planning {source.label}", quiet=as_json):
            prepare(loaded, feeds)
            loaded.run(feeds)
        recorded = runtime.trace(records=records)
        if changed is not None:
            _frames(loaded, feeds, repeat, changed / 100, recorded)
        else:
            with recorded:
                _requests(loaded, feeds, repeat, concurrency)
        loaded.unload()
        _report(recorded, file, png, tiles, as_json)


def _requests(model: Model, feeds: dict[str, Any], repeat: int, concurrency: int) -> None:
    if concurrency == 1:
        for _ in range(repeat):
            model.run(feeds)
        return
    flying: deque[Future[Any]] = deque()
    for _ in range(repeat):
        if len(flying) >= concurrency:
            flying.popleft().result()
        flying.append(model.submit(feeds))
    for future in flying:
        future.result()


def _frames(model: Model, feeds: dict[str, Any], repeat: int, share: float, recorded: Trace) -> None:
    """Run frames of a stream, after a first one that is not recorded. Each differs from the one before in one square of the largest
    input."""
    import numpy as np

    from aspen_mp.client.streams.changed_inputs import image_axes

    rng = np.random.default_rng(0)
    numbers = {name: value for name, value in feeds.items() if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" and value.ndim}
    largest = max(numbers, key=lambda name: numbers[name].size, default=None)
    if largest is None or not numbers[largest].size:
        raise typer.BadParameter("the model has no input of numbers of which a part could change", param_hint="--changed")
    frame = np.array(numbers[largest])
    with model.stream(same_bits=False) as stream:
        stream.run({**feeds, largest: frame})
        with recorded:
            for _ in range(repeat):
                place = [slice(None)] * frame.ndim
                for axis in dict.fromkeys(image_axes(frame.shape)):
                    side = max(round(frame.shape[axis] * share**0.5), share > 0)
                    begin = int(rng.integers(frame.shape[axis] - side, endpoint=True))
                    place[axis] = slice(begin, begin + side)
                part = frame[tuple(place)]
                part[...] = 1 - part if part.dtype.kind == "f" else rng.permutation(part.reshape(-1)).reshape(part.shape)
                stream.run({**feeds, largest: frame})


def _watch(runtime: Runtime, seconds: float | None, records: int, *, quiet: bool) -> Trace:
    with Pause() as pause, runtime.trace(records=records) as recorded:
        if seconds is None and not quiet:
            output.notice(f"tracing {runtime.name}: Ctrl-C ends it")
        began = time.monotonic()
        while seconds is None or time.monotonic() - began < seconds:
            if not pause.wait(3600.0 if seconds is None else max(0.0, began + seconds - time.monotonic())):
                break
    return recorded


def _report(recorded: Trace, file: Path | None, png: Path | None, tiles: Path | None, as_json: bool) -> None:
    summary = recorded.summary()
    if file is not None:
        with output.progress(f"writing {file}", quiet=as_json):
            summary["events_written"] = recorded.write(file)
        summary["file"] = str(file)
    if png is not None:
        recorded.plot(png)
        summary["png"] = str(png)
    if tiles is not None:
        recorded.plot_tiles(tiles)
        summary["tiles"] = str(tiles)
    if as_json:
        output.emit_json(summary)
        return
    typer.echo(recorded.text())
    for path in (file, png, tiles):
        if path is not None:
            output.notice(f"wrote {path}")
