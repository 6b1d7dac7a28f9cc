"""Other ways to write a model that mean the same: changes as exporters, converters and people make them, drawn at random.

Each takes a generator and a model, changes the model in place and says whether there was anything to change. What onnxruntime reads is in
`COMMON`; `RARE` is what it refuses although it has one meaning alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, defs, helper, numpy_helper

Change = Callable[[np.random.Generator, ModelProto], bool]
NEWEST = 24
"""Of ONNX's own opsets the one up to which functions are given others: onnxruntime knows it."""
NEWEST_ML = max(schema.since_version for schema in defs.get_all_schemas_with_history() if schema.domain == "ai.onnx.ml")


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def nested(graph: GraphProto) -> Iterator[GraphProto]:
    """Sub-graphs at any depth."""
    for node in graph.node:
        for inner in subgraphs(node):
            yield inner
            yield from nested(inner)


def nodes_of(graph: GraphProto) -> Iterator[NodeProto]:
    for one in (graph, *nested(graph)):
        yield from one.node


def version_of(model: ModelProto, domain: str = "") -> int:
    return next((o.version for o in model.opset_import if o.domain in {domain, domain or "ai.onnx"}), 0)


def _replace(field: Any, items: list[Any]) -> None:
    """Messages that may be the field's own."""
    copies = [type(item)() for item in items]
    for copy, item in zip(copies, items, strict=True):
        copy.CopyFrom(item)
    del field[:]
    field.extend(copies)


# ------------------------------------------------------------------------------------------------------------- order, names


def shuffle(rng: np.random.Generator, model: ModelProto) -> bool:
    nodes = list(model.graph.node)
    _replace(model.graph.node, [nodes[k] for k in rng.permutation(len(nodes))])
    return len(nodes) > 1


def reverse(rng: np.random.Generator, model: ModelProto) -> bool:
    _replace(model.graph.node, list(model.graph.node)[::-1])
    return len(model.graph.node) > 1


def shuffle_inside(rng: np.random.Generator, model: ModelProto) -> bool:
    lists = [graph.node for graph in nested(model.graph)] + [function.node for function in model.functions]
    for nodes in lists:
        _replace(nodes, [nodes[k] for k in rng.permutation(len(nodes))])
    return any(len(nodes) > 1 for nodes in lists)


def drop_names(rng: np.random.Generator, model: ModelProto) -> bool:
    """Of nodes and of the graph."""
    for node in nodes_of(model.graph):
        node.name = ""
    model.graph.ClearField("name")
    return True


def nameless_subgraphs(rng: np.random.Generator, model: ModelProto) -> bool:
    for graph in nested(model.graph):
        graph.ClearField("name")
    return any(True for _ in nested(model.graph))


def nameless_result(rng: np.random.Generator, model: ModelProto) -> bool:
    """A node whose only result has no name, so that nothing reads it."""
    if not model.graph.input:
        return False
    model.graph.node.append(helper.make_node("Identity", [model.graph.input[0].name], [""]))
    return True


# ------------------------------------------------------------------------------------------------------------------ domains


def long_domain(rng: np.random.Generator, model: ModelProto) -> bool:
    """ONNX's domain by its other name, at some nodes and in the import, or in one of both."""
    which = int(rng.integers(1, 4))
    if which & 1:
        for entry in model.opset_import:
            entry.domain = entry.domain or "ai.onnx"
    if which & 2:
        for node in model.graph.node:
            if node.domain == "" and rng.random() < 0.7:
                node.domain = "ai.onnx"
    return True


def long_domain_everywhere(rng: np.random.Generator, model: ModelProto) -> bool:
    """Also in sub-graphs and functions."""
    for node in nodes_of(model.graph):
        node.domain = node.domain or "ai.onnx"
    for function in model.functions:
        for entry in function.opset_import:
            entry.domain = entry.domain or "ai.onnx"
        for node in function.node:
            node.domain = node.domain or "ai.onnx"
    return True


def import_twice(rng: np.random.Generator, model: ModelProto) -> bool:
    model.opset_import.append(helper.make_opsetid("ai.onnx" if rng.random() < 0.5 else "", version_of(model)))
    return True


def drop_imports(rng: np.random.Generator, model: ModelProto) -> bool:
    """Of domains whose newest version the model has, which is what a missing import stands for."""
    kept = [o for o in model.opset_import if (o.domain, o.version) not in {("com.microsoft", 1), ("ai.onnx.ml", NEWEST_ML)}]
    changed = len(kept) < len(model.opset_import)
    _replace(model.opset_import, kept)
    return changed


def import_what_is_not_used(rng: np.random.Generator, model: ModelProto) -> bool:
    model.opset_import.append(helper.make_opsetid("com.example.unused", 3))
    return True


# ---------------------------------------------------------------------------------------------------------------- constants


def _numbers(tensor: TensorProto) -> bool:
    return tensor.data_type in {
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.INT64,
        TensorProto.INT32,
        TensorProto.INT8,
        TensorProto.UINT8,
    }


