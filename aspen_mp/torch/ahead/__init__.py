"""`compile_ahead` and `load_ahead`: a module as a file."""
