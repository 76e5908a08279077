"""Suites: the sets to evaluate a task on, one file per suite."""
