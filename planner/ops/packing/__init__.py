"""Constant weights in the order in which kernels read them."""

PANEL = 32
"""Columns of a panel of weights."""
