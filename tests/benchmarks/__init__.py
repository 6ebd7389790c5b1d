"""Measurements; each module runs by `python -m tests.benchmarks.NAME` and ends with one JSON line."""
