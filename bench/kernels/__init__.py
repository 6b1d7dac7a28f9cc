"""Kernels beside the machine's limits, over the calls that real networks make (`aspen-mp bench kernels`)."""
