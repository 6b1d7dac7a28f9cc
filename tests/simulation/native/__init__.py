"""The C parts of aspen-mp under a scheduler of greenlets: hooks, their build, and how they come in place of the ordinary modules."""
