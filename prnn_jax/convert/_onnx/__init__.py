"""Operators and models of ONNX."""
