"""Operators and options of operators that ONNX knows and nothing here can run: said when a model is opened, not at its first request."""

from __future__ import annotations

from typing import Final, Literal

from onnx import NodeProto

from aspen_mp.planner.frontends import contrib, legacy

Nested = Literal["", "branch", "body"]
"""Where a node is: in no sub-graph; in a branch of an If, and in nothing else that runs sub-graphs; in another one."""

UNRUNNABLE: Final = {
    ("ai.onnx.preview.training", "Gradient"): "export the model for inference",
}
"""Operators that have neither a kernel nor another implementation → what to do about it."""

PARAMETERS: Final = {
    "Affine": "ab",
    "Elu": "a",
    "HardSigmoid": "ab",
    "LeakyRelu": "a",
    "Relu": "",
    "ScaledTanh": "ab",
    "Sigmoid": "",
    "Softplus": "",
    "Softsign": "",
    "Tanh": "",
    "ThresholdedRelu": "a",
}
"""Activations of recurrent layers that `workers/fallback/recurrent.py` has → which of alpha and beta they take. Models spell them in upper
and lower case as they please."""

_PARAMETERS = {name.lower(): letters for name, letters in PARAMETERS.items()}
_FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}  # of each direction
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


def why_not(node: NodeProto, domain: str, version: int, nested: Nested) -> str:
    """Why a node of this (normalised) domain and opset, maybe in a sub-graph, can never be run, and what to do; empty where it can."""
    if domain == "":
        return (_recurrent(node) if node.op_type in _FUNCTIONS else "") or legacy.why_not(node, version, bool(nested))
    if advice := UNRUNNABLE.get((domain, node.op_type)):
        return f"has no implementation here: {advice}"
    return contrib.why_not(node, nested == "body") if domain.split(".")[:2] == contrib.DOMAIN.split(".") else ""


def _recurrent(node: NodeProto) -> str:
    """Attributes are read by field, of whatever type they claim to be: ONNX's checker, which looks at that, comes later."""
    if any(a.ref_attr_name for a in node.attribute):
        return ""  # known where the function is called
    given = {a.name: a for a in node.attribute}
    direction = given["direction"].s.decode(errors="replace").lower() if "direction" in given else "forward"
    if direction not in _DIRECTIONS:
        return f"has the direction {direction!r}, not one of {', '.join(_DIRECTIONS)}"
    if "layout" in given and given["layout"].i not in {0, 1}:
        return f"has the layout {given['layout'].i}, not 0 or 1"
    names = [name.decode(errors="replace") for name in given["activations"].strings] if "activations" in given else []
    unknown = [name for name in names if name.lower() not in _PARAMETERS]
    if unknown:
        return f"has unknown activations {', '.join(map(repr, unknown))}. Use some of {', '.join(PARAMETERS)}"
    wanted = _FUNCTIONS[node.op_type] * _DIRECTIONS[direction]
    twice = node.op_type == "RNN" and wanted == 1 and len(names) == 2 and names[0].lower() == names[1].lower()  # ONNX's own default
    if names and len(names) != wanted and not twice:
        return f"has {len(names)} activations where {wanted} belong: name them for each direction"
    for letter, attribute in (("a", "activation_alpha"), ("b", "activation_beta")):
        takers = [name.lower() for name in names[:wanted] if letter in _PARAMETERS[name.lower()]]
        if "scaledtanh" in takers[len(given[attribute].floats) if attribute in given else 0 :]:
            return f"has an activation ScaledTanh, whose parameters have no defaults: give it its {attribute}"
    return ""
