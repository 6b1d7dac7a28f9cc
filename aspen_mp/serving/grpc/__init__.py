"""The gRPC half of the Open Inference Protocol."""
