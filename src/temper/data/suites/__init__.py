"""Suites: the shifted, adversarial and foreign sets that one task is judged on, a file each."""

from temper.data.suites.found import FoundSet, FoundSuite, find_sets, load_set
from temper.data.suites.suite import KINDS, Suite, SuiteSet, read_suite, suite_names

__all__ = [
    "KINDS",
    "FoundSet",
    "FoundSuite",
    "Suite",
    "SuiteSet",
    "find_sets",
    "load_set",
    "read_suite",
    "suite_names",
]
