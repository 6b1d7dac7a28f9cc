"""A repository of models: what lies on disk, and when it changes."""
