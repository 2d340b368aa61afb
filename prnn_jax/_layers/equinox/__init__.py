"""Layers for Equinox."""
