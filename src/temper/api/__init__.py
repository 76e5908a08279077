"""The four Python functions: train, evaluate, compare and tune."""
