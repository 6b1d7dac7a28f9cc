"""aspen-mp: ONNX networks on all cores of a machine, without operator barriers."""

__version__ = "0.1.0"
