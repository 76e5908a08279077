"""Scores as tables and figures, used by perspectives and reports."""
