"""Speed and memory, each a command: ``python -m benchmarks.step_cost``; ``make bench`` runs all."""
