"""The demonstration: semantic search with all-MiniLM-L6-v2 over text shipped with the package (`python -m aspen_mp.bench.demo`)."""
