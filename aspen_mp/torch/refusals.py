"""Calls that the runtime refuses. PyTorch decides them.

Values are refused at each call: an index beyond its table, a division of integers by zero. A graph that cannot be loaded is refused once;
PyTorch has all its calls from then on.

PyTorch runs the graph again as Dynamo has captured it, before any operator was taken apart, so its errors are those of eager PyTorch.
A graph that has failed has changed nothing: AOTAutograd writes to arguments after all has been computed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from torch import fx

from aspen_mp.shm.errors import ModelInvalidError, ModelParseError, PlanError, RequestError, ResourceLimitError, UnsupportedModelError

log = logging.getLogger("aspen_mp.torch")
_UNLOADABLE: Final = (ModelParseError, ModelInvalidError, UnsupportedModelError, ResourceLimitError, PlanError)
_LOGGED: Final = "aspen_mp.logged"
"""Of a graph's `meta`: whether a warning says that PyTorch computed a call of it."""


def with_pytorch(run: Callable[..., Any], module: fx.GraphModule) -> Callable[..., Any]:
    """Return a function that calls `run`, and has PyTorch run the graph where the runtime refuses the values of arguments.

    Args:
        run: The compiled graph.
        module: The same graph for PyTorch.
    """

    stays = False

    @cache
    def eager() -> Callable[..., Any]:
        fx.GraphModule.recompile(module)  # Dynamo puts that off to the first call, which would print an error before it raises it
        return module.forward  # type: ignore[no-any-return]

    def call(*args: Any) -> Any:
        nonlocal stays
        if stays:
            return eager()(*args)
        try:
            return run(*args)
        except _UNLOADABLE as error:
            stays = not isinstance(error, ResourceLimitError)  # other sizes may be within the limits
            log.warning("a graph stays with PyTorch: %s", said(error))
            return eager()(*args)
        except RequestError as error:
            if type(error) is not RequestError:  # a full queue, a deadline, a cancelled request, workers that died
                raise
            refusal = error
        try:
            results = eager()(*args)
        except Exception as error:
            raise refused(type(error), error.args) from error
        _log_once(module, refusal)
        return results

    return call


def said(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _log_once(module: fx.GraphModule, refusal: RequestError) -> None:
    if not module.meta.get(_LOGGED):
        module.meta[_LOGGED] = True
        log.warning("PyTorch computes a call that the runtime refuses: %s", refusal)


def refused(kind: Any, args: tuple[Any, ...]) -> Any:
    """An exception that is both of PyTorch's class and a `RequestError`; of PyTorch's class alone where that cannot be."""
    try:
        return _both(kind)(*args)
    except TypeError:
        return kind(*args)


@cache
def _both(kind: Any) -> type[Exception]:
    about = {
        "__module__": __name__,
        "__doc__": f"{kind.__name__} of PyTorch's, for a request whose values the runtime refuses.",
        "__reduce__": lambda error: (refused, (kind, error.args)),
    }
    return type(kind.__name__, (RequestError, kind), about)
