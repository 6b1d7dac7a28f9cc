"""Sessions beside onnxruntime's: options that change models, types of inputs and outputs, bindings, errors. The same calls have the same
results, or the test says how they differ."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import aspen_mp
from aspen_mp import errors
from aspen_mp.compat import onnxruntime as compat
from aspen_mp.compat.onnxruntime import errors as ort_errors
from aspen_mp.compat.onnxruntime import seeds

FLOAT = TensorProto.FLOAT


def made(nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: list[Any] | None = None, **more: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializer=initializers or [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, **more)


def info(name: str, shape: Any, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture(scope="module")
def scaled() -> onnx.ModelProto:
    """y = x * w over a batch of vectors of 3."""
    w = numpy_helper.from_array(np.array([1, 2, 3], np.float32), "w")
    return made([helper.make_node("Mul", ["x", "w"], ["y"])], [info("x", ["batch", 3])], [info("y", ["batch", 3])], [w])


@pytest.fixture
def session(scaled: onnx.ModelProto, shared_runtime: aspen_mp.Runtime) -> Any:
    with aspen_mp.InferenceSession(scaled, runtime=shared_runtime) as session:
        yield session


def pair(model: onnx.ModelProto, runtime: aspen_mp.Runtime, prepare: Any = lambda module, options: None) -> tuple[Any, Any, Any]:
    """A session of each; `prepare(module, options)` fills the options. The third is what has to stay alive for onnxruntime's."""
    sessions, kept = [], []
    for module, more in ((compat, {"runtime": runtime}), (onnxruntime, {})):
        options = module.SessionOptions()
        kept.append((options, prepare(module, options)))
        sessions.append(module.InferenceSession(model.SerializeToString(), options, **more))
    return sessions[0], sessions[1], kept


def args(values: Any) -> list[tuple[str, list[Any], str]]:
    return [(value.name, value.shape, value.type) for value in values]


# ---- types and shapes

SEQUENCE = helper.make_tensor_sequence_value_info
TYPES = {
    "string": (helper.make_node("Identity", ["x"], ["y"]), info("x", [2], TensorProto.STRING), info("y", [2], TensorProto.STRING)),
    "sequence": (helper.make_node("SequenceConstruct", ["x"], ["y"]), info("x", [2]), SEQUENCE("y", FLOAT, None)),
    "sequence in": (
        helper.make_node("SequenceLength", ["x"], ["y"]),
        SEQUENCE("x", TensorProto.INT32, None),
        info("y", [], TensorProto.INT64),
    ),
    "optional": (
        helper.make_node("OptionalGetElement", ["x"], ["y"]),
        helper.make_value_info("x", helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))),
        info("y", [2]),
    ),
    "optional sequence": (
        helper.make_node("OptionalGetElement", ["x"], ["y"]),
        helper.make_value_info(
            "x", helper.make_optional_type_proto(helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2])))
        ),
        SEQUENCE("y", FLOAT, [2]),
    ),
    "map": (
        helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", int64_vocabulary=[1, 2]),
        helper.make_value_info("x", helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, []))),
        info("y", None),
    ),
    "names": (helper.make_node("Relu", ["x"], ["y"]), info("x", ["n", None, 3]), info("y", ["n", None, 3])),
    "no rank": (helper.make_node("Relu", ["x"], ["y"]), info("x", [None, None]), info("y", None)),
    "scalar": (helper.make_node("Relu", ["x"], ["y"]), info("x", []), info("y", [])),
}


@pytest.mark.parametrize("what", TYPES)
def test_types_and_shapes_are_onnxruntime_s(what: str, shared_runtime: aspen_mp.Runtime) -> None:
    node, given, result = TYPES[what]
    ours, theirs, _ = pair(made([node], [given], [result]), shared_runtime)
    if what == "optional":  # whose shape onnxruntime shows, and we do not
        assert [(a.name, a.type) for a in ours.get_inputs()] == [(a.name, a.type) for a in theirs.get_inputs()]
    else:
        assert args(ours.get_inputs()) == args(theirs.get_inputs())
    if what == "no rank":  # onnxruntime shows its own names for what nobody named
        assert ours.get_outputs()[0].shape == [None, None]
    else:
        assert args(ours.get_outputs()) == args(theirs.get_outputs())
    assert len(ours.get_input_memory_infos()) == len(theirs.get_input_memory_infos())
    ours.close()


