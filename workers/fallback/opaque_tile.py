"""Executes nodes without kernels. An opaque tile is a small ONNX model, evaluated by `onnx.reference` on views of shared memory, with some
operators of our own (`operators.py`).

`run_tile` is what a worker calls. It never raises for anything that the model or its inputs can cause. The request fails with a text that
names node and op, and the worker goes on. onnx itself is imported when the first such tile arrives (about 0.2 s). So workers of models
without opaque nodes start fast and stay small.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aspen_mp.shm import values
from aspen_mp.shm.errors import RequestError
from aspen_mp.shm.words import a

if TYPE_CHECKING:
    from types import TracebackType

    import onnx

# A tensor operand is an ndarray view of its place; an OBJECT operand is the writable or readable buffer of a serialised value.
Operand = npt.NDArray[Any] | memoryview


class Opaque:
    """A (sub-)graph without kernels. `model` is a serialised ModelProto; its graph inputs and outputs are the operands, in order."""

    def __init__(self, model: bytes | bytearray | memoryview | onnx.ModelProto, name: str = "") -> None:
        import onnx

        from aspen_mp.workers.fallback.operators import Evaluator

        if isinstance(model, (bytes, bytearray, memoryview)):
            model = onnx.load_from_string(bytes(model))
        self.name = name or model.graph.name
        initial = {t.name for t in model.graph.initializer}
        self.inputs = [i.name for i in model.graph.input if i.name not in initial]
        self.outputs = [o.name for o in model.graph.output]
        self._dtypes = [_declared(o.type) for o in model.graph.output]
        try:
            self._evaluator = Evaluator(model)
        except Exception as error:
            raise RequestError(self._message(error)) from error

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Evaluates the graph: `inputs` in the order of the graph's inputs, results in the order of its outputs.

        Tensors are ndarrays (inputs may be read-only views with any strides), strings arrays of dtype object, sequences lists, an empty
        optional None. Whatever goes wrong inside is a `RequestError` that names node and op.
        """
        if len(inputs) != len(self.inputs):
            raise RequestError(f"{self.name}: it has {len(self.inputs)} inputs and was given {len(inputs)}")
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                try:
                    results = self._evaluate([_guarded(x) for x in inputs])
                except ValueError as error:
                    # Some operators of onnx.reference work in place; operands are shared with other tiles, so these get copies.
                    if "read-only" not in str(error):
                        raise
                    results = self._evaluate([_copied(x) for x in inputs])
                return [_as_declared(r, dtype) for r, dtype in zip(results, self._dtypes, strict=True)]
        except Exception as error:
            raise RequestError(self._message(error)) from error

    def _evaluate(self, inputs: list[Any]) -> list[Any]:
        results = self._evaluator.run(None, dict(zip(self.inputs, inputs, strict=True)))
        assert isinstance(results, list)
        return results

    def _message(self, error: BaseException) -> str:
        where = _failed_node(error.__traceback__)
        while error.__cause__ is not None:  # onnx.reference says in its own words that a body failed
            error = error.__cause__
            where = _failed_node(error.__traceback__) or where
        text = " ".join(str(error).split()) or type(error).__name__
        known = not where or where == self.name or self.name.endswith(f" ({where})")  # the tile's own node, which may have no name
        inside = "" if known else f" ({where})"
        return f"{self.name}{inside} failed: {text[:600]}"


class OpaqueCache:
    """Prepared `Opaque` objects by a key of the caller's choice (plan and op), the least recently used dropped first."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._entries: OrderedDict[Hashable, Opaque] = OrderedDict()

    def get(self, key: Hashable, model: bytes | memoryview, name: str = "") -> Opaque:
        """The object for `key`, made from `model` on first use."""
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = Opaque(model, name)
            if len(self._entries) > self._limit:
                self._entries.popitem(last=False)
        self._entries.move_to_end(key)
        return entry

    def clear(self) -> None:
        """Forget everything, for instance because plan numbers are used again."""
        self._entries.clear()


def run_tile(
    cache: OpaqueCache, key: Hashable, model: bytes | memoryview, name: str, *, outputs: Sequence[Operand], inputs: Sequence[Operand]
) -> tuple[str, int]:
    """Executes one opaque tile on its operands: ``(error, needed)``.

    `error` is "" or what to tell the request. `needed` is 0, or the bytes that all OBJECT outputs together take if one was too small. Each
    such buffer then says how many it needs itself (`values.needed_bytes`). Operands that are memoryviews hold serialised values.
    """
    try:
        opaque = cache.get(key, model, name)
        results = opaque.run([values.decode(x, copy=False) if isinstance(x, memoryview) else x for x in inputs])
        return "", _store(opaque, outputs, results)
    except RequestError as error:
        return str(error), 0
    except Exception as error:  # a damaged blob or operand: still this request's fault alone
        return f"{name} failed: {type(error).__name__}: {error}", 0


def _store(opaque: Opaque, outputs: Sequence[Operand], results: list[Any]) -> int:
    if len(outputs) != len(results):
        raise RequestError(f"{opaque.name}: it returned {len(results)} results for {len(outputs)} outputs")
    total, short = 0, False
    for name, out, result in zip(opaque.outputs, outputs, results, strict=True):
        if isinstance(out, memoryview):
            encoded = values.Encoded(result)
            total += encoded.nbytes
            if encoded.nbytes <= len(out):
                encoded.write(out)
            else:
                short = True
                values.write_needed(out, encoded.nbytes)
            continue
        if not isinstance(result, np.ndarray) or result.shape != out.shape:
            got = f"shape {result.shape}" if isinstance(result, np.ndarray) else a(type(result).__name__)
            raise RequestError(f"{opaque.name}: result {name!r} has {got}, the plan expects shape {out.shape}")
        out[...] = result.view(out.dtype) if result.dtype != out.dtype and result.dtype.itemsize == out.dtype.itemsize == 1 else result
    return total if short else 0


def _guarded(value: Any) -> Any:
    """A contiguous array that cannot be written through; some operators look at memory order, none may change its inputs."""
    if isinstance(value, np.ndarray):
        value = np.asarray(value, order="C").view()
        value.flags.writeable = False
    elif isinstance(value, list):
        value = [_guarded(v) for v in value]
    return value


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    return [_copied(v) for v in value] if isinstance(value, list) else value


def _declared(kind: onnx.TypeProto) -> np.dtype[Any] | None:
    """The dtype that a graph output of this type must have; None for strings, sequences, optionals, and where the model does not say."""
    import onnx

    if not kind.HasField("tensor_type") or kind.tensor_type.elem_type in (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING):
        return None
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))


def _as_declared(value: Any, dtype: np.dtype[Any] | None) -> Any:
    """Results as the model's types say: onnx.reference returns numpy scalars, wider floats or numpy strings here and there."""
    if isinstance(value, (list, tuple)):
        return [_as_declared(v, None) for v in value]
    if value is None or isinstance(value, (dict, values.Maps)):
        return value
    array = np.asarray(value)
    if array.dtype.kind in "UST":
        return array.astype(object)
    if dtype is not None and array.dtype not in (dtype, np.dtype(object)):
        return array.astype(dtype)
    return array


def _failed_node(traceback: TracebackType | None) -> str:
    """Name and operator of the innermost node that onnx.reference was executing, read from its frames."""
    found = ""
    while traceback is not None:
        node = getattr(traceback.tb_frame.f_locals.get("node"), "onnx_node", None)
        if node is not None and hasattr(node, "op_type"):
            found = f"{node.name} ({node.op_type})" if node.name else str(node.op_type)
        traceback = traceback.tb_next
    return found
