"""Mutation testing: ``python -m dev.mutation.mutants``."""
