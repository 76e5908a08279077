"""Folders with a model: their files, their records, and hashes that identify their weights."""