@pytest.mark.parametrize("kind", [k for k in TensorProto.DataType.values() if 1 <= k <= 18 and k not in {14, 15}])
def test_words_of_element_types(kind: int, shared_runtime: aspen_mp.Runtime) -> None:
    model = made([helper.make_node("Identity", ["x"], ["y"])], [info("x", [2], kind)], [info("y", [2], kind)])
    model.opset_import[0].version = 19
    model.ir_version = 9
    ours, theirs, _ = pair(model, shared_runtime)
    assert args(ours.get_inputs()) == args(theirs.get_inputs())
    ours.close()


def test_optional_inputs_may_be_left_out(shared_runtime: aspen_mp.Runtime) -> None:
    node, given, _ = TYPES["optional"]
    model = made([helper.make_node("OptionalHasElement", ["x"], ["y"])], [given], [info("y", [], TensorProto.BOOL)])
    model.opset_import[0].version = 18
    ours, theirs, _ = pair(model, shared_runtime)
    for feeds in ({"x": np.ones(2, np.float32)}, {"x": None}, {}):
        assert ours.run(None, feeds)[0].tolist() == theirs.run(None, feeds)[0].tolist()
    ours.close()
    assert node.op_type == "OptionalGetElement"


@pytest.mark.parametrize(
    "texts",
    [
        np.array(["a", "bc"]),
        np.array(["Olá", "你好"], object),
        np.array([b"this", b"is"], "S5"),
        np.array([b"must", b"size"], np.void),
        np.array([b"a\0b\0", b"\0\0\0\0"], np.void),
        ["a", "b"],
        np.array([1.5, "b"], object),
    ],
)
def test_texts(texts: Any, shared_runtime: aspen_mp.Runtime) -> None:
    model = made([helper.make_node("Identity", ["x"], ["y"])], [info("x", [2], TensorProto.STRING)], [info("y", [2], TensorProto.STRING)])
    ours, theirs, _ = pair(model, shared_runtime)
    assert ours.run(None, {"x": texts})[0].tolist() == theirs.run(None, {"x": texts})[0].tolist()
    ours.close()


# ---- options that change the model


def test_free_dimensions(shared_runtime: aspen_mp.Runtime) -> None:
    model = made([helper.make_node("Relu", ["x"], ["y"])], [info("x", ["n", "m", 5])], [info("y", ["n", "m", 5])])
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"

    def by_name(module: Any, options: Any) -> None:
        options.add_free_dimension_override_by_name("n", 2)
        options.add_free_dimension_override_by_name("m", 3)

    def by_denotation(module: Any, options: Any) -> None:
        options.add_free_dimension_override_by_denotation("DATA_BATCH", 4)

    for prepare, shape in ((by_name, [2, 3, 5]), (by_denotation, [4, "m", 5])):
        ours, theirs, _ = pair(model, shared_runtime, prepare)
        assert ours.get_inputs()[0].shape == theirs.get_inputs()[0].shape == shape
        ours.close()


def test_initializers_from_outside(scaled: onnx.ModelProto, shared_runtime: aspen_mp.Runtime) -> None:
    x, w = np.ones((1, 3), np.float32), np.array([4, 5, 6], np.float32)
    outside = onnx.ModelProto()
    outside.CopyFrom(scaled)
    tensor = outside.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "nowhere.bin"), ("offset", "4"), ("length", "12")):
        tensor.external_data.add(key=key, value=value)

    def instead(module: Any, options: Any) -> Any:
        value = module.OrtValue.ortvalue_from_numpy(w)
        options.add_initializer("w", value)
        return value

    def external(module: Any, options: Any) -> Any:
        value = module.OrtValue.ortvalue_from_numpy(w)
        options.add_external_initializers(["w"], [value])
        return value

    def files(module: Any, options: Any) -> Any:
        data = b"0000" + w.tobytes()
        options.add_external_initializers_from_files_in_memory(["nowhere.bin"], [data], [len(data)])
        return data

    for model, prepare in ((scaled, instead), (outside, external), (outside, files)):
        ours, theirs, _ = pair(model, shared_runtime, prepare)
        assert ours.run(None, {"x": x})[0].tolist() == theirs.run(None, {"x": x})[0].tolist() == [[4, 5, 6]]
        ours.close()
    options = compat.SessionOptions()
    options.add_external_initializers(["v"], [compat.OrtValue.ortvalue_from_numpy(w)])
    with pytest.raises(errors.RequestError, match="no initializer 'v'"):
        compat.InferenceSession(scaled, options, runtime=shared_runtime)
    options = compat.SessionOptions()
    options.add_initializer("w", compat.OrtValue.ortvalue_from_numpy(w[:2]))
    with pytest.raises(errors.RequestError, match="'w'"):
        compat.InferenceSession(scaled, options, runtime=shared_runtime)


