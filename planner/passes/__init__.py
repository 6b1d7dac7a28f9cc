"""Passes: small rewrites of the graph, each of which leaves it correct. `planner/ops/verify.py` checks it after each where checks are
on."""
