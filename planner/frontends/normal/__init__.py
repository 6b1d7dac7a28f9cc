"""Brings a model to the one form that the checks and everything behind them know, before it is checked.

Files in the field spell the same model in many ways: nodes in another order, a domain by its long name, sparse constants. Each step is a
file of its own and changes how the model is written, never its results. A spelling with two meanings is refused as ModelInvalidError, which
names the node or tensor and the rule.

Afterwards these hold:
- ONNX's own domain is called ""; each scope (the model, each function) imports every domain that it uses, once;
- functions that nobody calls are gone, none calls itself, and no call gives more than its function takes;
- no constant is sparse; initializers have names, each once, and the type that an input of that name declares;
- inputs are those that a caller may give, and `ir_version` is the newest, because nothing depends on it any more;
- nodes stand behind their inputs, in sub-graphs and functions too; every name is defined once, and every name that is read is defined.
"""

from __future__ import annotations

import onnx
from onnx import ModelProto

from aspen_mp.planner.frontends.normal import calls, constants, domains, order, outputs
from aspen_mp.planner.frontends.tensors import Store
from aspen_mp.shm.errors import ModelInvalidError, UnsupportedModelError


def normalise(proto: ModelProto, store: Store) -> None:
    """Changes `proto`, whose constants are in `store`, to the form above. Raises ModelInvalidError, and UnsupportedModelError for an IR
    version of the future."""
    if proto.ir_version > onnx.IR_VERSION:
        raise UnsupportedModelError(
            f"IR version {proto.ir_version} is newer than {onnx.IR_VERSION}, the latest of onnx {onnx.__version__}. Install a newer one"
        )
    if proto.ir_version <= 0:
        raise ModelInvalidError("the model does not say its IR version (ir_version). Export it again")
    domains.rename(proto)
    calls.keep_used(proto)
    domains.complete(proto)
    constants.make_dense(proto, store)
    constants.settle(proto, store)
    proto.ir_version = onnx.IR_VERSION
    outputs.name(proto)
    order.sort(proto)
