"""Surfaces of other runtimes, for programs that were written for them. `aspen_mp.compat.onnxruntime` is the first."""