def test_options_in_the_model(
    scaled: onnx.ModelProto, shared_runtime: aspen_mp.Runtime, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = onnx.ModelProto()
    model.CopyFrom(scaled)
    helper.set_model_props(model, {"ort_config": json.dumps({"session_options": {"inter_op_num_threads": 5, "execution_mode": 1}})})
    data = str(tmp_path / "m.onnx")
    onnx.save(model, data)
    for asked, threads in ((1, 5), (0, 0)):
        with compat.InferenceSession(data, read_config_from_model=asked, runtime=shared_runtime) as session:
            assert session.get_session_options().inter_op_num_threads == threads
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    ours, theirs = (module.InferenceSession(data, **more) for module, more in ((compat, {"runtime": shared_runtime}), (onnxruntime, {})))
    for one in (ours, theirs):
        assert one.get_session_options().inter_op_num_threads == 5
        assert one.get_session_options().execution_mode == 1
    ours.close()
    helper.set_model_props(model, {"ort_config": "nonsense"})
    with pytest.raises(errors.RequestError, match="ort_config"):
        compat.InferenceSession(model, runtime=shared_runtime)


def test_seeds(shared_runtime: aspen_mp.Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeds, "_seed", None)
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"]), helper.make_node("RandomUniform", [], ["z"], shape=[4])]
    model = made(nodes, [info("x", [4])], [info("y", [4]), info("z", [4])])
    feeds = {"x": np.zeros(4, np.float32)}
    drawn = []
    for seed in (1, 1, 2):
        compat.set_seed(seed)
        with compat.InferenceSession(model, runtime=shared_runtime) as session:
            drawn.append(np.stack(session.run(None, feeds)))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).all()
    assert len(np.unique(drawn[0])) == 8


# ---- bindings


def test_bindings(session: Any, scaled: onnx.ModelProto) -> None:
    theirs = onnxruntime.InferenceSession(scaled.SerializeToString())
    x, target = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    want = [[1, 2, 3], [1, 2, 3]]
    for one, module in ((session, compat), (theirs, onnxruntime)):
        binding = one.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        one.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].tolist() == binding.get_outputs()[0].numpy().tolist() == want
        binding.bind_input("x", "cpu", 0, np.float32, [2, 3], x.ctypes.data)
        target[...] = 0
        binding.bind_output("y", "cpu", 0, np.float32, [2, 3], target.ctypes.data)
        one.run_with_iobinding(binding)
        assert target.tolist() == want
        value = module.OrtValue.ortvalue_from_shape_and_type([2, 3], np.float32)
        binding.bind_ortvalue_input("x", module.OrtValue.ortvalue_from_numpy(2 * x))
        binding.bind_ortvalue_output("y", value)
        one.run_with_iobinding(binding)
        assert value.numpy().tolist() == [[2, 4, 6]] * 2
        assert [v.numpy().tolist() for v in one.run_with_ort_values(["y"], {"x": value})] == [[[2, 8, 18]] * 2]
        assert one.run(None, {"x": value})[0].tolist() == [[2, 8, 18]] * 2
        for call, given in ((binding.bind_cpu_input, x), (binding.bind_ortvalue_input, value)):
            with pytest.raises(Exception, match=r"nothing|Unable|Failed"):
                call("nothing", given)
        with pytest.raises((TypeError, RuntimeError)):
            binding.bind_cpu_input("x", [1, 2])
    other = session.io_binding()
    with pytest.raises((ValueError, TypeError)):
        theirs.run_with_iobinding(other)


def test_bound_values_are_not_copied(shared_runtime: aspen_mp.Runtime) -> None:
    """A loop of a decoder's kind: what one run gives is what the next one reads."""
    n = 1 << 19
    model = made(
        [helper.make_node("Add", ["x", "one"], ["y"])],
        [info("x", [n])],
        [info("y", [n])],
        [numpy_helper.from_array(np.ones(1, np.float32), "one")],
    )
    with compat.InferenceSession(model, runtime=shared_runtime) as session:
        first = compat.OrtValue.ortvalue_from_shape_and_type([n], np.float32)
        second = compat.OrtValue.ortvalue_from_shape_and_type([n], np.float32)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", first)
        binding.bind_ortvalue_output("y", second)
        session.run_with_iobinding(binding)
        assert session._model.transfers.in_place_bytes >= 4 * n
        assert session._model.transfers.copied_bytes == 0
        address = second.data_ptr()
        assert (second.numpy() == 1).all()
        session.run_with_iobinding(binding)
        assert second.data_ptr() == address, "whoever has asked for the address finds the result there"


