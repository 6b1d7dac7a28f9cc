"""Models that are almost right: real small ones of every operator, with a few fields changed, are refused with a typed error or give the
reference's answer.

The base models are those of onnx's own backend tests, which have every operator in its variants. A change is one to an integer, string,
type, list or message anywhere in the protobuf message, or to its bytes.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from fuzzing import PATIENCE, Finding, numbers, others, ours, touched
from google.protobuf.descriptor import FieldDescriptor as Field
from google.protobuf.message import DecodeError, EncodeError, Message
from onnx import ModelProto, TensorProto, helper, numpy_helper

from aspen_mp.planner import api
from aspen_mp.planner.frontends.binding.bind import Binding
from aspen_mp.planner.frontends.evaluate import RANDOM
from aspen_mp.planner.ops import verify
from aspen_mp.planner.plan.validate import validate
from aspen_mp.shm.errors import AspenError, PlanError
from aspen_mp.shm.tables import PLAN_HEADER
from aspen_mp.workers._dse import PlanRunner
from aspen_mp.workers.fallback import opaque_tile

verify.ENABLED = True
CORPUS = Path(__file__).with_name("corpus") / "models"
FLOATS = [0.0, -0.0, 1.0, -1.0, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan"), 0.5, 3.7]
MANY = 1 << 22
"""Elements of an input beyond which a model is planned, not run."""
LARGEST = 1 << 59
"""Elements that no array of numpy's can have, were its empty axes not there: nobody can give such an input."""
_INTEGERS = {Field.CPPTYPE_INT32, Field.CPPTYPE_INT64, Field.CPPTYPE_UINT32, Field.CPPTYPE_UINT64, Field.CPPTYPE_ENUM, Field.CPPTYPE_BOOL}


def _foreign(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        with others("onnx"):
            return function(*args, **kwargs)

    return run


onnx.checker.check_model = _foreign(onnx.checker.check_model)
onnx.shape_inference.infer_shapes = _foreign(onnx.shape_inference.infer_shapes)
onnx.shape_inference.infer_node_outputs = _foreign(onnx.shape_inference.infer_node_outputs)


@lru_cache(maxsize=1)
def bases() -> list[tuple[str, bytes]]:
    """Serialised models of the backend's node tests, small ones, one of a kind (operator and attributes)."""
    from onnx.backend.test.loader import load_model_tests

    found: dict[Any, tuple[str, bytes]] = {}
    for test in load_model_tests(kind="node"):
        path = Path(test.model_dir or "") / "model.onnx"
        if test.model is None and not path.exists():
            continue
        data = path.read_bytes() if test.model is None else test.model.SerializeToString()
        if len(data) > 20000:
            continue
        graph = ModelProto.FromString(data).graph
        key = (tuple((n.op_type, tuple(sorted(a.name for a in n.attribute)), len(n.input)) for n in graph.node), len(graph.input))
        found.setdefault(key, (test.name, data))
    return sorted(found.values())


# ------------------------------------------------------------------------------------------------------------------ changes


def messages(root: Message) -> Iterator[Message]:
    yield root
    for field, value in root.ListFields():
        if field.cpp_type == Field.CPPTYPE_MESSAGE:
            for inner in value if repeated(field) else [value]:
                yield from messages(inner)


def copied(message: Message) -> Message:
    """protobuf does not survive copying a message into one that is inside it."""
    copy = type(message)()
    copy.CopyFrom(message)
    return copy


def repeated(field: Any) -> bool:
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == Field.LABEL_REPEATED)


