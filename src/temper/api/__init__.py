"""The Python functions: train, evaluate, compare, tune and check_labels."""
