"""The class in Daft, as the how-to guide has it. Daft keeps instances until its process ends, so it has a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import mlp, mlp_reference

pytest.importorskip("daft", reason="needs Daft: pip install daft")
pytest.importorskip("pyarrow", reason="needs Arrow: pip install pyarrow")

PROGRAM = """
import sys
sys.path[:] = {path!r}
import daft, numpy, pyarrow
from aspen_mp.ray import Predictor

@daft.cls
class Classifier:
    def __init__(self, model):
        self.predictor = Predictor(model, workers=1)

    @daft.method.batch(return_dtype=daft.DataType.fixed_size_list(daft.DataType.float32(), 8))
    def scores(self, x):
        return self.predictor(pyarrow.table({{"x": x.to_arrow()}}))["y"].combine_chunks()

x = numpy.load("x.npy")
column = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(x.reshape(-1)), 16)
frame = daft.from_arrow(pyarrow.table({{"x": column}}))
found = frame.select(Classifier("mlp.onnx").scores(daft.col("x")).alias("y")).to_pydict()
numpy.save("y.npy", numpy.array(found["y"], numpy.float32))
"""


def test_a_class_of_daft(tmp_path: Path) -> None:
    model = mlp()
    onnx.save(model, tmp_path / "mlp.onnx")
    x = np.random.default_rng(0).standard_normal((6, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    command = [sys.executable, "-P", "-c", PROGRAM.format(path=sys.path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), mlp_reference(model, x), rtol=1e-4, atol=1e-4)
