"""Known tasks: what they ask, what they are scored by, and how their published files are read."""
