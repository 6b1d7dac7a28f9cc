"""A request to the planner for a model. Light, because clients and the planner process import it."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from aspen_mp.planner.job.options import AUTOMATIC, Accuracy, Experiment, Objective, Precision, Vectors

INSTANCES: Final = 2
"""Instances of a model that is loaded for latency, where the user gives no number: a second request fills the gaps of the first one."""
MOST_INSTANCES: Final = 32
SPARE: Final = 2
"""Requests for throughput beside one for each core, at least: those that are on their way to a client and back. With many cores they are
half as many as cores."""


class Instructions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fast multiplications of a processor.

    `vectors`: for which vectors products may be computed by Strassen's algorithm (`workers._isa.vectors`); "": none. `sums_bytes`: whether
    it sums products of bytes in one instruction (`workers._isa.sums_bytes`). `sums_bf16`: whether it sums pairs of bf16 so, and faster
    than f32 (`control.planning.local_rates.fast_pairs`). `sums_amx`: whether plans may have the sums of AMX (`workers._isa.sums_amx`).
    Sums of bytes are the same with it and without, those of bf16 are not.
    """

    vectors: Vectors = ""
    sums_bytes: bool = True
    sums_bf16: bool = False
    sums_amx: bool = False


class PlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a model is to be planned. It travels unchanged from `Runtime.load` to the planner.

    Models that are loaded with different requests are different models, also in the plan cache.

    `precision`: the type to which factors of products may be rounded. `winograd`: whether Winograd's and Strassen's algorithms may be used
    where they are faster. `accuracy`: how much rounding error these may add (`planner.cost.accuracy`). `planning`: how long to search for
    tiles.
    `objective`: the aim of tiles and instances. `instances`: how many requests may run at a time; None: as many as the objective needs.
    `instructions`: of the processor that plans are for, which `for_machine` says.
    """

    precision: Precision = "f32"
    winograd: bool = True
    accuracy: Accuracy = "default"
    planning: Experiment = AUTOMATIC
    objective: Objective = "latency"
    instances: Annotated[int, msgspec.Meta(ge=1, le=MOST_INSTANCES)] | None = None
    instructions: Instructions = Instructions()

    def for_machine(self, instructions: Instructions, cores: int) -> PlanRequest:
        """Return the request for a machine of `cores` cores: instances are counted, and tiles are cut for them."""
        instances = self.instances or instances_for(self.objective, cores)
        planning = self.planning
        if self.objective == "throughput":
            planning = msgspec.structs.replace(planning, in_flight=instances)
        return msgspec.structs.replace(self, instructions=instructions, instances=instances, planning=planning)

    @property
    def bf16(self) -> bool:
        """Whether factors of products are rounded to bf16."""
        return self.precision == "bf16" and (self.instructions.sums_bf16 or self.instructions.sums_amx)

    @property
    def amx(self) -> bool:
        """Whether sums of bf16 have the order of AMX's instructions."""
        return self.bf16 and self.instructions.sums_amx

    @property
    def strassen(self) -> Vectors:
        """The vectors for which products may be computed by Strassen's algorithm; "": none are."""
        return self.instructions.vectors if self.winograd else ""

    @property
    def cache_key(self) -> tuple[Any, ...]:
        """The options that plans depend on."""
        algorithms = self.winograd, self.strassen, self.instructions.sums_bytes, self.bf16, self.amx
        return self.precision, self.accuracy, self.planning, *algorithms

    @property
    def weights_key(self) -> tuple[Any, ...]:
        """The options that packed weights depend on."""
        return self.precision, self.winograd, self.accuracy, self.instructions.sums_bytes, self.bf16


def instances_for(objective: Objective, cores: int) -> int:
    """How many requests of a model are to run at a time, where nobody says."""
    return INSTANCES if objective == "latency" else min(cores + max(SPARE, cores // 2), MOST_INSTANCES)
