"""The server's own metrics, beside those of its runtime. Values are of all front ends."""

from __future__ import annotations

from typing import Final

from aspen_mp.serving.shelf import Shelf
from aspen_mp.serving.telemetry.ledger import Field
from aspen_mp.serving.telemetry.triton_metrics import said

_METRICS: Final = (
    ("aspen_mp_serve_sequences", "gauge", "Sequences that are open.", Field.SEQUENCES),
    ("aspen_mp_serve_pieces_total", "counter", "Requests with a result that ran while their bodies came.", Field.PIECES),
)


def text(shelf: Shelf) -> str:
    """The metrics in Prometheus' text format."""
    found = [(said((("model", each.served.name), ("version", str(each.served.version)))), shelf.totals(each)) for each in shelf.all]
    if not found:
        return ""
    return "".join(
        f"# HELP {name} {told}\n# TYPE {name} {kind}\n" + "".join(f"{name}{{{labels}}} {totals[field]}\n" for labels, totals in found)
        for name, kind, told, field in _METRICS
    )
