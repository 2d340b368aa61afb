"""Layers of other libraries, all run in the same way.

Arrays are as the library gives them. States are (h,) or (h, c), each
`[layers*directions, batch, hidden]`. A library that is not installed skips the test.
"""

from libraries.equinox import Equinox
from libraries.flax import Linen, Nnx
from libraries.haiku import Haiku
from libraries.keras import Keras, KerasFloat32
from libraries.layer import BATCH, HIDDEN, IN, TIME, Layer, library
from libraries.onnx import OnnxReference, OnnxRuntime
from libraries.pytorch import PyTorch

__all__ = [
    "BATCH",
    "HIDDEN",
    "IN",
    "TIME",
    "Equinox",
    "Haiku",
    "Keras",
    "KerasFloat32",
    "Layer",
    "Linen",
    "Nnx",
    "OnnxReference",
    "OnnxRuntime",
    "PyTorch",
    "library",
]