def sparse_of(rng: np.random.Generator, tensor: TensorProto, ordered: bool = False) -> onnx.SparseTensorProto:
    """A tensor's elements that are not zero (and sometimes one that is), in any order, with indices of any integer type."""
    array = numpy_helper.to_array(tensor)
    flat = array.reshape(-1)
    places = np.flatnonzero((flat != 0) | (rng.random(flat.size) < 0.1) | np.signbit(flat.astype(np.float64)))
    places = places if ordered else rng.permutation(places)
    values = numpy_helper.from_array(np.ascontiguousarray(flat[places]), tensor.name)
    kinds = [np.int64] if ordered else [np.int64, np.int32] + [np.int16] * (flat.size < 2**15) + [np.int8] * (flat.size < 2**7)
    kind = kinds[int(rng.integers(len(kinds)))]
    indices = places.astype(kind)
    if array.ndim and rng.random() < 0.5:
        indices = np.stack(np.unravel_index(places, array.shape), -1).astype(kind).reshape(len(places), array.ndim)
    return helper.make_sparse_tensor(values, numpy_helper.from_array(indices, ""), array.shape)


def sparse_initializers(rng: np.random.Generator, model: ModelProto) -> bool:
    declared = {value.name for value in model.graph.input}
    chosen = [t for t in model.graph.initializer if _numbers(t) and t.name not in declared and rng.random() < 0.7]
    model.graph.sparse_initializer.extend(sparse_of(rng, t) for t in chosen)
    names = {t.name for t in chosen}
    _replace(model.graph.initializer, [t for t in model.graph.initializer if t.name not in names])
    return bool(chosen)


def sparse_constants(rng: np.random.Generator, model: ModelProto) -> bool:
    return _sparse_constants(rng, model, model.graph.node)


def sparse_inside(rng: np.random.Generator, model: ModelProto) -> bool:
    return _sparse_constants(rng, model, [node for graph in nested(model.graph) for node in graph.node])


def _sparse_constants(rng: np.random.Generator, model: ModelProto, nodes: Iterable[NodeProto]) -> bool:
    found = False
    for node in nodes:
        if node.op_type == "Constant" and version_of(model) >= 11 and node.attribute[0].name == "value" and _numbers(node.attribute[0].t):
            if not node.attribute[0].t.dims:
                continue
            attribute = helper.make_attribute("sparse_value", sparse_of(rng, node.attribute[0].t))
            _replace(node.attribute, [attribute])
            found = True
    return found


def constants_as_nodes(rng: np.random.Generator, model: ModelProto) -> bool:
    """Initializers as Constant nodes behind everything."""
    declared = {value.name for value in model.graph.input}
    chosen = [t for t in model.graph.initializer if t.name not in declared and t.data_type != TensorProto.BFLOAT16]
    model.graph.node.extend(helper.make_node("Constant", [], [t.name], value=t) for t in chosen)
    names = {t.name for t in chosen}
    _replace(model.graph.initializer, [t for t in model.graph.initializer if t.name not in names])
    return bool(chosen)


def initializers_twice(rng: np.random.Generator, model: ModelProto) -> bool:
    extra = list(model.graph.initializer)
    _replace(model.graph.initializer, extra + extra[:1])
    return bool(extra)


def nameless_initializer(rng: np.random.Generator, model: ModelProto) -> bool:
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), ""))
    return True


def old_ir(rng: np.random.Generator, model: ModelProto) -> bool:
    """IR version 3, in which every initializer should be an input: all, some or none of them are."""
    if model.functions or not model.graph.initializer or any(True for _ in nested(model.graph)):
        return False  # onnxruntime does not find what sub-graphs alone read in models of that time
    model.ir_version = 3
    declared = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in declared and tensor.name and rng.random() < 0.5:
            model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
            declared.add(tensor.name)
    return True


# ----------------------------------------------------------------------------------------------------------- types of values


def untyped_outputs(rng: np.random.Generator, model: ModelProto) -> bool:
    for output in model.graph.output:
        output.ClearField("type")
    return True


def untyped_elements(rng: np.random.Generator, model: ModelProto) -> bool:
    """Outputs that say that they are tensors, and not of what."""
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("elem_type")
    return True


def unranked_outputs(rng: np.random.Generator, model: ModelProto) -> bool:
    for output in model.graph.output:
        if output.type.HasField("tensor_type"):
            output.type.tensor_type.ClearField("shape")
    return True


def idle_knowledge(rng: np.random.Generator, model: ModelProto) -> bool:
    """Types of values that there are not, or no types of values that there are."""
    model.graph.value_info.append(helper.make_tensor_value_info("nobody", TensorProto.FLOAT, [3]))
    names = [name for node in model.graph.node for name in node.output if name]
    model.graph.value_info.append(ValueInfoProto(name=names[int(rng.integers(len(names)))]))
    return True


# ---------------------------------------------------------------------------------------------------------------- functions


