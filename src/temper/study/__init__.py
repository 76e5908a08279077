"""A study: a grid of methods and seeds, trained and evaluated the same way, and resumable."""
