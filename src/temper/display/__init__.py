"""Data structures of tables and figures of scores, for perspectives and reports."""
