"""onnxruntime as most servers run it: every process has a session of its own, and in it a thread for each core.

It imports nothing else: the memory of processes that use it is measured.
"""

from __future__ import annotations

import os
from typing import Any


def own_session(path: str, cores: list[int], threads: int | None = None) -> Any:
    """An `onnxruntime.InferenceSession` of the model file, which knows nothing of other processes. This one runs on `cores` from now on.
    `threads`: None for one on each core."""
    import onnxruntime

    os.sched_setaffinity(0, cores)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or len(cores)
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
