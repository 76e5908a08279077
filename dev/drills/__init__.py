"""Fault-injection tests ("drills"): crashes, full disks, malicious files."""
