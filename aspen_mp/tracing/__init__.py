"""Records the work of a runtime's workers, tile by tile: recording, Chrome/Perfetto JSON, timeline picture, summary."""
