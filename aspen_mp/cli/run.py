"""`aspen-mp run`: a model once or many times, its outputs, its latency, and whether onnxruntime agrees."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from aspen_mp.cli import options, output, sources
from aspen_mp.cli.frames import options as of_frames
from aspen_mp.cli.frames import runs as frames
from aspen_mp.client.arguments import WITHIN
from aspen_mp.client.trials.difference import largest_error
from aspen_mp.errors import AspenError, ResourceLimitError
from aspen_mp.shm.words import a

if TYPE_CHECKING:
    from aspen_mp import Model, Runtime


RUNS, RUNS_S = 10, 2.0
"""Timed runs where nobody says how many, and seconds after which none follows."""
WARMUP, WARMUP_S = 3, 0.5
"""The same of those before."""


@output.command
def run(
    model: sources.ModelArgument,
    against: Annotated[
        str | None,
        typer.Argument(
            metavar="[onnxruntime|float64]",
            help="The reference of --check: onnxruntime, or the model evaluated in float64.",
            show_default=False,
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option("--input", "-i", metavar="NAME=FILE", help="An input from a .npy, .npz or .pb file. May be given several times."),
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Use random values for inputs that are not given.")] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the random values.")] = 0,
    batch: sources.BatchOption = None,
    seq: sources.SeqOption = None,
    shape: sources.ShapeOption = None,
    workers: options.Workers = None,
    profile: Annotated[
        str | None, typer.Option("--profile", help="Profile of the private runtime: a name (default, container, hybrid) or a TOML file.")
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="Use the running runtime of this name instead of a private one.", callback=options.named)
    ] = None,
    repeat: Annotated[
        int | None,
        typer.Option(
            "--repeat", "-r", min=1, help=f"Number of timed runs, after a warm-up. Default: {RUNS}, or as many as fit into {RUNS_S:g} s."
        ),
    ] = None,
    output_dir: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write each output to this folder as NAME.npy.")
    ] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Compare every output with onnxruntime's. --check float64 compares with the model evaluated in float64, and also prints "
            "the errors of direct sums and of onnxruntime.",
        ),
    ] = False,
    winograd: sources.WinogradOption = None,
    accuracy: sources.AccuracyOption = None,
    precision: sources.AutoPrecisionOption = None,
    samples: sources.SamplesOption = None,
    within: sources.WithinOption = WITHIN,
    stacks: sources.StacksOption = True,
    objective: sources.ObjectiveOption = None,
    search: sources.SearchOption = "quick",
    stream: of_frames.StreamOption = None,
    tol: of_frames.TolOption = None,
    noise: of_frames.NoiseOption = 0.0,
    layer_tol: of_frames.LayerTolOption = 0.0,
    refresh: of_frames.RefreshOption = 0,
    same_bits: of_frames.SameBitsOption = None,
    stream_memory: of_frames.MemoryOption = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", help="Largest error that --check accepts, relative to the largest magnitude of the output.")
    ] = 1e-3,
    as_json: output.Json = False,
) -> None:
    """Run MODEL once or several times, and print the shapes of its outputs and the latency."""
    import aspen_mp

    model, reference = _checked(model, against, check)
    if name is not None and (workers is not None or profile is not None):
        raise typer.BadParameter(
            "a running runtime has its own workers and profile. Leave out --name, or --workers and --profile", param_hint="--name"
        )
    told = of_frames.how(tol, noise, layer_tol, refresh, same_bits, stream_memory)
    of_frames.check_options(stream, told, {"--random": random, "--check": check, "--shape": bool(shape)})
    shapes = {key: sources.parse_shape(value) for key, value in sources.pairs(shape, "--shape").items()}
    how: dict[str, Any] = {"winograd": winograd, "accuracy": sources.accuracy(accuracy)}
    how |= sources.auto_precision(precision, samples, within)
    how |= {"stacks": stacks, "objective": sources.objective(objective), "planning": sources.planning(search)}
    source = sources.resolve(model, batch, seq)
    runtime = aspen_mp.connect(name, retry=False) if name is not None else aspen_mp.Runtime(workers=workers, profile=profile)
    with runtime:
        began = time.perf_counter()
        with output.progress(f"loading {source.label}", quiet=as_json) as update:
            loaded = runtime.load(source.model, name=source.label, progress=update, **how)
        given = None if stream is None else frames.Frames(stream, loaded, inputs)
        if given is not None:
            feeds = given[0]
        else:
            feeds = feeds_for(source, loaded, inputs, shapes, batch=batch, seq=seq, seed=seed if random else None)
        with output.progress(f"planning {source.label}", quiet=as_json):
            prepare(loaded, feeds)
            loaded.run(feeds)  # touches memory for the first time
        if loaded.precision_choice is not None:
            output.notice(f"precision: {loaded.precision_choice}")
        report: dict[str, Any] = {"model": source.label, "workers": 0, "ready_s": time.perf_counter() - began}
        results, report["latency_ms"] = _timed(loaded, feeds, repeat, quiet=as_json)
        if given is not None:
            results = _streamed(loaded, given, told, output_dir, report, quiet=as_json)
        report["workers"] = len(runtime.workers)
        loaded.unload()
        direct = _by_direct_sums(runtime, source, feeds, quiet=as_json) if reference == "float64" else {}
    report["inputs"] = [{"name": key, **_summary(value)} for key, value in feeds.items()]
    report["outputs"] = [{"name": key, **_summary(value)} for key, value in results.items()]
    if output_dir is not None and given is None:
        report["files"] = _write(output_dir, results)
    if reference == "float64":
        with output.progress(f"evaluating {source.label} in float64", quiet=as_json):
            report["check"] = _check_exactly(source, feeds, results, direct, tolerance)
    elif reference:
        report["check"] = _check(source, feeds, results, tolerance)
    _show(report, as_json)
    if check and not all(row["ok"] for row in report["check"]):
        raise typer.Exit(1)


def prepare(model: Model, feeds: dict[str, Any]) -> None:
    """Have the plan for these shapes searched now, if shapes say what it is for."""
    if all(isinstance(value, np.ndarray) and not value.dtype.hasobject for value in feeds.values()):
        model.prepare({key: value.shape for key, value in feeds.items()})


def _timed(model: Model, feeds: dict[str, Any], repeat: int | None, *, quiet: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The outputs in the model's order, and the milliseconds of `repeat` runs (None: of `RUNS`, or what fits into `RUNS_S`). A warm-up of
    `WARMUP` runs, or what fits into `WARMUP_S`, comes first: at first caches are cold, and workers asleep."""
    results: dict[str, Any] = {}

    def runs(most: int, seconds: float, label: str) -> list[float]:
        found: list[float] = []
        with output.progress(label, quiet=quiet or most == 1, moving=False) as update:
            while len(found) < most and (not found or sum(found) < 1e3 * seconds):
                start = time.perf_counter()
                results.update(model.run(feeds))
                found.append(1e3 * (time.perf_counter() - start))
                update("", len(found), most)
        return found

    warmup = runs(WARMUP, WARMUP_S, "warming up")
    times = runs(RUNS, RUNS_S, "running") if repeat is None else runs(repeat, float("inf"), "running")
    latency = {"median": float(np.median(times)), "p95": float(np.percentile(times, 95)), "min": min(times)}
    latency |= {"runs": len(times), "warmup": len(warmup)}
    return {o.name: results[o.name] for o in model.outputs}, latency


