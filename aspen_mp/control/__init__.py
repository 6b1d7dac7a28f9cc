"""The planner process of a runtime: its control socket, workers, models and clients."""
