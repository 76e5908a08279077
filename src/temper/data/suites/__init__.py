"""Suites: the sets that one task is judged on, a file each."""
