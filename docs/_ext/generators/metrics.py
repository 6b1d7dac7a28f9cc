"""The metrics of a runtime, from one that is started for the purpose."""

from __future__ import annotations

import aspen_mp
from aspen_mp.tools import metrics


def text() -> str:
    with aspen_mp.Runtime(workers=1) as runtime:
        families = list(metrics.families(runtime.status()))
    rows = [("aspen_mp_up", "gauge", "", "Whether the runtime answered.")]
    for family in families:
        name = family.name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        labels = list(family._labelnames) or sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        rows.append((name, family.type, ", ".join(f"`{label}`" for label in labels), family.documentation))
    lines = [f"| `{name}` | {kind} | {labels} | {text} |" for name, kind, labels, text in rows]
    return "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *lines])
