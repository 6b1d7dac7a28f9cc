"""The words of the Open Inference Protocol: bodies, tensors and statuses. Nothing here knows a model."""