def test_vectors_and_the_lower_layer(session: Any) -> None:
    from aspen_mp.compat.onnxruntime.values.ort_value import OrtValueVector

    value = compat.OrtValue.ortvalue_from_numpy(np.ones((1, 3), np.float32))
    found = session._sess.run_with_ort_values({"x": value._get_c_value()}, ["y"], None)
    assert isinstance(found, OrtValueVector)
    assert found[0].numpy().tolist() == [[1, 2, 3]]
    fetches = OrtValueVector()
    session.run_with_ortvaluevector(None, ["x"], [value], ["y"], fetches, None)
    assert [v.data_type() for v in fetches] == ["tensor(float)"]


# ---- errors


def test_errors_are_of_both_kinds(session: Any, scaled: onnx.ModelProto, tmp_path: Path) -> None:
    x = np.ones((1, 3), np.float32)
    for feeds in ({"x": x[0]}, {"x": x.astype(np.float64)}, {"x": x[:, :2]}, {"x": x, "z": x}):
        with pytest.raises(ort_errors.InvalidArgument) as raised:
            session.run(None, feeds)
        assert isinstance(raised.value, errors.RequestError)
    with pytest.raises(ValueError, match=r"Required inputs \(\['x'\]\) are missing from input feed \(\['z'\]\)"):
        session.run(None, {"z": x})
    with pytest.raises(ort_errors.InvalidArgument, match="output 'q'"):
        session.run(["q"], {"x": x})
    options = compat.RunOptions()
    options.terminate = True
    with pytest.raises(ort_errors.Fail):
        session.run(None, {"x": x}, options)
    wrong = made([helper.make_node("Nonsense", ["x"], ["y"])], [info("x", [2])], [info("y", [2])])
    for source, kind in (
        (b"nonsense", ort_errors.InvalidProtobuf),
        (wrong, ort_errors.Fail),
        (str(tmp_path / "none.onnx"), ort_errors.NoSuchFile),
    ):
        with pytest.raises(kind) as failed:
            compat.InferenceSession(source, runtime=session._runtime)
        assert isinstance(failed.value, errors.AspenError)
        assert isinstance(failed.value, ort_errors.Fail)
    for module in (compat, onnxruntime):
        for made_ in (module.SessionOptions().get_session_config_entry, module.RunOptions().get_run_config_entry):
            with pytest.raises(RuntimeError, match="does not have configuration with key: nothing"):
                made_("nothing")


def test_a_failing_operator(shared_runtime: aspen_mp.Runtime) -> None:
    model = made(
        [helper.make_node("Reshape", ["x", "s"], ["y"])], [info("x", [None]), info("s", [2], TensorProto.INT64)], [info("y", [None, None])]
    )
    feeds = {"x": np.zeros(5, np.float32), "s": np.array([2, 3])}
    ours, theirs, _ = pair(model, shared_runtime)
    with pytest.raises(Exception, match=r"(?i)reshape"):
        theirs.run(None, feeds)
    with pytest.raises(ort_errors.Fail, match=r"(?i)reshape"):
        ours.run(None, feeds)
    ours.close()


# ---- profiles and assignment


def test_profiles(scaled: onnx.ModelProto, shared_runtime: aspen_mp.Runtime, tmp_path: Path) -> None:
    options = compat.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    before = time.monotonic_ns()
    with compat.InferenceSession(scaled, options, runtime=shared_runtime) as session:
        assert before <= session.get_profiling_start_time_ns() <= time.monotonic_ns()
        session.run(None, {"x": np.ones((1, 3), np.float32)})
        with pytest.raises(errors.RequestError, match="end_profiling"):
            compat.InferenceSession(scaled, options, runtime=shared_runtime)
        path = session.end_profiling()
        assert session.end_profiling() == path
    events = json.loads(Path(path).read_text())
    assert all({"pid", "tid", "ts", "dur", "ph", "name", "args"} <= event.keys() for event in events)
    assert any("Mul" in event["name"] or "y" in event["name"] for event in events)
    forgotten = compat.InferenceSession(scaled, options, runtime=shared_runtime)
    forgotten.close()
    assert len(os.listdir(tmp_path)) == 2
    with compat.InferenceSession(scaled, runtime=shared_runtime) as session:
        assert (session.end_profiling(), session.get_profiling_start_time_ns()) == ("", 0)


