"""Constant weights in the order in which kernels read them."""

from aspen_mp.shm.tables import NUMBERS

PANEL = NUMBERS["NR"]
"""Columns of a panel of weights."""
