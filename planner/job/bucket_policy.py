"""When requests of several shapes share one plan. Light, because clients and the planner process import it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class BucketPolicy:
    """The thresholds of shape buckets: ranges of one length (a text's tokens, the keys of a cache) that a plan serves.

    Which lengths go together:
    `least_extent`: the shortest length; an axis of one element may be broadcast, which is another plan. `most_extent`: the longest.
    `short_extent`: below, buckets are wider, because little is computed there.
    `broad_factor`: broad buckets, which are tried first, end before twice `short_extent`, then before so many times as much each.
    `wide_factors`: how many times as large as the one before a wide bucket is, the largest first, …
    `wide_bytes`: … whose longest request has at most so many bytes of inputs more than its shortest: memory for them is always kept.
    `short_side`: where there are several lengths, their first bucket ends here. `side_factors`: how many times as much the others end at,
    in the order in which they are tried. `coarse_unit`: where a model takes only some sizes, lengths are multiples of this.
    `halvings`: how often a bucket without a plan is halved: constants may be folded, or algorithms be others, from some length on.

    Which models and axes have buckets at all:
    `refusals`: a model without a plan for any of so many buckets has none for others.
    `remembered_shapes`: shapes of a stage that are remembered to compare others with.
    `remembered_stages`: stages of a model whose shapes are remembered. A stage for another value that decides shapes is another one.
    `stepped_lengths`: from so many different lengths on it counts what they are all multiples of (sides of pictures), …
    `least_step`: … if it is at least this, …
    `worth_lengths`: … and a bucket that holds fewer of these lengths has a plan for each, which takes a quarter of the time to make.

    What a plan for a bucket may cost:
    `most_table_bytes`: integers that are written down for every length, such as places of tokens.
    `moved_share`: of the time at the shortest length, what may be taken by ops that take longer at the longest, in a wide bucket.
    `idle_share`: of the time that all cores are kept busy at the shortest length, how much more a broad bucket's plan may take because its
    operators have fewer tiles there than there are cores.
    `shared_ns`: how long an operator takes at least for this to matter.
    `broad_bytes`: what a broad bucket's plan may take for activations, inputs and outputs of a request. `pictures_bytes`: the same where
    there are several lengths, … `pictures_share`: … and as a share of the machine's memory.
    `most_spread`: how many times as much memory it may take as a plan for the smallest lengths, where it takes more than `spread_bytes`.
    `more_bytes`: what a wide bucket's plan may take more at the longest length than at the shortest.

    What is made before it is asked for:
    `told_every`: of every so many lengths that a client has not met, the planner process hears of one.
    `tries_ahead`: how often a bucket beside those in use is planned before anybody asks for it.
    `most_often`: shapes that wait at most for plans of their own, because they come often.
    """

    least_extent: int = 2
    most_extent: int = 1 << 24
    short_extent: int = 16
    broad_factor: int = 16
    wide_factors: tuple[int, ...] = (64, 8, 4, 2)
    wide_bytes: int = 48 << 20
    short_side: int = 10
    side_factors: tuple[int, ...] = (4, 2)
    coarse_unit: int = 32
    halvings: int = 3
    refusals: int = 3
    remembered_shapes: int = 16
    remembered_stages: int = 64
    stepped_lengths: int = 4
    least_step: int = 8
    worth_lengths: int = 16
    most_table_bytes: int = 1 << 20
    moved_share: float = 0.5
    idle_share: float = 0.25
    shared_ns: float = 50e3
    broad_bytes: int = 384 << 20
    pictures_bytes: int = 1 << 30
    pictures_share: float = 1 / 16
    most_spread: int = 64
    spread_bytes: int = 64 << 20
    more_bytes: int = 128 << 20
    told_every: int = 8
    tries_ahead: int = 3
    most_often: int = 64


POLICY: Final = BucketPolicy()
"""The one that is in use."""
