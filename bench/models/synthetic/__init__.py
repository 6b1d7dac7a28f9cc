"""Networks that are made to measure one thing."""
