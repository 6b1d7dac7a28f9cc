"""Global thread pools and sessions that use them, beside onnxruntime's: a process makes the pools once, and its sessions must say so."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from importlib import import_module
from onnx import TensorProto, helper

module = import_module(sys.argv[1])
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", ends[:1], ends[1:])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()

def outcome(call):
    try:
        call()
    except Exception as error:
        fail = type(error).__name__ == "Fail"
        print("Fail" if fail else "RuntimeError" if isinstance(error, RuntimeError) else repr(error), file=sys.stderr)
    else:
        print("works", file=sys.stderr)

def session(own):
    options = module.SessionOptions()
    options.use_per_session_threads = own
    module.InferenceSession(model, options)

for call in [lambda: session(True), lambda: session(False), lambda: module.set_global_thread_pool_sizes(2, 1)] * 2:
    outcome(call)
"""
WANTED = ["works", "RuntimeError", "works", "RuntimeError", "works", "Fail"]


@pytest.mark.parametrize("module", ["aspen_mp.compat.onnxruntime", "onnxruntime"])
def test_sessions_say_whose_threads_they_use(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, module], check=True, capture_output=True, text=True, timeout=120)
    assert done.stderr.split() == WANTED
