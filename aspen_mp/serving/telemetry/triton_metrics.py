"""The metrics of models under the names that dashboards for Triton know. Values are those of `documents.statistics`: of all front ends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from aspen_mp.serving import documents
from aspen_mp.serving.shelf import Shelf, Shelved
from aspen_mp.serving.telemetry.ledger import FAILURES, Field, Totals

_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
Labels = tuple[tuple[str, str], ...]
FAMILIES: Final = {
    "nv_inference_request_success": ("counter", "Requests that have succeeded."),
    "nv_inference_request_failure": ("counter", "Requests that have failed, by reason."),
    "nv_inference_count": ("counter", "Rows of executions with a result, where a model is run in batches; elsewhere, these executions."),
    "nv_inference_exec_count": ("counter", "Executions of a model with a result."),
    "nv_inference_request_duration_us": ("counter", "Time of requests with a result, from headers to answer, in microseconds."),
    "nv_inference_queue_duration_us": ("counter", "Time of executions before a worker began with them, in microseconds."),
    "nv_inference_compute_input_duration_us": ("counter", "Time in which inputs were read, in microseconds."),
    "nv_inference_compute_infer_duration_us": ("counter", "Time of executions from start to end, in microseconds."),
    "nv_inference_compute_output_duration_us": ("counter", "Time in which answers were made, in microseconds."),
    "nv_inference_pending_request_count": ("gauge", "Requests that have begun and not ended."),
}


def text(shelf: Shelf, status: Mapping[str, Any]) -> str:
    """The metrics in Prometheus' text format. `status`: that of the runtime."""
    found: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for each in shelf.all:
        labels = (("model", each.served.name), ("version", str(each.served.version)))
        for name, more, value in _values(each, shelf.totals(each), status):
            found[name].append(f"{name}{{{said((*labels, *more))}}} {value}\n")
    return "".join(
        f"# HELP {name} {help_}\n# TYPE {name} {kind}\n{''.join(found[name])}" for name, (kind, help_) in FAMILIES.items() if found[name]
    )


def said(labels: Labels) -> str:
    """Labels as they stand between braces."""
    return ",".join(f'{key}="{label.translate(_ESCAPES)}"' for key, label in labels)


def _values(shelved: Shelved, totals: Totals, status: Mapping[str, Any]) -> Iterator[tuple[str, Labels, int]]:
    _, queue_ns, run_ns = documents.spent(shelved, totals, status)
    yield "nv_inference_request_success", (), totals[Field.SUCCESS]
    for field in FAILURES:
        yield "nv_inference_request_failure", (("reason", field.name),), totals[field]
    yield "nv_inference_count", (), totals[Field.ROWS]
    yield "nv_inference_exec_count", (), totals[Field.EXECUTIONS]
    yield "nv_inference_request_duration_us", (), totals[Field.SUCCESS_NS] // 1000
    yield "nv_inference_queue_duration_us", (), queue_ns // 1000
    yield "nv_inference_compute_input_duration_us", (), totals[Field.READ_NS] // 1000
    yield "nv_inference_compute_infer_duration_us", (), run_ns // 1000
    yield "nv_inference_compute_output_duration_us", (), totals[Field.WRITTEN_NS] // 1000
    yield "nv_inference_pending_request_count", (), totals[Field.PENDING]
