"""Several networks at once: on one runtime, and as many sessions of others."""
