"""Times of kernels on cores that they were measured on, beside the cost model's for the rates of such cores (`cost/rates.py`). Kernels
without an entry have 1. Light, because the planner process imports it without numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Factors = Mapping[str, float]
"""By kernel; by variant, where it has several (`Cost.variant`)."""

SHORT_VECTORS: Final[Factors] = (
    {"ATTENTION": 1.4, "CONV": 0.95, "GEMM": 0.95, "PWDW": 1.1, "DWCONV": 1.0, "QNBITGEMM": 0.97, "QGEMM": 1.33}
    | {"BINARY": 0.65, "UNARY": 0.65, "COPY": 1.6, "GATHER": 0.95, "NORM": 0.82, "POOL": 0.75, "RESIZE": 0.8, "DEQUANTIZE": 0.75}
    | {"WINO 1x4": 0.97, "WINO 4x1": 0.98, "WINO 1x6": 0.99, "WINO 6x1": 1.02}
    | {"WINO 2x2": 0.92, "WINO 3x3": 0.86, "WINO 4x4": 0.93, "WINO 5x5": 1.15, "WINO 6x6": 0.98}
)
WHOLE_VECTORS: Final[Factors] = (
    {"ATTENTION": 0.8, "CONV": 0.87, "GEMM": 0.88, "PWDW": 0.86, "NORM": 0.65, "RESIZE": 0.6, "POOL": 0.8, "COPY": 1.4}
    | {"QNBITGEMM": 0.93, "QGEMM": 0.85, "QCONV": 0.95, "QUANTIZE": 0.5, "DEQUANTIZE": 0.5, "MINMAX": 0.4}
    | {"WINO 1x4": 0.95, "WINO 4x1": 0.92, "WINO 1x6": 0.92, "WINO 6x1": 0.92}
    | {"WINO 2x2": 0.85, "WINO 3x3": 0.85, "WINO 4x4": 0.85, "WINO 5x5": 0.9, "WINO 6x6": 0.94}
)
WHOLE_VECTORS_INTEL: Final[Factors] = (
    {"ATTENTION": 1.35, "CONV": 0.93, "GEMM": 0.86, "BGEMM": 2.0, "BCONV": 2.0, "PWDW": 0.92, "DWCONV": 0.57, "STRASSEN": 0.8}
    | {"BINARY": 0.78, "COPY": 2.0, "GATHER": 0.6, "NORM": 0.92, "POOL": 1.03, "RESIZE": 1.42}
    | {"WINO 1x4": 1.23, "WINO 4x1": 1.18, "WINO 1x6": 0.89, "WINO 6x1": 0.88}
    | {"WINO 2x2": 1.02, "WINO 3x3": 0.98, "WINO 4x4": 1.02, "WINO 5x5": 1.15, "WINO 6x6": 1.25}
)
BYTES: Final = ("QGEMM", "QMATMUL", "QCONV", "QDWCONV", "LOOKUP")
"""Kernels that take longer where the processor has no instructions for products of bytes and for tables of them."""
