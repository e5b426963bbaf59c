"""CUDA devices, and the recorded device that checks programs for them without a GPU."""
