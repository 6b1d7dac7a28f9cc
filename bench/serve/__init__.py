"""`aspen-mp bench serve`: a server under load, beside onnxruntime behind the same server code."""
