"""How a model is planned, as far as that can be chosen. Light, because clients and the planner process import it."""

from __future__ import annotations

import math
from typing import Annotated, Final, Literal

import msgspec

MOST_TILES = 4096
"""Tiles that a node may be asked to have."""
MOST_IN_FLIGHT = 1024
"""Requests at a time that tiles may be cut for."""
Keeping = Literal["", "bits", "values", "near", "rows"]
"""The purpose of kept activations: none, streams whose results have the bits of whole runs, or streams that recompute what exact arithmetic
would change. "near" is "values" with thresholds, where small changes end. "rows" is "bits" for requests whose inputs arrive by rows."""
Objective = Literal["latency", "throughput"]
"""The aim of a model's tiles and instances: that one request ends soon, or that many are done in a time."""
OBJECTIVES: Final[tuple[Objective, ...]] = ("latency", "throughput")
LEAST_SEARCHED_NS: Final = 100_000.0
"""The tiles of networks of less work than this are not searched."""
Effort = Literal["none", "quick", "thorough"]
Vectors = Literal["", "short", "halved", "whole"]
"""The vectors that a core multiplies: "short" ones of 256 bits, ones of 512 in two halves or whole; "": none of these (`_isa.vectors`)."""
Precision = Literal["f32", "bf16"]
"""The types to which products with constant weights may round their factors."""
PRECISIONS: Final[tuple[Precision, ...]] = ("f32", "bf16")
Accuracy = Literal["strict", "default", "fast"]
"""How much rounding error algorithms of fewer multiplications may add to that of direct sums (`planner.cost.accuracy`)."""
ACCURACIES: Final[tuple[Accuracy, ...]] = ("strict", "default", "fast")
EFFORTS: Final[tuple[Effort, ...]] = ("none", "quick", "thorough")


class Planning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is planned, where that is not left to the planner. Results have the same bits whatever it says.

    Loads of one model with different plannings are different models, also in the plan cache.

    Args:
        search: How long to search for the tiles that finish soonest on the workers that there are. "none": each operator's tiles are
            chosen by themselves. "quick": a search of seconds at most. "thorough": a search from several starts, as long as it finds
            better tiles.
        longest_ms: The longest that a tile should take, in milliseconds by the planner's estimate. A request of a higher priority may wait
            that long for a core. None: as long as is best for requests alone, until such a request comes, and then ``preempt_ms`` of the
            runtime. 0: always as long as is best for requests alone.
    """

    search: Effort = "quick"
    longest_ms: Annotated[float, msgspec.Meta(ge=0, le=60_000)] | None = None

    def checked(self, *, stacks: bool = True) -> Experiment:
        """Return it as the planner takes it. `stacks`: False plans every layer by itself. ValueError says which value is out of range."""
        try:
            found = msgspec.convert(msgspec.to_builtins(self), Experiment)
        except msgspec.ValidationError as error:
            raise ValueError(f"planning: {error}") from None
        return found if stacks else msgspec.structs.replace(found, stacks=False)


class Experiment(Planning, frozen=True, forbid_unknown_fields=True):
    """Further options for tests and measurements; `Runtime.load` takes it in place of a `Planning`.

    `tiles`: cut every layer into about so many tiles, as far as its size and its kernel's granules allow; then nothing is searched.
    `barriers`: operator barriers as other runtimes have them: no tile of an operator starts before all tiles of the operators before it are
    done. The tiles are those of the same planning without barriers, searched for without them. So two such plans differ by the barriers
    alone. The plan with barriers says nothing of the search, whose predictions are of the other.
    `stacks`: whether layers may run depth first in one kernel (`planner.passes.stacks`); False plans each of them by itself.
    `in_flight`: for how many requests at a time the tiles are cut; 1: for requests alone. More finish more of them, later each
    (`planner.tiling.teams`). A runtime sets it for models that are loaded for throughput.
    `by_rows`: whether inputs arrive by rows, so that algorithms are chosen which do not wait for many of them.
    `fuse`: whether operators are rewritten at all; False leaves each as it is.
    `stack_steps`: how many steps a sequence of a stack has at most (`planner.passes.depth_first`); None: as many as fit a cache.
    """

    tiles: Annotated[int, msgspec.Meta(ge=1, le=MOST_TILES)] | None = None
    barriers: bool = False
    stacks: bool = True
    fuse: bool = True
    by_rows: bool = False
    stack_steps: Annotated[int, msgspec.Meta(ge=2)] | None = None
    in_flight: Annotated[int, msgspec.Meta(ge=1, le=MOST_IN_FLIGHT)] = 1

    @property
    def longest_ns(self) -> float:
        """The longest that a tile should take; infinite where there is no limit."""
        return (self.longest_ms or math.inf) * 1e6


AUTOMATIC = Experiment()
UNSEARCHED = Experiment(search="none")
