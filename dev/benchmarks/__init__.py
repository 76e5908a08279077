"""Speed and memory, one command each (``python -m dev.benchmarks.step_cost``); ``make bench``."""
