"""Drills: what machines and enemies do, done on purpose. docs/reliability.md has the figures."""
