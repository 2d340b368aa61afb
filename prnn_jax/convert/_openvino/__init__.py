"""Models of OpenVINO, which are searched as graphs of ONNX."""
