"""Layers of `torch.nn` that PyTorch would trace in a form that runs badly."""
