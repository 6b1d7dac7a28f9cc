"""onnxruntime's exceptions. Each that is raised here is an error of `aspen_mp.errors` too, so that either can be caught.

Where onnxruntime fails with `Fail` in some versions or for some operators, and with a class of its own in others, ours are both.
"""

from __future__ import annotations

from aspen_mp.shm import errors


class Fail(errors.AspenError):
    """onnxruntime's error for most models that it cannot load."""


class InvalidArgument(errors.RequestError):
    """A request does not fit its model: name, type or shape."""


class RuntimeException(errors.RequestError, Fail):
    """An operator failed while a request ran."""


class InvalidGraph(errors.ModelInvalidError, Fail):
    """The model breaks a rule of ONNX."""


class InvalidProtobuf(errors.ModelParseError, Fail):
    """The bytes are not a model."""


class Unsupported(errors.UnsupportedModelError, Fail):
    """onnxruntime's `NotImplemented`: an operator, a type or a name that aspen-mp does not have. The message says what to do instead."""


class NoSuchFile(FileNotFoundError, Fail):
    """There is no such model file."""


class BadExternalData(errors.ExternalDataError, Fail):
    """A tensor's external data cannot be read."""


class MissingInputs(errors.RequestError, ValueError):
    """Inputs that the model needs were not given."""


class Terminated(errors.RequestCancelled, Fail):
    """The options of a run say ``terminate``."""


class UnknownKey(errors.AspenError, RuntimeError, KeyError):
    """There is no configuration entry of that key."""

    def __str__(self) -> str:
        return str(self.args[0])


class Unavailable(errors.AspenError, RuntimeError):
    """A device or provider that does not exist here, or a value that cannot be given as asked."""


class EPFail(Fail):
    """Never raised: there is one execution provider. Here so that it can be named."""


class EngineError(Fail):
    """Never raised; here so that it can be named."""


class NoModel(Fail):
    """Never raised; here so that it can be named."""


class ModelLoaded(Fail):
    """Never raised; here so that it can be named."""


class NotFound(Fail):
    """Never raised; here so that it can be named."""


class DeviceReset(Fail):
    """Never raised; here so that it can be named."""


class ModelLoadCanceled(Fail):
    """Never raised; here so that it can be named."""


class ModelRequiresCompilation(Fail):
    """Never raised; here so that it can be named."""


_OF_LOADING: dict[type[errors.AspenError], type[errors.AspenError]] = {
    errors.ModelInvalidError: InvalidGraph,
    errors.ModelParseError: InvalidProtobuf,
    errors.UnsupportedModelError: Unsupported,
    errors.ExternalDataError: BadExternalData,
    errors.RequestError: InvalidArgument,
}


def of_loading(error: BaseException) -> BaseException:
    """The error that onnxruntime's programs expect instead of one of `Runtime.load`; the error itself where they expect nothing else."""
    if isinstance(error, FileNotFoundError) and not isinstance(error, NoSuchFile):
        return NoSuchFile(*error.args)
    instead = _OF_LOADING.get(type(error))  # type: ignore[arg-type]
    return error if instead is None else instead(*error.args)


def of_running(error: BaseException) -> BaseException:
    """The same of an error of a request that has been accepted."""
    return RuntimeException(*error.args)