def test_which_provider_runs_what(shared_runtime: aspen_mp.Runtime, scaled: onnx.ModelProto) -> None:
    scaled.graph.node[0].name = "scale"

    def asked(module: Any, options: Any) -> None:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")

    ours, theirs, _ = pair(scaled, shared_runtime, asked)
    found = [
        [(p.ep_name, n.domain, n.op_type, n.name) for p in s.get_provider_graph_assignment_info() for n in p.get_nodes()]
        for s in (ours, theirs)
    ]
    assert found[0] == found[1] == [("CPUExecutionProvider", "", "Mul", "scale")]
    ours.close()
    ours, theirs, _ = pair(scaled, shared_runtime)
    for one in (ours, theirs):
        with pytest.raises(Exception, match=r"session\.record_ep_graph_assignment_info"):
            one.get_provider_graph_assignment_info()
    ours.close()


# ---- the optimized model


def _some_model(rng: random.Random) -> onnx.ModelProto:
    """A function of two operators, constants that depend on each other, identities, a branch."""
    body = [helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node(rng.choice(["Relu", "Neg", "Abs"]), ["c"], ["d"])]
    function = helper.make_function("mine", "Both", ["a", "b"], ["d"], body, [helper.make_opsetid("", 17)])
    nodes, known = [], ["x"]
    constants = ["w"]
    for k in range(rng.randint(4, 10)):
        name = f"v{k}"
        kind = rng.choice(["constant", "folded", "identity", "function", "plain", "branch"])
        if kind == "constant":
            value = numpy_helper.from_array(np.float32([rng.uniform(-1, 1) for _ in range(3)]))
            nodes.append(helper.make_node("Constant", [], [name], value=value))
            constants.append(name)
        elif kind == "folded":
            nodes.append(helper.make_node(rng.choice(["Add", "Mul", "Sub"]), [rng.choice(constants), rng.choice(constants)], [name]))
            constants.append(name)
        elif kind == "identity":
            nodes.append(helper.make_node("Identity", [rng.choice(known + constants)], [name]))
            known.append(name)
        elif kind == "function":
            nodes.append(helper.make_node("Both", [rng.choice(known), rng.choice(constants)], [name], domain="mine"))
            known.append(name)
        elif kind == "branch":
            inner = [
                helper.make_graph(
                    [helper.make_node(op, [rng.choice(known), rng.choice(constants)], [f"{name}_{op}"])],
                    op,
                    [],
                    [info(f"{name}_{op}", None)],
                )
                for op in ("Add", "Sub")
            ]
            nodes.append(helper.make_node("If", ["flag"], [name], then_branch=inner[0], else_branch=inner[1]))
            known.append(name)
        else:
            nodes.append(helper.make_node("Mul", [rng.choice(known), rng.choice(known + constants)], [name]))
            known.append(name)
    nodes.append(helper.make_node("Add", [known[-1], "x"], ["y"]))
    w = numpy_helper.from_array(np.float32([1, -2, 3]), "w")
    model = made(nodes, [info("x", ["n", 3]), info("flag", [], TensorProto.BOOL)], [info("y", ["n", 3])], [w])
    model.functions.append(function)
    return model


@pytest.mark.parametrize("seed", range(30))
def test_optimized_models_have_the_same_results(seed: int, tmp_path: Path) -> None:
    """Functions are inlined, constants folded, and onnxruntime gives the same results of what was written as of the model itself."""
    from aspen_mp.compat.onnxruntime.models import folding

    rng = random.Random(seed)
    model = _some_model(rng)
    options = compat.SessionOptions()
    folding.write(model, options, tmp_path / "o.onnx")
    written = onnx.load(tmp_path / "o.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert not written.functions
    ops = {node.op_type for node in written.graph.node}
    assert not ops & {"Constant", "Both"}
    constants = {t.name for t in written.graph.initializer}
    assert all(any(name not in constants for name in node.input) for node in written.graph.node)
    assert "Identity" not in ops or any(n.op_type == "Identity" and n.output[0] == "y" for n in written.graph.node)
    feeds = {"x": np.random.default_rng(seed).standard_normal((2, 3), np.float32), "flag": np.array(rng.random() < 0.5)}
    want, got = (onnxruntime.InferenceSession(m.SerializeToString()).run(None, feeds)[0] for m in (model, written))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=f"seed {seed}")


