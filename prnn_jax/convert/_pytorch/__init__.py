"""Layers, models and files of PyTorch, and others that have its arrays."""