def in_functions(rng: np.random.Generator, model: ModelProto) -> bool:
    """Some nodes as functions of the model, which import another opset of ONNX in which the operator is the same."""
    done = 0
    for node in model.graph.node:
        if node.domain or node.op_type == "Constant" or any(True for _ in subgraphs(node)) or rng.random() < 0.3:
            continue
        if node.op_type == "MeanVarianceNormalization":
            continue  # onnxruntime does not infer its body within another
        others = same_opsets(node.op_type, version_of(model))
        _wrap(model, node, f"F{len(model.functions)}", int(rng.choice(others)))
        done += 1
    if done:
        model.ir_version = max(model.ir_version, 8)
        if version_of(model, "local") == 0:
            model.opset_import.append(helper.make_opsetid("local", 1))
    return bool(done)


def same_opsets(op: str, version: int) -> list[int]:
    """The opsets in which an operator is as in this one."""
    try:
        since = defs.get_schema(op, version, "").since_version
    except defs.SchemaError:
        return [version]
    return [v for v in range(max(since, 8), max(NEWEST, version) + 1) if defs.get_schema(op, v, "").since_version == since] or [version]


def _wrap(model: ModelProto, node: NodeProto, name: str, version: int) -> None:
    inputs = list(dict.fromkeys(n for n in node.input if n))
    outputs = [n for n in node.output if n]
    names = {n: f"i{k}" for k, n in enumerate(inputs)} | {n: f"o{k}" for k, n in enumerate(outputs)}
    body = NodeProto()
    body.CopyFrom(node)
    body.input[:] = [names.get(n, "") for n in node.input]
    body.output[:] = [names.get(n, "") for n in node.output]
    function = helper.make_function(
        "local", name, [names[n] for n in inputs], [names[n] for n in outputs], [body], [helper.make_opsetid("", version)]
    )
    model.functions.append(function)
    node.CopyFrom(helper.make_node(name, inputs, outputs, node.name, domain="local"))


def in_branches(rng: np.random.Generator, model: ModelProto) -> bool:
    """A node in both branches of an If over a constant, or over an input, with a chain behind it."""
    candidates = [n for n in model.graph.node if n.op_type not in {"Constant", "If", "Loop", "Scan"} and len(n.output) == 1 and n.output[0]]
    if not candidates or version_of(model) < 16:  # Identity takes sequences from then on
        return False
    model.ir_version = max(model.ir_version, 8)
    node = candidates[int(rng.integers(len(candidates)))]
    branches = {}
    for kind in ("then_branch", "else_branch"):
        inner = NodeProto()
        inner.CopyFrom(node)
        inner.output[:] = [f"{kind}.0"]
        behind = helper.make_node("Identity", [f"{kind}.0"], [f"{kind}.1"])
        branches[kind] = helper.make_graph([inner, behind], kind, [], [ValueInfoProto(name=f"{kind}.1")])
    condition = f"condition.{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.array(bool(rng.integers(2))), condition))
    node.CopyFrom(helper.make_node("If", [condition], list(node.output), node.name, **branches))
    return True


def idle_function(rng: np.random.Generator, model: ModelProto) -> bool:
    """A function that nobody calls, and that could not be called."""
    if any(f.domain == "local" and f.name == "Idle" for f in model.functions):
        return False
    model.functions.append(
        helper.make_function("local", "Idle", ["a"], ["b"], [helper.make_node("Relu", ["nowhere"], ["b"])], [helper.make_opsetid("", 17)])
    )
    model.ir_version = max(model.ir_version, 8)
    return True


def functions_without_imports(rng: np.random.Generator, model: ModelProto) -> bool:
    """Functions that leave their opset to the model, where it is the same."""
    done = False
    for function in model.functions:
        if [o.version for o in function.opset_import if not o.domain] == [version_of(model)]:
            del function.opset_import[:]
            done = True
    return done


def functions_of_no_import(rng: np.random.Generator, model: ModelProto) -> bool:
    """The domain of the model's functions is not imported."""
    kept = [o for o in model.opset_import if o.domain != "local"]
    changed = len(kept) < len(model.opset_import)
    _replace(model.opset_import, kept)
    return changed


COMMON: dict[str, Change] = {
    change.__name__: change
    for change in (
        in_functions,
        in_branches,
        constants_as_nodes,
        shuffle,
        reverse,
        drop_names,
        long_domain,
        drop_imports,
        import_twice,
        import_what_is_not_used,
        sparse_initializers,
        sparse_constants,
        initializers_twice,
        old_ir,
        untyped_outputs,
        unranked_outputs,
        idle_knowledge,
        idle_function,
    )
}
RARE: dict[str, Change] = {
    change.__name__: change
    for change in (
        shuffle_inside,
        nameless_subgraphs,
        nameless_result,
        nameless_initializer,
        sparse_inside,
        long_domain_everywhere,
        untyped_elements,
        functions_without_imports,
        functions_of_no_import,
    )
}
"""In the order in which they are made."""
