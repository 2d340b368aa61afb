"""Benchmarks: each module answers the question in its name; see README.md."""