def scalar(rng: np.random.Generator, field: Any, old: Any, names: list[str]) -> Any:
    if field.cpp_type in _INTEGERS:
        return int(old) + int(rng.choice([-1, 1])) if rng.random() < 0.3 and isinstance(old, int) else numbers(rng)
    if field.cpp_type in {Field.CPPTYPE_FLOAT, Field.CPPTYPE_DOUBLE}:
        return float(rng.choice(FLOATS))
    if field.type == Field.TYPE_BYTES:
        data = bytearray(old or b"")
        kind = rng.random()
        if kind < 0.4 and data:
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        elif kind < 0.7:
            data = data[: int(rng.integers(len(data) + 1))]
        else:
            data += rng.bytes(int(rng.integers(1, 40)))
        return bytes(data)
    return str(rng.choice([*names, "", "x" * 300, "0", "\0aspen", "Relu", "If", "Loop", "NOTSET", "SAME_UPPER", "linear"]))


def change(rng: np.random.Generator, model: ModelProto) -> str:
    """One change somewhere; what it was. ValueError, TypeError: protobuf does not let it be written."""
    everything = list(messages(model))
    names = [s for n in model.graph.node for s in (*n.input, *n.output)] + [v.name for v in (*model.graph.input, *model.graph.initializer)]
    # Nodes, attributes and dimensions rather than what surrounds them.
    weights = np.array(
        [3.0 if m.DESCRIPTOR.name in {"NodeProto", "AttributeProto", "Dimension", "TensorProto"} else 1.0 for m in everything]
    )
    message = everything[int(rng.choice(len(everything), p=weights / weights.sum()))]
    fields = [f for f, _ in message.ListFields()] if rng.random() < 0.8 else list(message.DESCRIPTOR.fields)
    if not fields:
        return "nothing"
    field = fields[int(rng.integers(len(fields)))]
    name, what = field.name, f"{message.DESCRIPTOR.name}.{field.name}"
    if not repeated(field):
        if field.cpp_type == Field.CPPTYPE_MESSAGE:
            message.ClearField(name)
            others = [m for m in everything if m.DESCRIPTOR is field.message_type]
            if others and rng.random() < 0.6:
                getattr(message, name).CopyFrom(copied(others[int(rng.integers(len(others)))]))
            return f"{what} replaced"
        setattr(message, name, scalar(rng, field, getattr(message, name), names))
        return f"{what} = {str(getattr(message, name))[:60]!r}"
    values = getattr(message, name)
    kind = rng.random()
    if field.cpp_type == Field.CPPTYPE_MESSAGE:
        if kind < 0.3 and len(values):
            del values[int(rng.integers(len(values)))]
            return f"{what} one less"
        others = [m for m in everything if m.DESCRIPTOR is field.message_type]
        if others:
            values.add().CopyFrom(copied(others[int(rng.integers(len(others)))]))
        else:
            values.add()
        return f"{what} one more"
    listed = list(values)
    if kind < 0.5 and listed:
        k = int(rng.integers(len(listed)))
        listed[k] = scalar(rng, field, listed[k], names)
    elif kind < 0.7 and listed:
        del listed[int(rng.integers(len(listed)))]
    else:
        listed.insert(int(rng.integers(len(listed) + 1)), scalar(rng, field, listed[0] if listed else None, names))
    del values[:]
    values.extend(listed)
    return f"{what} = {str(listed)[:60]}"


def mutated(seed: int) -> tuple[str, bytes]:
    """A name and a changed model."""
    rng = np.random.default_rng(seed)
    stock = bases()
    name, data = stock[int(rng.integers(len(stock)))]
    model = ModelProto.FromString(data)
    done = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        before = model.SerializeToString()
        try:
            done.append(change(rng, model))
        except (ValueError, TypeError, EncodeError, DecodeError):
            model = ModelProto.FromString(before)
    out = bytearray(model.SerializeToString())
    if rng.random() < 0.1:
        at = int(rng.integers(len(out)))
        out[at] = int(rng.integers(256))
        done.append(f"byte {at}")
    return f"{name}: {'; '.join(done)}", bytes(out)


# ------------------------------------------------------------------------------------------------------------------- oracle


