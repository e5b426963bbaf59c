"""CUDA devices, and what checks programs for them where there is none."""
