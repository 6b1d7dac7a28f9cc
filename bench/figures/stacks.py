"""What is it worth to run layers depth first? `aspen-mp bench stacks`.

It repeats BrainSlug's experiment (Weber et al., 2018, section 5.1 and figure 10). Chains of ever more blocks of <MaxPool 3×3,
BatchNormalization, Relu> run on images of two sizes. Where the layers of a chain run one after the other, each of them reads and writes a
whole tensor. Where they run depth first, a block costs its arithmetic. The paper compares sequences of one step, of five and of as many as
fit a cache. So ours runs a second time with every layer by itself (`Experiment.stacks`), and a third time with few steps
(`Experiment.stack_steps`). Networks are measured in the same way (table 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from aspen_mp.bench.figures.compare import Comparison, compare
from aspen_mp.bench.figures.layers import Layers
from aspen_mp.bench.figures.seats import OURS, Say, Schedule, Variant
from aspen_mp.bench.peers.cases import Case
from aspen_mp.bench.peers.engines import ENGINES
from aspen_mp.shm.words import count

LAYERS = f"{OURS} layer by layer"
STEPS = (5,)
"""Steps of a sequence at most, as in the paper, besides one and as many as fit."""
BLOCKS = (1, *range(2, 41, 2))
"""Lengths of chains, as in the paper."""
SHAPES = ((1, 64, 224, 224), (16, 32, 56, 56))
NETWORKS = ("sppf", "sppf@channels=128,image=40x40", "poolformer", "inception_pools", "depthwise_chain")
"""Networks that are measured beside the chains."""
LONG = 4
"""Blocks of a chain from which on a block should always take the same time."""

Shape = tuple[int, int, int, int]


@dataclass(slots=True)
class Point:
    """A chain of so many blocks."""

    blocks: int
    found: Comparison

    def per_block(self, label: str) -> float:
        """Milliseconds of a variant for each block, the median over rounds."""
        return self.found[label].median_ms / self.blocks


@dataclass(slots=True)
class Chain:
    """Chains on images of one shape: batch, channels, rows, columns."""

    shape: Shape
    points: list[Point]

    @property
    def name(self) -> str:
        """The shape as people write it."""
        return "×".join(map(str, self.shape))

    @property
    def labels(self) -> list[str]:
        """Labels of the variants that were measured on any of them, in its order."""
        return list(dict.fromkeys(entry.label for point in self.points for entry in point.found.entries))

    @property
    def unevenness(self) -> float | None:
        """How much longer a block takes in one of our chains than in another, as a share; of chains of `LONG` blocks or more."""
        times = [point.per_block(OURS) for point in self.points if point.blocks >= LONG and OURS in point.found]
        return max(times) / min(times) - 1 if len(times) > 1 else None


@dataclass(slots=True)
class StacksResult:
    """What `aspen-mp bench stacks` has found: chains and networks, or with --table the `layers` of networks."""

    chains: list[Chain] = field(default_factory=list)
    networks: list[Comparison] = field(default_factory=list)
    layers: list[Layers] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)

    @property
    def comparisons(self) -> list[Comparison]:
        """All that was measured."""
        return [*(point.found for chain in self.chains for point in chain.points), *self.networks]


def case_of(shape: Shape, blocks: int) -> Case:
    """A chain of so many blocks."""
    batch, channels, height, width = shape
    return Case("pool_blocks", batch, options={"blocks": blocks, "channels": channels, "image": (height, width)})


def with_steps(count: int) -> str:
    """The label of ours with sequences of at most `count` steps."""
    return f"{OURS}, {count} steps"


def measure(
    case: Case, cores: Sequence[int], engines: Sequence[str], schedule: Schedule, say: Say, steps: Sequence[int] | None = None
) -> Comparison:
    """A network on these cores; ours also layer by layer, and with sequences of at most `steps` steps, where a chain has more of them.
    None: those of the paper for chains, none for other networks."""
    blocks = case.options.get("blocks")
    if steps is None:
        steps = STEPS if blocks else ()
    variants = [Variant(name, name, cores) for name in engines]
    if OURS in engines:
        plannings: dict[str, dict[str, int]] = {LAYERS: {"stacks": False}}
        plannings |= {with_steps(count): {"stack_steps": count} for count in steps if not blocks or count < blocks}
        variants[1:1] = [Variant(label, OURS, cores, {"planning": planning}) for label, planning in plannings.items()]
    return compare(case, variants, schedule, say)


def ours_by(result: Comparison, label: str) -> float | None:
    """Our time by that of a variant, the middle of the rounds' ratios."""
    return 1 / result[label].ratio if label != OURS and OURS in result and label in result else None


def ours_by_fastest(result: Comparison) -> float | None:
    """Our time by that of the fastest other runtime."""
    ratios = [ours_by(result, entry.label) for entry in result.entries if entry.engine != OURS]
    return max((ratio for ratio in ratios if ratio is not None), default=None)


def verdict(result: Comparison, name: str | None = None) -> str:
    """The result in one line. `name`: what was measured, where that is not the case as it is written."""
    name = name or result.case
    ratios = {entry.label: ours_by(result, entry.label) for entry in result.entries}
    parts = [f"{ratio:.2f} of {label}" for label, ratio in ratios.items() if ratio is not None]
    if not parts:
        return f"{name}: nothing was compared"
    return f"{name}, {count(result[OURS].cores, 'worker')}: our time is {', '.join(parts)}"


def chain_verdict(chain: Chain) -> str:
    """The result of the longest chain, and how even the others are."""
    longest = max(chain.points, key=lambda point: point.blocks)
    text = verdict(longest.found, f"{chain.name}, {count(longest.blocks, 'block')}")
    uneven = "" if chain.unevenness is None else f"; from {LONG} blocks on, times of a block differ by {chain.unevenness:.0%}"
    return text + uneven


def plot(result: StacksResult, file: Path) -> None:
    """Time of a block by length of the chain, a picture for each shape and a curve for each variant. Without chains: our time by that of
    each other variant, network by network. As a PNG or SVG."""
    from aspen_mp.bench.figures.picture import bars, colour, pyplot, save

    if not result.chains:
        ratios = [(r.case, {e.label: ours_by(r, e.label) for e in r.entries}) for r in result.networks]
        rows = [(case, {label: ratio for label, ratio in found.items() if ratio is not None}) for case, found in ratios]
        bars(rows, f"time of {OURS}, the other's = 1", file)
        return
    from matplotlib.ticker import LogLocator

    plt = pyplot()
    figure, axes = plt.subplots(1, len(result.chains), figsize=(5 * len(result.chains), 4), layout="constrained", squeeze=False)
    for panel, chain in zip(axes[0], result.chains, strict=True):
        for label in chain.labels:
            points = [(point.blocks, point.per_block(label)) for point in chain.points if label in point.found]
            style = "o--" if label == LAYERS else "o:" if label not in ENGINES else "o-"
            engine = label if label in ENGINES else OURS
            panel.plot([n for n, _ in points], [ms for _, ms in points], style, color=colour(engine), label=label, markersize=3)
        panel.set(title=chain.name, xlabel="blocks", ylabel="time of a block, ms", xlim=(0, None), yscale="log")
        panel.yaxis.set_major_formatter("{x:g}")
        panel.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
        panel.yaxis.set_minor_formatter("{x:g}")
    axes[0][0].legend(fontsize=8)
    save(figure, file)
