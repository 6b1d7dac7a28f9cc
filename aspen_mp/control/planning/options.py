"""How a model is planned: what its identity has beside the file, what its plans and packed weights depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aspen_mp.planner.job.options import AUTOMATIC, Accuracy, Experiment, Objective, Precision, Vectors

INSTANCES: Final = 2
"""Of a model that is loaded for latency, where nobody says how many: a second request fills what the first one leaves idle."""
MOST_INSTANCES: Final = 32
SPARE: Final = 2
"""Requests for throughput beside one for each core, at least: those that are on their way to a client and back; of many cores, half as many
as there are."""


def instances_for(objective: Objective, cores: int) -> int:
    """How many requests of a model are to run at a time, where nobody says."""
    return INSTANCES if objective == "latency" else min(cores + max(SPARE, cores // 2), MOST_INSTANCES)


@dataclass(frozen=True, slots=True)
class Options:
    """`precision`: what factors of products may be rounded to. `winograd`: whether convolutions may be computed by Winograd's algorithm.
    `strassen`: for which vectors products are computed by Strassen's algorithm (`workers._isa.vectors`); "": none. `sums_bytes`: whether
    products of bytes are fast (`workers._isa.sums_bytes`). `pairs`: whether factors are rounded to bf16 and multiplied in pairs: asked for
    by `precision`, and fast (`workers._isa.sums_pairs`). `accuracy`: how much error algorithms of fewer multiplications may add
    (`planner.accuracy`)."""

    precision: Precision
    winograd: bool
    planning: Experiment = AUTOMATIC
    strassen: Vectors = ""
    sums_bytes: bool = True
    pairs: bool = False
    accuracy: Accuracy = "default"

    @property
    def key(self) -> tuple[str, bool, Accuracy, Experiment, Vectors, bool, bool]:
        """What plans depend on."""
        return self.precision, self.winograd, self.accuracy, self.planning, self.strassen, self.sums_bytes, self.pairs

    @property
    def weights_key(self) -> tuple[str, bool, Accuracy, bool, bool]:
        """What packed weights depend on."""
        return self.precision, self.winograd, self.accuracy, self.sums_bytes, self.pairs
