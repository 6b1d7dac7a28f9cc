"""How a model is planned: what its identity has beside the file, what its plans and packed weights depend on."""

from __future__ import annotations

from dataclasses import dataclass

from aspen_mp.planner.options import AUTOMATIC, Planning, Vectors


@dataclass(frozen=True, slots=True)
class Options:
    """`precision`: of the weights. `winograd`: whether convolutions may be computed by Winograd's algorithm. `strassen`: for which vectors
    products are computed by Strassen's algorithm (`workers._isa.vectors`); "": none."""

    precision: str
    winograd: bool
    planning: Planning = AUTOMATIC
    strassen: Vectors = ""

    @property
    def key(self) -> tuple[str, bool, Planning, Vectors]:
        """What plans depend on."""
        return self.precision, self.winograd, self.planning, self.strassen

    @property
    def weights_key(self) -> tuple[str, bool]:
        """What packed weights depend on."""
        return self.precision, self.winograd
