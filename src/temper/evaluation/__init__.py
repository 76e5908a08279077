"""Evaluate any classifier: perspectives write rows, and scores are computed from rows."""
