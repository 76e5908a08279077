"""Measure any classifier: rows from perspectives, scores from rows."""
