"""Programs to read and to start from: `python -m aspen_mp.bench.examples.pipeline`, `… .shared`."""
