"""The Python functions: fit, train, evaluate, compare, tune and check_labels."""
