"""`deployment`: a model behind Ray Serve."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from aspen_mp.errors import QueueFull, RequestError, RequestTimeout, RuntimeLost
from aspen_mp.ray.node import of_this_node

if TYPE_CHECKING:
    import os

    from aspen_mp.client.model import Model

MOST_LOSSES: Final = 3
STATUS: Final = ((QueueFull, 503), (RequestTimeout, 504), (RequestError, 400), (RuntimeLost, 503))
"""Statuses of errors in HTTP; the first class that fits counts."""


def deployment(
    model: str | os.PathLike[str] | bytes,
    outputs: Sequence[str] | None = None,
    *,
    name: str = "aspen_mp",
    timeout_s: float | None = None,
    workers: int | None = None,
    runtime: str | None = None,
    runtime_options: Mapping[str, Any] | None = None,
    load: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Make a Ray Serve application of a model: ``serve.run(deployment("model.onnx", num_replicas=2))``.

    Replicas of a node share its runtime, as `Predictor` does. A handle's ``remote({input: array})`` gives {output: array}. Over HTTP, POST
    ``{"inputs": {input: nested lists}}`` gives ``{"outputs": {output: nested lists}}``. An error gives ``{"error": message}``. Its status
    is 400 for a wrong request, 503 where there is too much to do or the runtime is away, and 504 after `timeout_s`. In JSON, infinite and
    undefined numbers are null.

    Args:
        model: As of `Runtime.load`. A path is opened on each node.
        outputs: Names of outputs to return. None: all.
        name: The deployment's name.
        timeout_s: Seconds that a request may take. None: no limit.
        workers: As of `Predictor`.
        runtime: As of `Predictor`.
        runtime_options: As of `Predictor`.
        load: As of `Predictor`.
        **options: Further options of `serve.deployment`, for example `num_replicas` and `max_ongoing_requests`. A replica reserves no CPU
            of Ray, unless `ray_actor_options` says so.

    Returns:
        A `ray.serve.Application`.

    Raises:
        ImportError: Ray Serve is not installed.
    """
    if importlib.util.find_spec("ray") is None or importlib.util.find_spec("ray.serve") is None:
        raise ImportError("this needs Ray Serve. Install it: pip install 'aspen-mp[ray]'")
    from ray import serve

    actor = {"num_cpus": 0, **options.pop("ray_actor_options", {})}
    given = {"max_ongoing_requests": 64, **options}
    made = serve.deployment(Replica).options(name=name, ray_actor_options=actor, **given)
    arguments = (None if outputs is None else list(outputs), timeout_s, workers, runtime, dict(runtime_options or {}), dict(load or {}))
    return made.bind(model, *arguments)


class Replica:
    """A replica of a deployment. Its arguments are those of `deployment`."""

    def __init__(
        self,
        model: Any,
        outputs: list[str] | None,
        timeout_s: float | None,
        workers: int | None,
        runtime: str | None,
        runtime_options: dict[str, Any],
        load: dict[str, Any],
    ) -> None:
        self._source, self._outputs, self._timeout_s, self._load = model, outputs, timeout_s, load
        self._node = of_this_node(runtime, workers, runtime_options)
        self._attach()

    def _attach(self) -> None:
        self._runtime = self._node.attach()
        self._model: Model = self._runtime.load(self._source, **self._load)

    async def __call__(self, request: Any) -> Any:
        """A request of a handle, {input: array}, or of HTTP."""
        if hasattr(request, "json"):  # starlette's requests are mappings, too
            return await self._answer(request)
        return await self._run(request)

    async def _run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs; from the next runtime of the node where one is lost."""
        import asyncio

        losses = 0
        while True:
            model = self._model
            try:
                return await model.run_async(feeds, self._outputs, timeout=self._timeout_s)
            except RuntimeLost:
                losses += 1
                if losses >= MOST_LOSSES:
                    raise
                async with self.__dict__.setdefault("_attaching", asyncio.Lock()):
                    if model is self._model:
                        await asyncio.to_thread(self._attach)

    async def _answer(self, request: Any) -> Any:
        """An HTTP request's answer."""
        from starlette.responses import JSONResponse

        try:
            feeds = self._feeds(await request.json())
            found = await self._run(feeds)
        except (AttributeError, UnicodeDecodeError, ValueError, RequestError, RuntimeLost) as error:
            status = next((status for kind, status in STATUS if isinstance(error, kind)), 400)
            return JSONResponse({"error": str(error)}, status)
        return JSONResponse({"outputs": {name: _lists(value) for name, value in found.items()}})

    def _feeds(self, body: Any) -> dict[str, Any]:
        if not isinstance(body, dict) or not isinstance(body.get("inputs"), dict):
            raise RequestError('the body must be JSON of the form {"inputs": {input: nested lists}}')
        return dict(body["inputs"])


def _lists(value: Any) -> Any:
    """An output as JSON can express it: numbers that are not finite are null."""
    array = np.asarray(value)
    if array.dtype.kind not in "biuOUS":  # floating point, in any of its formats
        array = array.astype(np.float64)
        if not np.isfinite(array).all():
            shown = array.astype(object)
            shown[~np.isfinite(array)] = None
            array = shown
    return array.tolist()
