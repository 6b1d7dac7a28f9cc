"""What PyTorch takes apart while it traces a module, and what it keeps whole."""
