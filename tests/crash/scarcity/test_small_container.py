"""A container of little memory: requests of ever new sizes are answered there, whatever plans and arenas of older ones hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import small_models
from process_tools import WATCHDOG_S, cgroup

LONG = os.environ.get("ASPEN_MP_TIER") == "long"
LIMIT = 512 << 20
SIZES = [(320 + 2 * k, 440 + 3 * k) for k in range(60)][:: 1 if LONG else 6]
CHANNELS = 32
CLIENT = f"""
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
import numpy as np
import aspen_mp
with aspen_mp.Runtime(workers=2) as runtime:
    model, held = runtime.load(sys.argv[2]), {{}}  # bytes of each plan there has been, by the longest shape that it serves
    for k, size in enumerate({SIZES}):
        x = np.random.default_rng(k).standard_normal((1, {CHANNELS}, *size), np.float32)
        np.save(f"{{sys.argv[3]}}/{{k}}.npy", model.run({{"x": x}})["y"])
        held |= {{tuple(plan["inputs"]["x"]): plan["bytes"] for plan in runtime.status()["models"][0]["plans"]}}
    print(sum(held.values()))
"""


def test_ever_new_sizes(tmp_path: Path) -> None:
    model = small_models.conv_chain(3, CHANNELS, 8)
    for value in (*model.graph.input, *model.graph.output):
        for axis, name in ((2, "rows"), (3, "columns")):
            value.type.tensor_type.shape.dim[axis].dim_param = name
    # Half of a remainder lies before the picture, so that there is a plan for each size.
    model.graph.node[-1].output[0] = "all"
    pool = onnx.helper.make_node("AveragePool", ["all"], ["y"], kernel_shape=[4, 4], strides=[4, 4], auto_pad="SAME_UPPER")
    model.graph.node.append(pool)
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None))
    onnx.save(model, tmp_path / "m.onnx")
    with cgroup("memory") as box:
        (box / "memory.limit_in_bytes").write_text(str(LIMIT))
        command = [sys.executable, "-c", CLIENT, str(box / "cgroup.procs"), str(tmp_path / "m.onnx"), str(tmp_path)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=2 * WATCHDOG_S, env=os.environ, check=False)
        assert ended.returncode == 0, ended.stderr
        assert int(ended.stdout) > LIMIT  # all together they would not have fitted
        assert "oom_kill 0" in (box / "memory.oom_control").read_text()
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for k, size in enumerate(SIZES):
        x = np.random.default_rng(k).standard_normal((1, CHANNELS, *size), np.float32)
        np.testing.assert_allclose(np.load(tmp_path / f"{k}.npy"), reference.run(None, {"x": x})[0], rtol=1e-3, atol=1e-4)
