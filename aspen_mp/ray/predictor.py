"""`Predictor`: a model as a class that engines construct in each of their processes and call with batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aspen_mp.errors import RequestError, RuntimeLost
from aspen_mp.ray import columns, rows
from aspen_mp.ray.node import of_this_node
from aspen_mp.shm.words import nearest

if TYPE_CHECKING:
    import os

    import onnx

    from aspen_mp.client.model import Model
    from aspen_mp.client.runtime import Runtime
    from aspen_mp.client.signature import ValueInfo
    from aspen_mp.ray.columns import Array, Batch

MOST_LOSSES: Final = 3
"""How often a batch may lose its runtime before it fails."""


class Predictor:
    """A model for ``Dataset.map_batches`` of Ray Data, and for other engines that construct a class and call it with batches::

        dataset.map_batches(Predictor, fn_constructor_kwargs={"model": "/models/minilm.onnx"}, batch_size=256, num_cpus=0, …)

    All processes of a node share one runtime: its workers and one copy of the weights. The first process starts it, and it ends with the
    last one, however they end. If the runtime is lost, the next batch starts it again, and batches in flight are computed again.

    Each row is one item of the model: inputs and outputs have a row along their first axis. A model of a fixed batch gets as many rows in
    each request. Where rows are left over, the last one is repeated to fill the request, and the surplus is dropped. A column is converted
    to the input's dtype where that holds its values. A list column is reshaped to the input's shape.

    Args:
        model: As of `Runtime.load`. A path is opened on each node.
        inputs: {input: column}, or the column alone where the model needs one input. None: columns are called like inputs.
            A column whose label is a number is called by its digits, such as "0".
        outputs: {output: column}, or names of outputs. None: all outputs, in columns of their names.
        keep: Columns of the batch that the result has, too. True: all.
        constants: {input: value} that every request gets, for inputs without rows.
        rows_per_request: How many rows a request has at most, where the model's first axis is open. None: a whole batch. Smaller requests
            share the cores of many workers better, and keep less memory for activations.
        workers: Number of workers of the runtime. None: one for each core of the node that Ray's ``num_cpus`` leaves, or for each core
            where it leaves none.
        runtime: The name of a runtime that runs on each node already (`aspen-mp launch`). None: the node's own.
        runtime_options: Further arguments of `aspen_mp.Runtime`, for example ``{"cores": [2, 3]}``. Those of the first process count.
        load: Further arguments of `Runtime.load`, for example ``{"objective": "throughput"}``.

    Raises:
        RequestError: Inputs, outputs or constants are not the model's.
        RuntimeNotFound: There is no runtime called `runtime` on this node.
        RuntimeLost: The node's runtime does not start; the message says why.
        FileNotFoundError, ModelParseError, UnsupportedModelError: As of `Runtime.load`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes | onnx.ModelProto,
        inputs: Mapping[str, str] | str | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        *,
        keep: Sequence[str] | bool = (),
        constants: Mapping[str, Any] | None = None,
        rows_per_request: int | None = None,
        workers: int | None = None,
        runtime: str | None = None,
        runtime_options: Mapping[str, Any] | None = None,
        load: Mapping[str, Any] | None = None,
    ) -> None:
        if rows_per_request is not None and (isinstance(rows_per_request, bool) or rows_per_request < 1):
            raise ValueError(f"rows_per_request must be 1 or more, not {rows_per_request!r}")
        self._source, self._load = model, dict(load or {})
        self._keep = keep if isinstance(keep, bool) else list(keep)
        self._constants = dict(constants or {})
        self._model: Model
        self._runtime: Runtime
        self._lock = threading.Lock()
        self._largest = 0
        self._node = of_this_node(runtime, workers, dict(runtime_options or {}))
        try:
            self._attach()
            self._inputs, self._infos = _inputs(self._model, inputs, self._constants)
            self._outputs = _outputs(self._model, outputs)
            self._requests = rows.Requests.of(self._model.name, self._infos, rows_per_request)
        except BaseException:
            self.close()
            raise

    def __call__(self, batch: Any) -> Any:
        """Run the model on a batch of rows.

        Args:
            batch: {column: array with a row along its first axis}, a `pyarrow.Table` or `pyarrow.RecordBatch`, or a `pandas.DataFrame`.

        Returns: The outputs as columns, and the columns to keep before them, in the batch's format. In Arrow, outputs of one number for a
            row are numbers. Outputs of one axis are lists of a fixed size, and those of more axes are tensors of a fixed shape.

        Raises:
            RequestError: A column is missing or does not fit; the message names model and column.
            RuntimeLost: The runtime was lost 3 times with this batch.
            TypeError: The batch is of no known format.
        """
        given = columns.batch_of(batch)
        kept = self._kept(given)
        known = list(zip(self._infos, self._inputs, strict=True))
        for info, column in known:
            self._check(given, column, f"for input {info.name!r}; name one in inputs")
        arrays = {info.name: self._array(info, column, partial(given.column, column)) for info, column in known if given.rows}
        found = self._run(arrays, given.rows)
        return given.result(kept, {self._outputs[name]: array for name, array in found.items()})

    def predict(self, *arrays: Array) -> Array | dict[str, Array]:
        """Run the model on rows that are given as arrays, as `predict_batch_udf` of Spark does.

        Args:
            *arrays: One for each input with rows, in the order of `inputs`, with a row along the first axis.

        Returns:
            The output as an array, or {column: array} where there are several.

        Raises:
            RequestError: An array does not fit, or there are more or fewer than inputs.
        """
        if len(arrays) != len(self._infos):
            names = ", ".join(info.name for info in self._infos)
            raise RequestError(f"model {self._model.name!r} takes {len(self._infos)} arrays ({names}), not {len(arrays)}")
        count = len(arrays[0])
        known = zip(self._infos, self._inputs, arrays, strict=True)
        given = {info.name: self._array(info, column, partial(columns.array_of, array)) for info, column, array in known if count}
        found = self._run(given, count)
        result = {self._outputs[name]: array for name, array in found.items()}
        return next(iter(result.values())) if len(result) == 1 else result

    def close(self) -> None:
        """Stop using the runtime, which ends if nobody else on the node uses it."""
        if hasattr(self, "_runtime"):
            self._runtime.close()
        self._node.close()

    # ---- rows

    def _kept(self, batch: Batch) -> list[str]:
        keep = batch.names if self._keep is True else self._keep or []
        for name in keep:
            self._check(batch, name, "to keep")
        made = set(self._outputs.values())
        return [name for name in keep if name not in made]

    def _check(self, batch: Batch, name: str, what: str) -> None:
        if name not in batch.names:
            meant = nearest(name, batch.names)
            advice = "" if meant is None else f" (is {meant!r} meant?)"
            have = ", ".join(batch.names) or "none"
            raise RequestError(f"model {self._model.name!r}: the batch has no column {name!r} {what}{advice}. It has {have}")

    def _array(self, info: ValueInfo, column: str, read: Callable[[], Array]) -> Array:
        """The array for an input from a column."""
        try:
            array = read()
        except ValueError as error:
            raise RequestError(f"model {self._model.name!r}: column {column!r} for input {info.name!r} {error}") from None
        return rows.fitted(self._model.name, info, column, array)

    def _run(self, arrays: dict[str, Array], count: int) -> dict[str, Array]:
        """The outputs of all rows; from the next runtime of the node where one is lost."""
        names = list(self._outputs)
        if not count:
            return {info.name: rows.nothing(info) for info in self._model.outputs if info.name in self._outputs}
        losses = 0
        while True:
            model = self._model
            sizes = self._requests.sizes(count, self._largest)
            try:
                found = rows.run(model, rows.feeds(arrays, self._constants, sizes), names, sizes)
            except RuntimeLost:
                losses += 1
                if losses >= MOST_LOSSES:
                    raise
                self._attach(lost=model)
            else:
                self._largest = max(self._largest, sizes[0][1])
                return found

    # ---- the runtime

    def _attach(self, lost: Model | None = None) -> None:
        """Loads the model in the node's runtime. `lost`: only if it is still in use; another thread may have been here."""
        with self._lock:
            if lost is not None and lost is not self._model:
                return
            if lost is not None:
                self._runtime.close()
            self._runtime = self._node.attach()
            self._model = self._runtime.load(self._source, **self._load)