def feeds_for(signature: api.Signature, rng: np.random.Generator) -> dict[str, Any] | None:
    """Inputs of the declared shapes, unknown dimensions small. None: they are no plain tensors, or too large to make."""
    feeds = {}
    for info in signature.inputs:
        if info.kind != "tensor" or info.dtype == object:
            return None
        shape = [d if isinstance(d, int) else 2 for d in info.shape or ()]
        if prod(shape) > MANY or prod(max(d, 1) for d in shape) > LARGEST:
            return None
        with np.errstate(all="ignore"):
            feeds[info.name] = np.asarray(rng.integers(-3, 4, shape) if info.dtype.kind in "iu" else rng.standard_normal(shape)).astype(
                info.dtype
            )
    return feeds


def check(data: bytes, seed: int = 0) -> str:
    """Loads, plans, validates and runs a model. Returns what became of it; raises where that is wrong."""
    rng = np.random.default_rng(seed)
    try:
        opened = api.load(data)
        feeds = feeds_for(opened.signature, rng)
        if feeds is None:
            return "not run"
        stage = api.plan_stage(opened, [{n: Binding(x.dtype, x.shape) for n, x in feeds.items()}], workers=2)
        touched()  # whatever onnx is asked before it, comes before any native code of ours
        if stage.plan is None or stage.more or stage.kind != "static":
            stage = api.plan_stage(opened, [{n: Binding(x.dtype, x.shape, x) for n, x in feeds.items()}], workers=2)
        plan = stage.plan
        if plan is None or stage.more or stage.kind != "static":
            return "in stages"
        directory, size = plan.default_directory()
        if size + plan.arena_layout()["arena_bytes"] + plan.request_bytes > 1 << 28:
            return "large"
        plan.place_weights(directory)
        weights = np.zeros(size + 64, np.uint8)
        weights = weights[-weights.ctypes.data % 64 :][:size]
        for item in plan.weights:
            at = directory[item.key][1]
            item.write(memoryview(weights)[at : at + item.nbytes])
    except AspenError as error:
        if type(error) is AspenError or not str(error).strip():
            raise Finding(f"an error that says nothing: {error!r}") from error
        return "refused"
    except (MemoryError, RecursionError):  # a planning child answers these with ResourceLimitError and ModelParseError
        return "beyond limits"
    segment = plan.segment()
    try:
        validate(segment)
    except PlanError as error:
        raise Finding(f"the planner made a plan that it refuses itself: {error}") from error
    finally:
        if (spent := ours()) > PATIENCE:
            raise Finding(f"planned in {spent:.1f} s of processor time")
    got = execute(plan, segment, weights, feeds)
    return "failed" if isinstance(got, int) else compare(data, opened, feeds, got)


def execute(plan: Any, segment: bytes | bytearray, weights: Any, feeds: dict[str, Any]) -> dict[str, Any] | int:
    """The plan's outputs, or the number of the error with which a tile has failed."""
    header = np.frombuffer(segment, PLAN_HEADER, 1)[0]
    arena, request = (_aligned(int(header[name])) for name in ("arena_bytes", "request_bytes"))
    arena[:] = 0xA5
    request[:] = 0xA5
    for info in plan.inputs:
        if info.name in feeds and info.nbytes:
            request[info.offset : info.offset + info.nbytes] = np.frombuffer(np.ascontiguousarray(feeds[info.name]).tobytes(), np.uint8)
    failed: list[str] = []

    def opaque(blob: bytes, outputs: Any, inputs: Any) -> None:
        with others("onnx.reference"):
            error, _ = opaque_tile.run_tile(
                opaque_tile.OpaqueCache(), 0, blob, "op", outputs=outputs, inputs=[x for x in inputs if x is not None]
            )
        failed.extend([error] if error else [])

    error = PlanRunner(segment, [weights], arena, request, opaque=opaque).run("random")
    if error or failed:
        return error or -1
    return {
        info.name: np.frombuffer(request[info.offset : info.offset + info.nbytes].tobytes(), np.dtype(info.dtype)).reshape(info.shape)
        for info in plan.outputs
        if info.dtype != "object"
    }


