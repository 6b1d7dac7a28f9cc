"""The class in Spark's `predict_batch_udf`, as the how-to guide has it. Spark ends its Python workers with its own process."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from small_models import mlp, mlp_reference

pytest.importorskip("pyspark", reason="needs Spark: pip install pyspark pandas pyarrow")
pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
pytest.importorskip("pyarrow", reason="needs Arrow: pip install pyarrow")
if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
    pytest.skip("Spark needs Java", allow_module_level=True)

PROGRAM = """
import numpy, os, sys
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import SparkSession, functions
from pyspark.sql.types import ArrayType, FloatType, IntegerType, StructField, StructType

def make(model=os.path.abspath("mlp.onnx")):
    from aspen_mp.ray import Predictor

    return Predictor(model, workers=1).predict

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
with builder.getOrCreate() as spark:
    x = numpy.load("x.npy")
    schema = StructType([StructField("k", IntegerType()), StructField("x", ArrayType(FloatType()))])
    frame = spark.createDataFrame([(k, row.tolist()) for k, row in enumerate(x)], schema).repartition(4)
    scores = predict_batch_udf(make, return_type=ArrayType(FloatType()), batch_size=5, input_tensor_shapes=[[16]])
    rows = frame.withColumn("y", scores(functions.col("x"))).collect()
numpy.save("y.npy", numpy.array([row.y for row in sorted(rows, key=lambda row: row.k)], numpy.float32))
"""
ROWS = 64


def test_a_function_of_spark(tmp_path: Path) -> None:
    model = mlp()
    onnx.save(model, tmp_path / "mlp.onnx")
    x = np.random.default_rng(0).standard_normal((ROWS, 16)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    path = os.pathsep.join(each for each in sys.path if each)
    own = {"PYSPARK_PYTHON": sys.executable, "PYTHONPATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-P", "-c", PROGRAM]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), mlp_reference(model, x), rtol=1e-4, atol=1e-4)
