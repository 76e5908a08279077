"""Known tasks: their labels, metrics, and how to read their published files."""