def _inputs(model: Model, given: Mapping[str, str] | str | None, constants: Mapping[str, Any]) -> tuple[list[str], list[ValueInfo]]:
    """Columns, and the inputs that they feed."""
    infos = {info.name: info for info in model.inputs}
    needed = [name for name, info in infos.items() if not info.optional and name not in constants]
    if isinstance(given, str):
        if len(needed) != 1:
            raise RequestError(f"model {model.name!r} needs {len(needed)} columns: give inputs={{{needed[0]!r}: {given!r}, …}}")
        given = {needed[0]: given}
    named = dict(given or {})
    model.check_names([*named, *constants])
    both = sorted(named.keys() & constants.keys())
    if both:
        raise RequestError(f"model {model.name!r}: input {both[0]!r} is both a column and a constant. Give one of them")
    columns_of = {name: named.get(name, name) for name in [*needed, *(n for n in named if n not in needed)]}
    order = [*named, *(name for name in columns_of if name not in named)]
    return [columns_of[name] for name in order], [infos[name] for name in order]


def _outputs(model: Model, given: Mapping[str, str] | Sequence[str] | None) -> dict[str, str]:
    """Outputs and their columns."""
    known = [info.name for info in model.outputs]
    if given is None:
        return {name: name for name in known}
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in known:
            meant = nearest(name, known)
            advice = "" if meant is None else f" (is {meant!r} meant?)"
            raise RequestError(f"model {model.name!r} has no output {name!r}{advice}. It has {', '.join(known)}")
    result = dict(given) if isinstance(given, Mapping) else {name: name for name in names}
    if len(set(result.values())) != len(result):
        raise RequestError(f"model {model.name!r}: two outputs go to one column. Give each a column of its own in outputs")
    return result