def test_optimized_models_as_files(scaled: onnx.ModelProto, shared_runtime: aspen_mp.Runtime, tmp_path: Path) -> None:
    x = np.ones((1, 3), np.float32)

    def external(module: Any, options: Any) -> None:
        options.optimized_model_filepath = str(tmp_path / f"{module.__name__}.onnx")
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", f"{module.__name__}.bin")
        options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "10")

    ours, _, _ = pair(scaled, shared_runtime, external)
    ours.close()
    assert sum(path.suffix == ".bin" and path.stat().st_size >= 12 for path in tmp_path.iterdir()) == 2
    for path in tmp_path.glob("*.onnx"):
        with compat.InferenceSession(path, runtime=shared_runtime) as again:
            assert again.run(None, {"x": x})[0].tolist() == [[1, 2, 3]]
        assert onnxruntime.InferenceSession(str(path)).run(None, {"x": x})[0].tolist() == [[1, 2, 3]]
    options = compat.SessionOptions(optimized_model_filepath=str(tmp_path / "m.ort"))
    with pytest.raises(errors.UnsupportedModelError, match=r"ends in \.onnx"):
        compat.InferenceSession(scaled, options, runtime=shared_runtime)
    with pytest.raises(FileNotFoundError):
        compat.InferenceSession(
            scaled, compat.SessionOptions(optimized_model_filepath=str(tmp_path / "no" / "m.onnx")), runtime=shared_runtime
        )


def test_models_are_compiled_to_models(scaled: onnx.ModelProto, tmp_path: Path) -> None:
    for module in (compat, onnxruntime):
        compiler = module.ModelCompiler(module.SessionOptions(), scaled.SerializeToString())
        path = tmp_path / f"{module.__name__}.onnx"
        compiler.compile_to_file(str(path))
        for source in (str(path), compiler.compile_to_bytes()):
            assert onnxruntime.InferenceSession(source).run(None, {"x": np.ones((1, 3), np.float32)})[0].tolist() == [[1, 2, 3]]
        strict = module.ModelCompiler(
            module.SessionOptions(), scaled.SerializeToString(), flags=module.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS
        )
        with pytest.raises(Exception, match="exists already"):
            strict.compile_to_file(str(path))
    pieces: list[bytes] = []
    compat.ModelCompiler(compat.SessionOptions(), scaled.SerializeToString()).compile_to_stream(pieces.append)
    assert onnx.load_from_string(b"".join(pieces)).graph.node[0].op_type == "Mul"


def test_bad_models_where_options_change_them(shared_runtime: aspen_mp.Runtime, tmp_path: Path, scaled: onnx.ModelProto) -> None:
    options = compat.SessionOptions()
    options.add_free_dimension_override_by_name("n", 2)
    outside = onnx.ModelProto()
    outside.CopyFrom(scaled)
    outside.graph.initializer[0].ClearField("raw_data")
    outside.graph.initializer[0].data_location = TensorProto.EXTERNAL
    outside.graph.initializer[0].external_data.add(key="location", value="nowhere.bin")
    (tmp_path / "m.onnx").write_bytes(outside.SerializeToString())
    for source, kind in ((b"nonsense", errors.ModelParseError), (tmp_path / "m.onnx", errors.ExternalDataError)):
        with pytest.raises(kind) as raised:
            compat.InferenceSession(source, options, runtime=shared_runtime)
        assert isinstance(raised.value, ort_errors.Fail)


def test_sessions_import_no_onnx_unless_they_need_it(scaled: onnx.ModelProto, shared_runtime: aspen_mp.Runtime, tmp_path: Path) -> None:
    onnx.save(scaled, tmp_path / "m.onnx")
    program = (
        "import sys, aspen_mp.compat.onnxruntime as ort, numpy as np\n"
        "s = ort.InferenceSession(sys.argv[1], ort.SessionOptions(intra_op_num_threads=1), providers=['CPUExecutionProvider'])\n"
        "s.run(None, {'x': np.ones((1, 3), np.float32)})\n"
        "s.close()\n"
        "print('onnx' in sys.modules)\n"
    )
    found = subprocess.run([sys.executable, "-c", program, tmp_path / "m.onnx"], capture_output=True, text=True, timeout=300, check=True)
    assert found.stdout.strip() == "False", found
