"""Tools for work on Temper itself: benchmarks, fault injection, mutation testing, coverage."""
