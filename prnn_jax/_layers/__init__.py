"""Layers for Flax, Equinox and Keras.

What they share is here; what a library has for itself, in its folder or module.
"""
