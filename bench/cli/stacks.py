"""`aspen-mp bench stacks`: layers that run depth first, beside other runtimes, and which layers of networks do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from aspen_mp.bench.cli import findings, options
from aspen_mp.bench.cli.benchmark import Run, benchmark

if TYPE_CHECKING:
    from aspen_mp.bench.figures.compare import Comparison
    from aspen_mp.bench.figures.layers import Layers
    from aspen_mp.bench.figures.stacks import Chain, Shape
    from aspen_mp.bench.peers.cases import Case


Blocks = Annotated[
    str | None,
    typer.Option("--blocks", metavar="1,2,4", help="Measure chains of these numbers of blocks. Default: 1, and even numbers up to 40."),
]
Shapes = Annotated[
    str | None,
    typer.Option("--shapes", metavar="1x64x224x224", help="Batch, channels, rows, columns of chains. Default: the paper's two."),
]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps", metavar="5,10", help="Measure ours also with sequences of at most these numbers of steps. Default: 5, of chains."
    ),
]
AllEngines = Annotated[str | None, typer.Option("--engines", metavar="A,B", help="Engines to measure. Default: all that are installed.")]


@benchmark()
def stacks(
    run: Run,
    networks: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NETWORK…",
            help="Networks of the zoo, such as sppf. Default: some small ones and chains; with --batches or --table, 21 of torchvision.",
        ),
    ] = None,
    blocks: Blocks = None,
    shapes: Shapes = None,
    steps: Steps = None,
    batches: Annotated[
        str | None, typer.Option("--batches", metavar="1,8,32", help="Measure networks with these numbers of images.")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="Measure nothing. Count layers and stacks of networks.")] = False,
    cores: options.Cores = None,
    engines: AllEngines = None,
    rounds: options.Rounds = 5,
    seconds: options.Seconds = 0.3,
    runs: options.Runs = 3,
) -> None:
    """Measure pooling, element-wise and depthwise layers that run depth first, beside other runtimes.

    A chain has blocks of a maximum of 3×3, a BatchNorm and a ReLU, as in the paper on BrainSlug. Exit status 1 if an engine failed.
    """
    from aspen_mp.bench.figures import layers
    from aspen_mp.bench.figures import stacks as bench
    from aspen_mp.bench.peers.engines import ENGINES

    if table and run.plot is not None:
        raise typer.BadParameter("a table has no picture. Leave out --plot or --table", param_hint="--plot")
    (cpus,) = options.core_sets(None, cores)
    others = _cases(networks or (layers.NETWORKS if batches or table else bench.NETWORKS), batches)
    if table:
        run.record(bench.StacksResult(layers=_counted(run, others, cpus)))
        return
    lengths = options.counts(blocks, "--blocks") if blocks else list(bench.BLOCKS)
    limits = options.counts(steps, "--steps", least=2) if steps else None
    named, chained = networks or batches, blocks or shapes
    wanted = (_shapes(shapes) if shapes else bench.SHAPES) if chained or not named else ()
    others = others if named or not chained else []
    chosen, absent = options.engines(engines or ",".join(ENGINES))
    schedule = options.schedule(rounds, seconds, runs)
    cases = [*(bench.case_of(shape, n) for shape in wanted for n in lengths), *others]
    measured = iter(run.each(cases, lambda case, say: bench.measure(case, cpus, chosen, schedule, say, limits)))
    chains = [bench.Chain(shape, [bench.Point(n, next(measured)) for n in lengths]) for shape in wanted]
    result = bench.StacksResult(chains, list(measured), absent=absent)
    run.draw(bench.plot, result)
    shown = [*map(_chain, chains), *map(_network, result.networks)]
    run.end(result, shown, absent, disturbed=sum(each.disturbed for each in result.comparisons))


def _counted(run: Run, cases: Sequence[Case], cpus: Sequence[int]) -> list[Layers]:
    from aspen_mp.bench.figures import layers

    found = run.each(cases, lambda case, _: layers.measure(case, cpus))
    findings.show([_layers(found)], (), run.as_json)
    return found


def _cases(networks: Sequence[str], batches: str | None) -> list[Case]:
    """Networks, each with so many images; those that name their batch are there once."""
    sizes = options.counts(batches, "--batches") if batches else [1]
    return list({case.label: case for size in sizes for case in options.cases([*networks], size)}.values())


def _shapes(text: str) -> list[Shape]:
    """Shapes between commas."""
    found: list[Shape] = []
    for part in text.split(","):
        sides = part.split("x")
        if len(sides) != 4 or not all(side.isdigit() and int(side) for side in sides):
            raise typer.BadParameter(f"{part!r} is not a shape of an image. Write it like 1x64x224x224", param_hint="--shapes")
        batch, channels, height, width = map(int, sides)
        found.append((batch, channels, height, width))
    return found


def _chain(chain: Chain) -> findings.Shown:
    from aspen_mp.bench.figures.stacks import chain_verdict

    rows = [[point.blocks, *row] for point in chain.points for row in _entries(point.found, point.blocks)]
    columns = ["blocks", "engine", "cores", "ms", "min ms", "ms a block", "ours / its"]
    failed = {label: why for point in chain.points for label, why in point.found.failed.items()}
    return findings.Shown(chain.name, columns, rows, chain_verdict(chain), failed=failed)


def _network(result: Comparison) -> findings.Shown:
    from aspen_mp.bench.figures.stacks import verdict

    columns = ["engine", "cores", "ms", "min ms", "ours / its"]
    return findings.Shown(result.case, columns, _entries(result), verdict(result), failed=result.failed)


def _entries(result: Comparison, blocks: int | None = None) -> list[list[object]]:
    """A row for each variant; with the time of one of `blocks` blocks."""
    from aspen_mp.bench.figures.stacks import ours_by

    rows: list[list[object]] = []
    for entry in result.entries:
        ratio = ours_by(result, entry.label)
        per_block = [] if blocks is None else [f"{entry.median_ms / blocks:.3f}"]
        times = [f"{entry.median_ms:.2f}", f"{entry.min_ms:.2f}", *per_block]
        rows.append([entry.label, entry.cores, *times, "" if ratio is None else f"{ratio:.3f}"])
    return rows


def _layers(found: Sequence[Layers]) -> findings.Shown:
    columns = ["network", "layers", "optimisable", "of the layers", "of the time", "stacks", "of the time"]
    rows = [
        [*(r.case, r.layers, r.optimisable, f"{r.optimisable / r.layers:.0%}", f"{r.share:.1%}"), *(r.stacks, f"{r.stacked:.1%}")]
        for r in found
    ]
    text = "optimisable: pooling, normalisation, activation and other element-wise layers, and their share of the time layer by layer; "
    return findings.Shown("", columns, rows, text + "stacks: of layers that run depth first; all times as predicted for one core")
