"""Documents of the protocol about the server and its models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

import aspen_mp
from aspen_mp.client.signature import ValueInfo
from aspen_mp.serving.protocol import datatypes
from aspen_mp.serving.repository.disk import Batching
from aspen_mp.serving.shelf import Shelf, Shelved
from aspen_mp.serving.telemetry.ledger import Field, Totals
from aspen_mp.shm.errors import RequestError

NAME: Final = "aspen-mp"
PLATFORM: Final = "onnx_onnxv1"
EXTENSIONS: Final = ["binary_tensor_data", "model_configuration", "statistics", "schedule_policy", "sequence", "sequence(string_id)"]
REPOSITORY: Final = "model_repository"
NAMED: Final = "system_shared_memory"


def server(*, repository: bool, named: bool) -> dict[str, Any]:
    """`GET /v2`. `repository`, `named`: whether clients may change models, and share memory by name."""
    more = [name for name, there in ((REPOSITORY, repository), (NAMED, named)) if there]
    return {"name": NAME, "version": aspen_mp.__version__, "extensions": [*EXTENSIONS, *more]}


def model(shelf: Shelf, shelved: Shelved) -> dict[str, Any]:
    """`GET /v2/models/{model}`."""
    found = shelved.model
    return {
        "name": shelved.served.name,
        "versions": shelf.versions(shelved.served.name),
        "platform": PLATFORM,
        "inputs": [_tensor(info) for info in found.inputs],
        "outputs": [_tensor(info) for info in found.outputs],
    }


def _tensor(info: ValueInfo) -> dict[str, Any]:
    return {"name": info.name, "datatype": datatypes.name_of(info.dtype), "shape": _shape(info)}


def _shape(info: ValueInfo) -> list[int]:
    """Dimensions, -1 for those that are open."""
    return [dim if isinstance(dim, int) else -1 for dim in info.shape or ()]


def config(shelved: Shelved) -> dict[str, Any]:
    """`GET /v2/models/{model}/config`: clients of Triton ask for it before they measure."""

    def tensor(info: ValueInfo) -> dict[str, Any]:
        return {"name": info.name, "data_type": _type(info), "dims": _shape(info), **({"optional": True} if info.optional else {})}

    configured = shelved.served.config
    batching, instances = configured.batching, configured.instances
    return {
        "name": shelved.served.name,
        "platform": PLATFORM,
        "backend": NAME,
        "max_batch_size": 0,
        "input": [tensor(info) for info in shelved.model.inputs],
        "output": [tensor(info) for info in shelved.model.outputs],
        "version_policy": {"latest": {"num_versions": configured.versions}},
        "instance_group": [{"name": shelved.served.name, "kind": "KIND_CPU", **({} if instances is None else {"count": instances})}],
        **({} if batching is None else {"dynamic_batching": _batching(batching)}),
    }


def _batching(batching: Batching) -> dict[str, Any]:
    return {"preferred_batch_size": [batching.max_batch], "max_queue_delay_microseconds": round(batching.max_delay_ms * 1000)}


def _type(info: ValueInfo) -> str:
    name = datatypes.name_of(info.dtype)
    return f"TYPE_{'STRING' if name == 'BYTES' else name}"


def statistics(shelf: Shelf, shelved: Iterable[Shelved], status: Mapping[str, Any]) -> dict[str, Any]:
    """`GET …/stats`: counts of all front ends. `status`: the runtime's, which knows how long executions waited for workers."""
    return {"model_stats": [_statistics(each, shelf.totals(each), status) for each in shelved]}


def _statistics(shelved: Shelved, totals: Totals, status: Mapping[str, Any]) -> dict[str, Any]:
    executions, queue_ns, run_ns = spent(shelved, totals, status)
    nothing = {"count": 0, "ns": 0}

    def duration(count: int, ns: int) -> dict[str, int]:
        return {"count": count, "ns": ns}

    return {
        "name": shelved.served.name,
        "version": str(shelved.served.version),
        "last_inference": totals[Field.LAST_MS],
        "inference_count": totals[Field.ROWS],
        "execution_count": totals[Field.EXECUTIONS],
        "inference_stats": {
            "success": duration(totals[Field.SUCCESS], totals[Field.SUCCESS_NS]),
            "fail": duration(totals.failed, totals[Field.FAIL_NS]),
            "queue": duration(executions, queue_ns),
            "compute_input": duration(totals[Field.READ], totals[Field.READ_NS]),
            "compute_infer": duration(executions, run_ns),
            "compute_output": duration(totals[Field.WRITTEN], totals[Field.WRITTEN_NS]),
        },
        "batch_stats": [
            {"batch_size": size, "compute_input": nothing, "compute_infer": duration(count, ns), "compute_output": nothing}
            for size, (count, ns) in sorted(totals.batches.items())
        ],
    }


def spent(shelved: Shelved, totals: Totals, status: Mapping[str, Any]) -> tuple[int, int, int]:
    """Executions that workers have ended, and nanoseconds that these waited and ran: also those of other clients of the runtime."""
    scheduled: Mapping[str, Any] = next((each["scheduled"] for each in status["models"] if each["name"] == shelved.model.name), {})
    waited = round(scheduled.get("queue_s", 0.0) * 1e9) + totals[Field.QUEUED_NS]
    return scheduled.get("requests", 0), waited, round(scheduled.get("run_s", 0.0) * 1e9)


def parameters_of(text: bytes | bytearray | memoryview) -> Mapping[str, Any]:
    """The parameters of a request to load a model. RequestError where it is not such a request; an empty one has none."""
    try:
        document = msgspec.json.decode(text) if len(text) else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"the request is not JSON: {error}") from None
    found = document.get("parameters") if isinstance(document, dict) else document
    if not isinstance(found, dict | None):
        raise RequestError("a request to load a model is an object, and its parameters are one, too. Send {} to load what is on disk")
    return found or {}


def refuse_other_models(parameters: Iterable[str]) -> None:
    """RequestError where a model is to be loaded in another way than its folder says: it would not be what the client asks for."""
    for name in parameters:
        if name == "config" or name.startswith("file:"):
            raise RequestError(
                f"parameter {name[:200]!r} is not supported: models are loaded as they lie in the repository. Change config.toml or the "
                "files there, and load the model without it"
            )


def index(shelf: Shelf) -> list[dict[str, str]]:
    """`POST /v2/repository/index`: every version that is known, its state, and why it is not served."""
    ready = [
        {"name": each.served.name, "version": str(each.served.version), "state": "READY", "reason": ""}
        for each in sorted(shelf.all, key=lambda each: (each.served.name, each.served.version))
    ]
    return ready + [
        {"name": each.name, "version": str(each.version or ""), "state": "UNAVAILABLE", "reason": each.reason} for each in shelf.unserved
    ]


def readiness(shelf: Shelf, *, in_full: bool = True) -> dict[str, Any]:
    """`GET /v2/health/ready`: whether requests are served and, `in_full`, which models are not although they should be."""
    reasons = [f"{each.name}/{each.version}: {each.reason}" if each.version else f"{each.name}: {each.reason}" for each in shelf.unserved]
    absent = shelf.absent or ("the server stops" if shelf.closing else "")
    return {"ready": not absent, **({"reason": absent} if absent else {}), **({"unserved": reasons} if reasons and in_full else {})}