def _aligned(nbytes: int) -> Any:
    memory = np.empty(nbytes + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][:nbytes]


def compare(data: bytes, opened: api.OnnxModel, feeds: dict[str, Any], got: dict[str, Any]) -> str:
    """Wrong is what differs from the reference where another implementation agrees with the reference."""
    model = ModelProto.FromString(data)
    if any(n.op_type in RANDOM or n.op_type == "Dropout" for n in model.graph.node):
        return "random"
    names = [o.name for o in model.graph.output]
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"), others("onnx.reference"):
            want = dict(zip(names, ReferenceEvaluator(model).run(None, feeds), strict=True))
    except Exception:  # the reference does not say
        return "no reference"
    off = [n for n in names if n in got and not alike(got[n], want[n])]
    if not off:
        return "right"
    other = second_opinion(data, feeds, names)
    if other is None:
        return "disputed"
    off = [n for n in off if alike(other[n], want[n]) and not alike(got[n], other[n])]
    if off:
        n = off[0]
        raise Finding(f"{n!r} is {got[n].reshape(-1)[:8]} of shape {got[n].shape}, not {np.asarray(want[n]).reshape(-1)[:8]}")
    return "disputed"


def alike(a: Any, b: Any) -> bool:
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind in "fV" or (a.dtype.itemsize == 1 and a.dtype.kind not in "iub"):
        x, y = (v.astype(np.float64) for v in (a, b))
        loose = 2e-2 if a.dtype.itemsize < 4 else 1e-3
        with np.errstate(all="ignore"):
            scale = float(np.max(np.abs(np.where(np.isfinite(y), y, 0)), initial=0.0))
            return bool(np.allclose(x, y, rtol=loose, atol=loose * max(scale, 1e-3), equal_nan=True))
    return bool(np.array_equal(a, b)) or (a.dtype.kind in "iu" and bool((np.abs(a.astype(np.float64) - b.astype(np.float64)) <= 1).all()))


def second_opinion(data: bytes, feeds: dict[str, Any], names: list[str]) -> dict[str, Any] | None:
    """onnxruntime's answer, asked in a process of its own: it does not survive everything."""
    import onnxruntime

    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            signal.alarm(20)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = options.inter_op_num_threads = 1
            options.log_severity_level = 4
            session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
            taken = {i.name for i in session.get_inputs()}
            answers = session.run(names, {n: x for n, x in feeds.items() if n in taken})
            with os.fdopen(write, "wb") as pipe:
                for name, answer in zip(names, answers, strict=True):
                    proto = numpy_helper.from_array(np.asarray(answer), name).SerializeToString()
                    pipe.write(len(proto).to_bytes(8, "little") + proto)
        finally:
            os._exit(0)
    os.close(write)
    found = {}
    with os.fdopen(read, "rb") as pipe:
        while head := pipe.read(8):
            tensor = TensorProto.FromString(pipe.read(int.from_bytes(head, "little")))
            found[tensor.name] = numpy_helper.to_array(tensor)
    os.waitpid(pid, 0)
    return found if set(found) == set(names) else None


def case(seed: int) -> str:
    what, data = mutated(seed)
    try:
        return check(data, seed)
    except Finding as error:
        raise Finding(f"{what}: {error}") from error
    except Exception as error:
        error.add_note(what)
        raise


def keep(seed: int, label: str) -> Path:
    """Puts a case into the corpus."""
    CORPUS.mkdir(parents=True, exist_ok=True)
    path = CORPUS / f"{label}.onnx"
    path.write_bytes(mutated(seed)[1])
    return path


__all__ = ["CORPUS", "bases", "case", "check", "helper", "keep", "mutated", "onnx"]
