"""The server's own metrics, beside those of its runtime. Values are of all front ends."""

from __future__ import annotations

from aspen_mp.serving.shelf import Shelf
from aspen_mp.serving.telemetry.ledger import Field
from aspen_mp.serving.telemetry.triton_metrics import said

SEQUENCES = "aspen_mp_serve_sequences"


def text(shelf: Shelf) -> str:
    """The metrics in Prometheus' text format."""
    rows = []
    for each in shelf.all:
        labels = said((("model", each.served.name), ("version", str(each.served.version))))
        rows.append(f"{SEQUENCES}{{{labels}}} {shelf.totals(each)[Field.SEQUENCES]}\n")
    return f"# HELP {SEQUENCES} Sequences that are open.\n# TYPE {SEQUENCES} gauge\n{''.join(rows)}" if rows else ""
