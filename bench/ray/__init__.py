"""Actors of Ray on one node: one runtime for all of them, beside a session of onnxruntime in each."""
