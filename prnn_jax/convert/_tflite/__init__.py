"""Models of TensorFlow Lite, which are searched as graphs of ONNX."""
