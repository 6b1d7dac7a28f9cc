"""The schedule of several networks as a picture: a row for each domain's cores, layer groups coloured by job, the slowdown as shade."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from aspen_mp.errors import AspenError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from aspen_mp.planner.coschedule.evaluate import ScheduledGroup
    from aspen_mp.planner.coschedule.together import Together

WIDTH: Final = 12.0
"""Inches."""
SLOW: Final = 1.02
"""Groups that take longer than alone by this factor are hatched."""


def check() -> None:
    """AspenError where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise AspenError("pictures of schedules need matplotlib. Install it with: pip install matplotlib") from None


def draw(found: Together, path: str | os.PathLike[str]) -> None:
    """Writes the picture, in the format that the name ends in (.png, .svg, .pdf). AspenError: matplotlib is missing."""
    check()
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    problem = found.problem
    figure = Figure(figsize=(WIDTH, 1.8 + 1.1 * len(problem.domains)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    palette = colormaps["tab10"]
    for step, places in _places(found):
        alone = float(problem.jobs[step.job].network.ns[step.group, step.set])
        slow = step.end - step.start > SLOW * alone
        for begin, cores in places:
            _box(axes, step, begin, cores, palette(step.job % 10), slow)
    axes.autoscale_view()
    axes.set_ylim(sum(domain.cores for domain in problem.domains), 0)
    begins = [sum(domain.cores for domain in problem.domains[:d]) for d in range(len(problem.domains))]
    middles = [begin + domain.cores / 2 for begin, domain in zip(begins, problem.domains, strict=True)]
    axes.set_yticks(middles, [f"{domain.cores} cores{' ' if domain.name else ''}{domain.name}" for domain in problem.domains])
    for begin in begins[1:]:
        axes.axhline(begin, color="black", linewidth=0.6)
    axes.set_xlabel("ms")
    unit, value = ("ms", found.incumbent.value * 1e-6) if found.objective == "latency" else ("runs/s", found.incumbent.value * 1e9)
    axes.set_title(
        f"{found.objective}: {value:.3f} {unit}, {'proven' if found.incumbent.proven else 'not proven'}", fontsize=10, loc="left"
    )
    labels = [Patch(color=palette(k % 10), label=f"{k + 1} {job.network.name}") for k, job in enumerate(problem.jobs)]
    labels.append(Patch(facecolor="white", edgecolor="0.3", hatch="////", label="slowed down by others"))
    figure.legend(handles=labels, loc="outside lower center", ncols=min(5, len(labels)), fontsize=8, frameon=False)
    figure.savefig(path)


def _box(axes: Axes, step: ScheduledGroup, begin: int, cores: int, colour: Any, slow: bool) -> None:
    left, width = step.start * 1e-6, (step.end - step.start) * 1e-6
    axes.broken_barh(
        [(left, width)], (begin + 0.04, cores - 0.08), facecolors=colour, edgecolors="white", linewidth=0.6, hatch="////" if slow else None
    )
    axes.annotate(str(step.group + 1), (left + width / 2, begin + cores / 2), fontsize=6, ha="center", va="center", clip_on=True)


def _places(found: Together) -> list[tuple[ScheduledGroup, list[tuple[int, int]]]]:
    """Each group with its rows of cores: (first row, how many), none of which another group has at the time."""
    domains, sets = found.problem.domains, found.problem.sets
    free_at: list[list[float]] = [[0.0] * domain.cores for domain in domains]
    out = []
    for step in sorted(found.schedule.steps, key=lambda step: (step.start, step.job)):
        places, base = [], 0
        for d, domain in enumerate(domains):
            wanted = sets[step.set].cores[d]
            rows = [k for k, at in enumerate(free_at[d]) if at <= step.start * (1 + 1e-9)][:wanted]
            for row in rows:
                free_at[d][row] = step.end
            places += _runs([base + row for row in rows])
            base += domain.cores
        out.append((step, places))
    return out


def _runs(rows: list[int]) -> list[tuple[int, int]]:
    """Neighbouring rows as (first, how many)."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and row == sum(found[-1]):
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((row, 1))
    return found
