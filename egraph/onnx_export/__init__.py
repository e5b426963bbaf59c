"""Core operators, kernels and opaque nodes as ONNX nodes."""
