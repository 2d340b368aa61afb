"""A search for wrong values: any call, in any combination, against NumPy."""
