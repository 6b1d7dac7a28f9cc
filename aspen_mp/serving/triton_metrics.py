"""The metrics of models under the names that dashboards for Triton know. Values are those of `documents.statistics`: of all front ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from aspen_mp.serving.shelf import Shelved

Labels = tuple[tuple[str, str], ...]
REASONS: Final = {
    "refused": "REJECTED",
    "missed": "REJECTED",
    "cancelled": "CANCELED",
    "failed": "BACKEND",
    "timed_out": "OTHER",
    "lost": "OTHER",
}
"""Triton's word for how a request has failed, by ours."""
FAMILIES: Final = {
    "nv_inference_request_success": ("counter", "Requests that have succeeded."),
    "nv_inference_request_failure": ("counter", "Requests that have failed, by reason."),
    "nv_inference_count": ("counter", "Requests that have succeeded, however many rows they have."),
    "nv_inference_exec_count": ("counter", "Executions of a model or, where it has several, of a stage."),
    "nv_inference_request_duration_us": ("counter", "Time of requests from the call to the result, in microseconds."),
    "nv_inference_queue_duration_us": ("counter", "Time of executions from submission to start, in microseconds."),
    "nv_inference_compute_infer_duration_us": ("counter", "Time of executions from start to end, in microseconds."),
    "nv_inference_pending_request_count": ("gauge", "Requests that have begun and not ended."),
}


def text(shelved: Iterable[Shelved], status: Mapping[str, Any]) -> str:
    """The metrics in Prometheus' text format. `status`: that of the runtime."""
    found: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for each in shelved:
        labels = (("model", each.served.name), ("version", str(each.served.version)))
        for name, more, value in _values(each.model.name, status):
            said = ",".join(f'{key}="{label}"' for key, label in (*labels, *more))  # names of models need no escapes
            found[name].append(f"{name}{{{said}}} {value}\n")
    return "".join(
        f"# HELP {name} {help_}\n# TYPE {name} {kind}\n{''.join(found[name])}" for name, (kind, help_) in FAMILIES.items() if found[name]
    )


def _values(model: str, status: Mapping[str, Any]) -> Iterator[tuple[str, Labels, int]]:
    counted = status["requests"].get(model, {})
    scheduled: Mapping[str, Any] = next((each["scheduled"] for each in status["models"] if each["name"] == model), {})
    done = counted.get("completed", 0)
    failed = dict.fromkeys(REASONS.values(), 0)
    for outcome, reason in REASONS.items():
        failed[reason] += counted.get(outcome, 0)
    yield "nv_inference_request_success", (), done
    for reason, count in failed.items():
        yield "nv_inference_request_failure", (("reason", reason),), count
    yield "nv_inference_count", (), done
    yield "nv_inference_exec_count", (), scheduled.get("requests", 0)
    yield "nv_inference_request_duration_us", (), round(counted.get("seconds", {}).get("sum_s", 0.0) * 1e6)
    yield "nv_inference_queue_duration_us", (), round(scheduled.get("queue_s", 0.0) * 1e6)
    yield "nv_inference_compute_infer_duration_us", (), round(scheduled.get("run_s", 0.0) * 1e6)
    yield "nv_inference_pending_request_count", (), counted.get("in_flight", 0)
