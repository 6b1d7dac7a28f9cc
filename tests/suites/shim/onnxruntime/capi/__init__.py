"""onnxruntime's lower layer."""
