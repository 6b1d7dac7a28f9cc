"""LoRA adapters beside onnxruntime's: each reads what the other writes, the same parameters reach the same runs, and broken files raise."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp.compat import onnxruntime as compat
from aspen_mp.compat.onnxruntime import errors as ort_errors

TYPES = ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
X = np.arange(6, dtype=np.float32).reshape(3, 2)


def drawn(seed: int) -> dict[str, np.ndarray]:
    """Up to six parameters of any shape and type, some of them empty. onnxruntime reads no scalars."""
    rng = np.random.default_rng(seed)
    shapes = [tuple(rng.integers(0, 5, rng.integers(1, 4)).tolist()) for _ in range(rng.integers(0, 7))]
    return {f"p{k}.é": rng.integers(0, 100, shape).astype(rng.choice(TYPES)) for k, shape in enumerate(shapes)}


def written(module: Any, path: Path, parameters: dict[str, np.ndarray]) -> Path:
    adapter = module.AdapterFormat()
    adapter.set_adapter_version(5)
    adapter.set_model_version(-7)
    adapter.set_parameters({name: module.OrtValue.ortvalue_from_numpy(value) for name, value in parameters.items()})
    adapter.export_adapter(str(path))
    return path


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(("writer", "reader"), [(compat, onnxruntime), (onnxruntime, compat), (compat, compat)])
def test_each_reads_what_the_other_writes(writer: Any, reader: Any, seed: int, tmp_path: Path) -> None:
    parameters = drawn(seed)
    found = reader.AdapterFormat.read_adapter(str(written(writer, tmp_path / "a", parameters)))
    assert (found.get_format_version(), found.get_adapter_version(), found.get_model_version()) == (1, 5, -7)
    values = {name: value.numpy() for name, value in found.get_parameters().items()}
    assert values.keys() == parameters.keys()
    for name, value in parameters.items():
        assert values[name].dtype == value.dtype
        np.testing.assert_array_equal(values[name], value)


def low_rank() -> onnx.ModelProto:
    """y = x @ w + x @ a @ b, where a and b have no columns and no rows until a request gives them."""
    inits = [np.eye(2, dtype=np.float32), np.zeros((2, 0), np.float32), np.zeros((0, 2), np.float32)]
    nodes = [("MatMul", "x w", "full"), ("MatMul", "x a", "low"), ("MatMul", "low b", "more"), ("Add", "full more", "y")]
    shapes = {"x": ["n", 2], "a": [2, "rank"], "b": ["rank", 2], "y": ["n", 2]}
    ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(
        [helper.make_node(op, inputs.split(), [output]) for op, inputs, output in nodes],
        "g",
        [ends["x"], ends["a"], ends["b"]],
        [ends["y"]],
        [numpy_helper.from_array(value, name) for name, value in zip("wab", inits, strict=True)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def factors(seed: int, rank: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(-3, 4, shape).astype(np.float32) for name, shape in (("a", (2, rank)), ("b", (rank, 2)))}


class Runs:
    """The same runs in both; what onnxruntime's options point to is kept."""

    def __init__(self, runtime: aspen_mp.Runtime, folder: Path) -> None:
        self.folder = folder
        model = low_rank().SerializeToString()
        self.sessions = {compat: compat.InferenceSession(model, runtime=runtime), onnxruntime: onnxruntime.InferenceSession(model)}
        self.kept: list[Any] = []

    def options(self, module: Any, *adapters: dict[str, np.ndarray]) -> Any:
        options = module.RunOptions()
        for parameters in adapters:
            adapter = module.LoraAdapter()
            adapter.Load(str(written(compat, self.folder / f"{module.__name__} {len(self.kept)}", parameters)))
            options.add_active_adapter(adapter)
            self.kept.append(adapter)
        return options

    def both(self, feeds: dict[str, np.ndarray], *adapters: dict[str, np.ndarray]) -> list[np.ndarray]:
        return [session.run(None, feeds, self.options(module, *adapters))[0] for module, session in self.sessions.items()]


@pytest.fixture(scope="module")
def runs(shared_runtime: aspen_mp.Runtime, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(shared_runtime, tmp_path_factory.mktemp("adapters"))


@pytest.mark.parametrize("rank", [1, 2, 5])
def test_parameters_reach_the_run(runs: Runs, rank: int) -> None:
    one, other = factors(rank, rank), factors(rank + 10, rank)
    for feeds, adapters in (({}, [one]), (other, [one]), ({}, [one, other]), ({}, [other, one]), ({"a": other["a"]}, [{"b": one["b"]}])):
        ours, theirs = runs.both({"x": X, **feeds}, *adapters)
        np.testing.assert_array_equal(ours, theirs)
    merged = {**other, **one}
    wanted = X + X.astype(np.float64) @ merged["a"] @ merged["b"]
    np.testing.assert_array_equal(runs.both({"x": X, **other}, one)[0], wanted)
    np.testing.assert_array_equal(runs.both({"x": X}, {})[0], X, err_msg="an adapter is for its run alone")


def test_every_way_to_run_takes_adapters(runs: Runs) -> None:
    import threading

    session, one = runs.sessions[compat], factors(3, 2)
    wanted = X + X @ one["a"] @ one["b"]
    options = runs.options(compat, one)
    value = session.run_with_ort_values(None, {"x": compat.OrtValue.ortvalue_from_numpy(X)}, options)[0]
    np.testing.assert_array_equal(value.numpy(), wanted)
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_output("y")
    session.run_with_iobinding(binding, options)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], wanted)
    done, found = threading.Event(), []
    session.run_async(None, {"x": X}, lambda results, data, error: (found.append((results, error)), done.set()), None, options)
    assert done.wait(60)
    assert not found[0][1]
    np.testing.assert_array_equal(found[0][0][0], wanted)


@pytest.mark.parametrize("wrong", [{"w": X}, {"nothing": X}, {"a": X}, {"a": X[:2].astype(np.float64), "b": X[:2]}])
def test_parameters_that_do_not_fit(runs: Runs, wrong: dict[str, np.ndarray]) -> None:
    for module, session in runs.sessions.items():
        expected = ort_errors.InvalidArgument if module is compat else onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument
        with pytest.raises(expected):
            session.run(None, {"x": X}, runs.options(module, wrong))


def test_what_is_no_adapter() -> None:
    for module in (compat, onnxruntime):
        with pytest.raises(TypeError):
            module.RunOptions().add_active_adapter("a.onnx_adapter")
        with pytest.raises(RuntimeError):
            module.AdapterFormat.read_adapter("/nowhere/a.onnx_adapter")
        with pytest.raises(AttributeError):
            module.AdapterFormat().set_parameters({"a": X})
        with pytest.raises(TypeError):
            module.AdapterFormat().set_model_version("one")


def test_broken_files_raise(tmp_path: Path) -> None:
    """Whatever bytes change, and wherever a file ends, reading it gives an adapter or raises a RuntimeError."""
    good = written(compat, tmp_path / "good", drawn(4) | factors(0, 3)).read_bytes()
    rng = random.Random(0)
    broken = [good[:end] for end in range(0, len(good), 7)]
    for _ in range(400):
        changed = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(good))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        broken.append(bytes(changed))
    raised = 0
    for content in broken:
        path = tmp_path / "broken"
        path.write_bytes(content)
        try:
            for value in compat.AdapterFormat.read_adapter(path).get_parameters().values():
                assert value.tensor_size_in_bytes() <= len(content)
        except RuntimeError:
            raised += 1
    assert raised > len(good) // 7
