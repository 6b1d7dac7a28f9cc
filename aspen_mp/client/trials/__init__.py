"""Trying models on samples: reading these, comparing outputs, taking times in turns."""
