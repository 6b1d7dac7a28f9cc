"""What the workers of a runtime did, tile by tile: recording, Chrome/Perfetto JSON, timeline picture, summary."""
