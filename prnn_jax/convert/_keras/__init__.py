"""Layers, models and files of Keras."""
