"""Benchmarks of speed and memory. Each is a command: ``python -m dev.benchmarks.step_cost``."""
