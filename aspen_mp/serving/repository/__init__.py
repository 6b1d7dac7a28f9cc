"""A repository of models: the versions on disk, and their changes."""