def _streamed(
    model: Model, given: frames.Frames, told: dict[str, Any], folder: Path | None, report: dict[str, Any], *, quiet: bool
) -> dict[str, Any]:
    """The outputs of the last frame; the report gets the frames, and the files of each frame's outputs, in a folder of its own."""
    files: list[str] = []

    def write(frame: str, results: dict[str, Any]) -> None:
        if folder is not None:
            files.extend(_write(folder / _file_name(frame), results))

    results, report["stream"] = frames.run(model, given, told, write, quiet=quiet)
    if folder is not None:
        report["files"] = files
    return results


def _by_direct_sums(runtime: Runtime, source: sources.GivenModel, feeds: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """The outputs without algorithms of fewer multiplications."""
    with output.progress(f"running {source.label} by direct sums", quiet=quiet):
        label = f"{source.label}, direct"
        plain = runtime.load(source.model, name=label, winograd=False, precision="f32", planning=sources.planning("none"))
        results = plain.run(feeds)
        plain.unload()
    return results


def feeds_for(
    source: sources.GivenModel,
    model: Model,
    options: Sequence[str] | None,
    shapes: dict[str, tuple[int, ...]],
    *,
    batch: int | None,
    seq: int | None,
    seed: int | None,
) -> dict[str, Any]:
    """The inputs of a request: those that were given as files, random ones for the rest where there is a `seed`."""
    names = [i.name for i in model.inputs]
    needed = [i.name for i in model.inputs if not i.optional]
    files = sources.pairs(options, "--input", lone=needed[0] if len(needed) == 1 else None)
    for hint, given in (("--input", files), ("--shape", shapes)):
        for key in given:
            if key not in names:
                raise typer.BadParameter(f"the model has no input {key!r}. Its inputs are {', '.join(names)}", param_hint=hint)
    missing = [i for i in model.inputs if i.name not in files and not i.optional]
    if missing and seed is None:
        listed = ", ".join(f"{i.name} ({i.dtype} {sources.describe(i.shape)})" for i in missing)
        raise typer.BadParameter(f"no value for {listed}. Give --input NAME=FILE, or --random", param_hint="--input")
    feeds: dict[str, Any] = {key: sources.load_array(path, key) for key, path in files.items()}
    if missing and source.collection is not None and not shapes:
        made = source.collection.inputs(source.proto(), seed=seed or 0, batch=batch or 1, seq=seq or 128)
        feeds.update({i.name: made[i.name] for i in missing})
        missing = []
    limits = source.index_limits() if missing else {}
    rng = np.random.default_rng(seed)
    for i in missing:
        if i.kind != "tensor":
            raise typer.BadParameter(
                f"input {i.name!r} is {a(i.kind)}, for which there are no random values. Give it with --input", param_hint="--random"
            )
        dims = sources.bind_shape(i.name, i.shape, shapes, batch, seq)
        try:
            feeds[i.name] = sources.random_array(i.name, i.dtype, dims, limits.get(i.name), rng)
        except (MemoryError, ValueError, OverflowError):
            raise ResourceLimitError(f"there is no memory for random values of input {i.name!r}, shape {list(dims)}") from None
    return {key: feeds[key] for key in names if key in feeds}


def _summary(value: Any) -> dict[str, Any]:
    if isinstance(value, np.ndarray):
        return {"dtype": "string" if value.dtype == object else value.dtype.name, "shape": list(value.shape)}
    if isinstance(value, (list, tuple)):
        return {"dtype": "sequence", "shape": [len(value)]}
    return {"dtype": type(value).__name__, "shape": []}


def _write(folder: Path, results: dict[str, Any]) -> list[str]:
    """Each output as NAME.npy (sequences: NAME.0.npy, …; strings as numpy strings; bfloat16 and 8-bit floats as float32)."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []

    def write(stem: str, value: Any) -> None:
        if isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                write(f"{stem}.{i}", item)
            return
        path = folder / f"{stem}.npy"
        if value is None or isinstance(value, dict):
            path = path.with_suffix(".json")
            path.write_text(json.dumps(value, default=lambda x: np.asarray(x).tolist()))
        else:
            array = np.asarray(value)
            array = array.astype(str) if array.dtype == object else array.astype(np.float32) if array.dtype.kind == "V" else array
            np.save(path, array, allow_pickle=False)
        written.append(str(path))

    for key, value in results.items():
        write(_file_name(key), value)
    return written


def _file_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in text).lstrip(".") or "output"


CHECKS = ("onnxruntime", "float64")


def _checked(model: str, against: str | None, check: bool) -> tuple[str, str]:
    """The model, and what it is to be compared with ("": nothing). The word that follows --check comes as an argument, before or after the
    model."""
    if against is not None and model in CHECKS and against not in CHECKS:
        model, against = against, model
    if against is not None and (against not in CHECKS or not check):
        raise typer.BadParameter(
            f"unexpected argument {against!r}. After the model, write --check {' or --check '.join(CHECKS)}, or nothing"
        )
    return model, (against or CHECKS[0]) if check else ""


def _check(source: sources.GivenModel, feeds: dict[str, Any], results: dict[str, Any], tolerance: float) -> list[dict[str, Any]]:
    expected = _by_onnxruntime(source, feeds, list(results))
    return [{"name": key, **compare(results[key], want, tolerance)} for key, want in zip(results, expected, strict=True)]


def _by_onnxruntime(source: sources.GivenModel, feeds: dict[str, Any], names: list[str]) -> list[Any]:
    """onnxruntime's outputs. AspenError: it is not installed, or cannot run the model."""
    try:
        import onnxruntime
    except ImportError:
        raise AspenError("--check compares with onnxruntime, which is not installed. Install it with: pip install onnxruntime") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if source.joins:
        source.proto()  # says why not
    model = source.model if isinstance(source.model, str) else source.model.SerializeToString()
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return list(session.run(names, feeds))
    except Exception as error:  # onnxruntime's errors share no base class
        raise AspenError(f"onnxruntime cannot run this model, so there is nothing to compare with: {error}") from None


def _check_exactly(
    source: sources.GivenModel, feeds: dict[str, Any], results: dict[str, Any], direct: dict[str, Any], tolerance: float
) -> list[dict[str, Any]]:
    """Errors of every output against float64. `error`: ours. `direct`: ours by direct sums. `onnxruntime`: its error, None where it is
    missing or cannot run the model."""
    from aspen_mp.tools import float64

    names = list(results)
    exact = float64.evaluate(source.proto(), feeds, names)
    try:
        theirs: list[Any] | None = _by_onnxruntime(source, feeds, names)
    except AspenError:
        theirs = None
    rows = []
    for k, (name, want) in enumerate(zip(names, exact, strict=True)):
        error = error_from(results[name], want)
        other = None if theirs is None else error_from(theirs[k], want)
        plain = error_from(direct[name], want)
        rows.append({"name": name, "error": error, "ok": error <= tolerance, "direct": plain, "onnxruntime": other})
    return rows


def error_from(got: Any, exact: Any) -> float:
    """The largest difference from a value in float64, relative to its largest magnitude; infinite for another shape."""
    if isinstance(exact, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(exact):
            return float("inf")
        return max((error_from(g, e) for g, e in zip(got, exact, strict=True)), default=0.0)
    got, exact = np.asarray(got), np.asarray(exact)
    return largest_error(got, exact) if got.shape == exact.shape else float("inf")


def compare(got: Any, want: Any, tolerance: float) -> dict[str, Any]:
    """`error`: largest difference relative to the largest magnitude of `want` (0 or 1 for no numbers); `ok`: not above `tolerance`.

    Not-a-numbers and infinities must stand at the same places.
    """
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return {"error": float("inf"), "ok": False}
        rows = [compare(g, w, tolerance) for g, w in zip(got, want, strict=True)]
        return {"error": max((r["error"] for r in rows), default=0.0), "ok": all(r["ok"] for r in rows)}
    if not isinstance(want, np.ndarray):
        same = bool(got == want)
        return {"error": 0.0 if same else 1.0, "ok": same}
    got = np.asarray(got)
    if got.shape != want.shape or got.dtype != want.dtype:
        return {"error": float("inf"), "ok": False, "got": f"{got.dtype} {got.shape}", "want": f"{want.dtype} {want.shape}"}
    error = largest_error(got, want)
    return {"error": error, "ok": error <= tolerance}


def _show(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        output.emit_json(report)
        return
    checks = {row["name"]: row for row in report.get("check", ())}
    exactly = any("direct" in row for row in checks.values())
    headings = ["error vs float64", "", "direct sums", "onnxruntime"] if exactly else ["error vs onnxruntime", ""]
    columns = ["output", "dtype", "shape", *(headings if checks else [])]
    rows = []
    for row in report["outputs"]:
        cells = [row["name"], row["dtype"], sources.describe(row["shape"])]
        if checks:
            found = checks[row["name"]]
            cells += [f"{found['error']:.2e}", "ok" if found["ok"] else f"differs {found.get('got', '')} {found.get('want', '')}".strip()]
            if exactly:
                theirs = found["onnxruntime"]
                cells += [f"{found['direct']:.2e}", "cannot run it" if theirs is None else f"{theirs:.2e}"]
        rows.append(cells)
    output.table("", columns, rows)
    times = report["latency_ms"]
    if "stream" in report:
        output.out.print()
        frames.show(report["stream"], times)
    spread = f"median {times['median']:.2f} ms, p95 {times['p95']:.2f} ms, min {times['min']:.2f} ms"
    runs = f"{output.count(times['runs'], 'run')} after {output.count(times['warmup'], 'warm-up run')}"
    speed = f"{spread if times['runs'] > 1 else format(times['median'], '.2f') + ' ms'} ({runs})"
    output.out.print(f"\n{report['model']} on {output.count(report['workers'], 'worker')}: {speed}; ready after {report['ready_s']:.2f} s")
    for path in report.get("files", ()):
        output.out.print(f"wrote {path}")
