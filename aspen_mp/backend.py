"""The backend interface of the onnx package: ``aspen_mp.backend.run_model(model, inputs)``, and everything that expects such a module.

All models prepared in a process run on one shared runtime, which the first of them starts.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TypeProto, helper
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep, namedtupledict

from aspen_mp.compat import default_runtime
from aspen_mp.errors import RequestError


class PreparedModel(BackendRep):
    """A model that is loaded and can be run again and again; unloaded when it is garbage collected or by `close`."""

    def __init__(self, model: onnx.ModelProto, runtime: Any, **options: Any) -> None:
        self._model = runtime.load(model, **options)
        self._names = [o.name for o in self._model.outputs]
        self._finalizer = weakref.finalize(self, _unload, runtime, self._model)
        self._tuple = namedtupledict("Outputs", self._names)

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Runs once. `inputs`: a list or tuple in the model's order, a dict by name, or one array. Returns a tuple that also has names.

        `RequestError` for inputs that do not fit. `timeout` in seconds may be given.
        """
        names = [i.name for i in self._model.inputs]
        if isinstance(inputs, Mapping):
            feeds = dict(inputs)
        else:
            given = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) > len(names):
                raise RequestError(f"{len(given)} inputs were given, but the model has {len(names)}: {', '.join(names)}")
            feeds = dict(zip(names, given, strict=False))
        results = self._model.run(feeds, **kwargs)
        return self._tuple(*(results[name] for name in self._names))

    def close(self) -> None:
        """Unloads the model."""
        self._finalizer()


def _unload(runtime: Any, model: Any) -> None:
    if not runtime.closed:
        model.unload()


class Backend(OnnxBackend):
    """`onnx.backend.base.Backend` on an aspen-mp runtime."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PreparedModel:
        """Checks and loads a model. `runtime`: another than the shared one; other arguments go to `Runtime.load`."""
        if not cls.supports_device(device):
            raise RequestError(f"aspen-mp runs on the CPU, not on {device}. Give the device 'CPU'")
        runtime = kwargs.pop("runtime", None) or default_runtime.runtime()
        names = ("name", "instances", "precision", "winograd", "accuracy", "stacks", "objective", "planning", "samples", "within")
        known = {key: kwargs[key] for key in names if key in kwargs}
        return PreparedModel(model, runtime, **known)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """`prepare` and one run."""
        prepared = cls.prepare(model, device, **kwargs)
        try:
            return prepared.run(inputs)
        finally:
            prepared.close()

    @classmethod
    def run_node(
        cls,
        node: NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """One operator on `inputs` (a sequence in the node's order, missing optional ones left out, or a dict by name).

        `opset_version`: of the node's domain, the newest that the onnx package knows if it is not given.
        """
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        names = [name for name in node.input if name]
        feeds = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, inputs, strict=False))
        infos = [helper.make_value_info(name, _type_of(value)) for name, value in feeds.items()]
        outputs = []
        for i, name in enumerate(n for n in node.output if n):
            info = outputs_info[i] if outputs_info is not None and i < len(outputs_info) else None
            kind = (
                helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(info[0])), info[1])
                if info is not None
                else TypeProto()
            )
            outputs.append(helper.make_value_info(name, kind))
        version = kwargs.get("opset_version") or onnx.defs.onnx_opset_version()
        opsets = [helper.make_opsetid("" if node.domain in ("", "ai.onnx") else node.domain, _version(node.domain, version))]
        model = helper.make_model(helper.make_graph([node], "node", infos, outputs), opset_imports=opsets, ir_version=onnx.IR_VERSION)
        if outputs_info is None:
            inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
            model.graph.output[0].CopyFrom(inferred.graph.output[0])
            for declared, found in zip(model.graph.output, inferred.graph.output, strict=True):
                declared.CopyFrom(found)
        return cls.run_model(model, feeds, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device.split(":", maxsplit=1)[0].upper() == "CPU"


def _version(domain: str, version: int) -> int:
    if domain in ("", "ai.onnx"):
        return version
    return max((s.since_version for s in onnx.defs.get_all_schemas_with_history() if s.domain == domain), default=1)


def _type_of(value: Any) -> TypeProto:
    """The ONNX type of a Python value: arrays are tensors of their shape, lists sequences of their first item's type."""
    if isinstance(value, (list, tuple)) and (not value or not np.isscalar(value[0])):
        return helper.make_sequence_type_proto(_type_of(value[0]) if value else helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, None))
    array = np.asarray(value)
    kind = onnx.TensorProto.STRING if array.dtype.kind in "OUST" else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_type_proto(kind, array.shape)


is_compatible = Backend.is_compatible
prepare = Backend.prepare
run_model = Backend.run_model
run_node = Backend.run_node
supports_device = Backend.supports_device
