"""Recurrences whose state is a matrix, written by outer products and read by products.

A call goes `functions.py` (what users call) → `given.py` (checks) → `run.py` (the order
of steps) → `chunks.py` (many steps at once), or `steps.py` (one after the other).
"""
