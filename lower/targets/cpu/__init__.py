"""The CPU: kernels of oneDNN, and kernels that TVM compiles."""
