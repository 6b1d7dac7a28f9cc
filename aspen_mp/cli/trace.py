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
from aspen_mp.cli.run import feeds_for
from aspen_mp.client.arguments import MOST_RECORDS

if TYPE_CHECKING:
    from aspen_mp import Model, Runtime
    from aspen_mp.tracing.trace import Trace


@output.command
def trace(
    model: Annotated[
        str | None, typer.Argument(help="An .onnx file or zoo:NAME, run on random inputs; none: whatever the runtime does.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Chrome trace event JSON, for ui.perfetto.dev; packed if FILE ends in .gz."),
    ] = None,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="A picture of the timeline (needs matplotlib).")] = None,
    inputs: Annotated[
        list[str] | None, typer.Option("--input", "-i", metavar="NAME=FILE", help="An input from a .npy, .npz or .pb file. Repeatable.")
    ] = None,
    batch: sources.BatchOption = None,
    seq: sources.SeqOption = None,
    shape: sources.ShapeOption = None,
    workers: options.Workers = None,
    name: Annotated[
        str | None,
        typer.Option("--name", help="The running runtime of this name; without MODEL by default 'default'.", callback=options.named),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", "-r", min=1, help="Requests of MODEL, after one that is not traced.")] = 3,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Requests of MODEL in flight at a time.")] = 1,
    seconds: Annotated[float | None, typer.Option("--seconds", min=0.0, help="Without MODEL: how long; default: until Ctrl-C.")] = None,
    records: Annotated[
        int,
        typer.Option(
            "--records", min=0, max=MOST_RECORDS, help="Records that each worker keeps, about one a tile; 0: some hundred thousand."
        ),
    ] = 0,
    as_json: output.Json = False,
) -> None:
    """Record what every worker does: tiles, steals, idle gaps, joins, deaths. Prints a summary; writes a trace and a picture."""
    import aspen_mp

    if model is None and (workers is not None or inputs):
        raise typer.BadParameter("a running runtime is traced as it is: give a MODEL to run one", param_hint="MODEL")
    if name is not None and workers is not None:
        raise typer.BadParameter("a running runtime has its own workers", param_hint="--name")
    for path in (file, png):
        if path is not None and not path.absolute().parent.is_dir():
            raise FileNotFoundError(f"no such folder: {path.absolute().parent}")
    if png is not None:
        from aspen_mp.tracing import plot

        plot.check()
    if model is None:
        with aspen_mp.connect(name or "default", retry=False) as runtime:
            _report(_watch(runtime, seconds, records, quiet=as_json), file, png, as_json)
        return
    shapes = {key: sources.parse_shape(value) for key, value in sources.pairs(shape, "--shape").items()}
    source = sources.resolve(model, batch, seq)
    with aspen_mp.connect(name, retry=False) if name is not None else aspen_mp.Runtime(workers=workers) as runtime:
        with output.progress(f"loading {source.label}", quiet=as_json) as update:
            loaded = runtime.load(source.model, name=source.label, instances=max(2, min(32, concurrency)), progress=update)
        feeds = feeds_for(source, loaded, inputs, shapes, batch=batch, seq=seq, seed=0)
        with output.progress(f"planning {source.label}", quiet=as_json):
            loaded.run(feeds)
        with runtime.trace(records=records) as recorded:
            _requests(loaded, feeds, repeat, concurrency)
        loaded.unload()
        _report(recorded, file, png, as_json)


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


def _watch(runtime: Runtime, seconds: float | None, records: int, *, quiet: bool) -> Trace:
    with Pause() as pause, runtime.trace(records=records) as recorded:
        if seconds is None and not quiet:
            output.notice(f"tracing {runtime.name}: Ctrl-C ends it")
        began = time.monotonic()
        while seconds is None or time.monotonic() - began < seconds:
            if not pause.wait(3600.0 if seconds is None else max(0.0, began + seconds - time.monotonic())):
                break
    return recorded


def _report(recorded: Trace, file: Path | None, png: Path | None, as_json: bool) -> None:
    summary = recorded.summary()
    if file is not None:
        with output.progress(f"writing {file}", quiet=as_json):
            summary["events_written"] = recorded.write(file)
        summary["file"] = str(file)
    if png is not None:
        recorded.plot(png)
        summary["png"] = str(png)
    if as_json:
        output.emit_json(summary)
        return
    typer.echo(recorded.text())
    for path in (file, png):
        if path is not None:
            output.notice(f"wrote {path}")
