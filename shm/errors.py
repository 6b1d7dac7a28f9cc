"""Typed errors of the whole package. They live here because every part raises them; users import them from `aspen_mp.errors`."""

from __future__ import annotations


class AspenError(Exception):
    """Base of every error that aspen-mp raises on purpose."""


class ModelParseError(AspenError):
    """The bytes are not an ONNX model: empty, truncated, or not a protobuf message."""


class ModelInvalidError(AspenError):
    """The model breaks ONNX's rules; the message names node and tensor."""


class UnsupportedModelError(AspenError):
    """The model is valid but asks for something that cannot be run; the message lists every such node at once."""


class ResourceLimitError(AspenError):
    """Memory, shared memory or a table is too small; the message gives what is needed, what there is, and how to raise the limit."""


class TooLarge(ResourceLimitError):
    """One array is larger than this machine could ever hold: to try again does not help. Users know it as `ResourceLimitError`."""


class ExternalDataError(AspenError):
    """A tensor's external data file is missing, outside the model's folder, or does not fit the tensor."""


class PlanError(AspenError):
    """A plan file or segment is damaged or inconsistent; the message names field, value and bound."""


class RequestError(AspenError):
    """A request does not fit its model (names, dtypes, shapes), or its execution failed; the connection survives."""


class ConfigError(AspenError, ValueError):
    """A profile or a setting is wrong; the message names file and key."""


class ProtocolError(AspenError):
    """The peer on a control socket broke the protocol or may not connect."""


class RuntimeLost(AspenError):
    """The runtime's planner process is gone; requests in flight are lost with it.

    `begun`: workers may have begun with this one. `wait_s`: set where the runtime has a name, and no other of that name has come within
    `connect(wait_s=…)` seconds. Requests go on as soon as one does.
    """

    begun: bool = True
    wait_s: float | None = None


class RuntimeStopping(RuntimeLost):
    """The runtime finishes what is in flight, takes no new requests, models or clients, and then ends. Nothing of this request has run."""

    begun: bool = False


class RuntimeNotFound(AspenError):
    """No runtime of this name is running; the message names the directory that was searched and the command that starts one."""


class PoisonTile(RequestError):
    """A tile's kernel faulted every time it was tried; the message names model, node and op."""


class QueueFull(RequestError):
    """As many requests of this process wait for workers as `max_queued` allows; nothing of this one has run. Submit it again later."""


class RequestTimeout(RequestError, TimeoutError):
    """The request did not finish in the time given; it has been cancelled."""


class DeadlineMissed(RequestError, TimeoutError):
    """The request cannot be done by its deadline, or the deadline has passed; the message names model and deadline, and says what to do.

    Attributes:
        deadline_ms (float): What the request was given, in milliseconds from its submission.
        predicted_ms (float | None): When the result would have come, in milliseconds from the submission, if that was predicted and the
            request was refused for it. Nothing of it has run. Infinite: no time can be given.
        late_ms (float | None): How long after the deadline the request was dropped, in milliseconds. None if it was refused.
    """

    deadline_ms: float = 0.0
    predicted_ms: float | None = None
    late_ms: float | None = None


class RequestCancelled(RequestError):
    """The request was cancelled."""
