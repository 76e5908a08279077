"""Evaluation suites: the shift, adversarial and OOD sets for a task, one TOML file per suite."""
