"""Example programs; run them from the repository root with `python -m`."""
