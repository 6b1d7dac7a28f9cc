"""Passes: small rewrites of the graph, each of which leaves it correct. `aspen_mp.planner.verify` runs after each where checks are on."""
