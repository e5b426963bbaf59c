"""ONNX operators as compositions of the core set, and what stays opaque."""
