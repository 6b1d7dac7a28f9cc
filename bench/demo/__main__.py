"""`python -m aspen_mp.bench.demo ["a question"]`: semantic search with all-MiniLM-L6-v2 on aspen-mp."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from aspen_mp.errors import AspenError

from .minilm import Batch, Encoder, MissingPackage, build
from .search import Embedded, Hit, Run, embed, query_batch, rank, read_sentences, shapes

if TYPE_CHECKING:
    import onnx
    from numpy.typing import NDArray

QUESTION = "Which animals sleep through the winter?"
QUERY_RUNS = 20


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m aspen_mp.bench.demo", description=__doc__)
    parser.add_argument("query", nargs="?", default=QUESTION, help=f"The question to answer (default: {QUESTION!r}).")
    parser.add_argument("--workers", type=positive, help="Number of worker processes (default: one for each core that may be used).")
    parser.add_argument("--top", type=positive, default=8, help="Number of sentences to show (default: 8).")
    parser.add_argument("--batch", type=positive, default=32, help="Number of sentences that are embedded together (default: 32).")
    parser.add_argument("--text", type=Path, metavar="FILE", help="Search this text instead. It has one sentence a line.")
    parser.add_argument("--json", action="store_true", help="Print one JSON object instead of tables.")
    return parser.parse_args(argv)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return value


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    console = Console(stderr=True)
    try:
        report = search(args, console)
    except (AspenError, MissingPackage, OSError) as error:
        console.print(Text.assemble(("error: ", "red"), str(error)), soft_wrap=True)
        return 1
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        show(report, Console())
    return 0


def search(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """Loads the model, embeds the collection, answers the query, compares with onnxruntime."""
    import aspen_mp

    sentences = read_sentences(args.text)
    if not sentences:
        raise OSError(f"{args.text} has no sentences. Give a text with one sentence per line")
    columns = (TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("building the model", total=1)
        model, encoder = build(), Encoder()
        batches, question = encoder.batches([s.text for s in sentences], args.batch), query_batch(encoder, args.query)
        progress.advance(task)
        task = progress.add_task("starting the runtime", total=1)
        begin = time.perf_counter()
        with aspen_mp.Runtime(workers=args.workers) as runtime:
            workers = len(runtime.workers)
            loaded = runtime.load(model, name="all-MiniLM-L6-v2")
            progress.advance(task)
            started = time.perf_counter() - begin

            def run(feeds: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
                return np.asarray(loaded.run(feeds)["embedding"], np.float32)

            ours, first, queries, vector = measure(run, batches, question, progress)
            made = sum(not plan["cached"] for each in runtime.status()["models"] for plan in each["plans"])
        theirs = reference(model, batches, workers, progress)
    return {
        "query": args.query,
        "hits": [vars_of(hit) for hit in rank(vector, ours.vectors, sentences, args.top)],
        "model": "all-MiniLM-L6-v2",
        "sentences": len(sentences),
        "workers": workers,
        "start_s": started,
        "plans_made": made,
        "first_requests": [{"sentences": n, "tokens": t, "seconds": s} for (n, t), s in first.items()],
        "embedding": timings(ours, len(sentences)),
        "query_ms": {"median": 1e3 * statistics.median(queries), "min": 1e3 * min(queries)},
        "onnxruntime": compared(ours, theirs, len(sentences)),
    }


def measure(
    run: Run, batches: list[Batch], question: Batch, progress: Progress
) -> tuple[Embedded, dict[tuple[int, int], float], list[float], NDArray[np.float32]]:
    """Embeddings of the collection, seconds of the first run of each input shape, seconds of the query's runs, the query's embedding."""
    first = shapes([*batches, question])
    task = progress.add_task("first request of each shape", total=len(first))
    seconds: dict[tuple[int, int], float] = {}
    for batch in first:
        begin = time.perf_counter()
        run(batch.feeds)
        seconds[batch.shape] = time.perf_counter() - begin
        progress.advance(task)
    task = progress.add_task("embedding the sentences", total=len(batches))
    ours = embed(run, batches, lambda: progress.advance(task))
    queries, vector = [], np.empty(0, np.float32)
    for _ in range(QUERY_RUNS):
        begin = time.perf_counter()
        vector = run(question.feeds)[0]
        queries.append(time.perf_counter() - begin)
    return ours, seconds, queries, vector


def reference(model: onnx.ModelProto, batches: list[Batch], threads: int, progress: Progress) -> Embedded | None:
    """The same batches on onnxruntime, None where it is not installed."""
    try:
        import onnxruntime
    except ModuleNotFoundError:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def run(feeds: dict[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        return np.asarray(session.run(None, feeds)[0], np.float32)

    for batch in shapes(batches):
        run(batch.feeds)
    task = progress.add_task("comparing with onnxruntime", total=len(batches))
    return embed(run, batches, lambda: progress.advance(task))


def vars_of(hit: Hit) -> dict[str, Any]:
    return {"rank": hit.rank, "score": hit.score, "text": hit.text, "topic": hit.topic}


def timings(result: Embedded, sentences: int) -> dict[str, Any]:
    per_batch = [
        {"sentences": batch.shape[0], "tokens": batch.shape[1], "ms": 1e3 * seconds}
        for batch, seconds in zip(result.batches, result.seconds, strict=True)
    ]
    total = sum(result.seconds)
    return {
        "total_s": total,
        "sentence_ms": 1e3 * total / sentences,
        "sentences_per_s": sentences / total,
        "batch_ms": {"median": 1e3 * statistics.median(result.seconds), "max": 1e3 * max(result.seconds)},
        "batches": per_batch,
    }


def compared(ours: Embedded, theirs: Embedded | None, sentences: int) -> dict[str, Any] | None:
    if theirs is None:
        return None
    difference = float(np.abs(ours.vectors - theirs.vectors).max())
    return {"largest_difference": difference, "largest_value": float(np.abs(theirs.vectors).max()), "embedding": timings(theirs, sentences)}


def show(report: dict[str, Any], console: Console) -> None:
    table = Table(title=f"“{report['query']}”", title_justify="left", title_style="bold")
    table.add_column("", justify="right")
    table.add_column("closeness", justify="right")
    table.add_column("sentence")
    table.add_column("topic", style="dim")
    for hit in report["hits"]:
        table.add_row(str(hit["rank"]), f"{hit['score']:.3f}", hit["text"], hit["topic"])
    console.print(table)

    peer = report["onnxruntime"]
    times = Table(title=f"{report['sentences']} sentences, {report['workers']} workers", title_justify="left", title_style="bold")
    times.add_column("")
    times.add_column("aspen-mp", justify="right")
    times.add_column("onnxruntime", justify="right")

    def row(label: str, unit: str, ours: float, theirs: float | None) -> None:
        times.add_row(label, f"{ours:.2f} {unit}", "–" if theirs is None else f"{theirs:.2f} {unit}")

    ours, theirs = report["embedding"], peer["embedding"] if peer else None
    row("one sentence, in batches", "ms", ours["sentence_ms"], theirs and theirs["sentence_ms"])
    row("one batch, median", "ms", ours["batch_ms"]["median"], theirs and theirs["batch_ms"]["median"])
    row("all sentences", "s", ours["total_s"], theirs and theirs["total_s"])
    row("the query alone, median", "ms", report["query_ms"]["median"], None)
    plans = f"{report['plans_made']} plans made, once" if report["plans_made"] else "plans from the cache"
    row(
        f"first requests of {len(report['first_requests'])} shapes, {plans}", "s", sum(p["seconds"] for p in report["first_requests"]), None
    )
    row("starting workers, loading weights", "s", report["start_s"], None)
    console.print(times)
    if peer:
        console.print(f"largest difference from onnxruntime: {peer['largest_difference']:.1e} (largest value {peer['largest_value']:.2f})")
    else:
        console.print("not compared: onnxruntime is not installed (pip install onnxruntime)")


if __name__ == "__main__":
    sys.exit(main())
