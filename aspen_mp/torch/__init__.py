"""PyTorch modules in a runtime: the backend of `torch.compile`, `optimize`, `explain`."""
