"""Scores as tables and figures: what perspectives and reports share."""
