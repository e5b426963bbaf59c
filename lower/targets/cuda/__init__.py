"""CUDA: generated kernels, and NVIDIA's libraries."""
