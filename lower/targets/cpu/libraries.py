"""The libraries whose kernels compete with generated ones on the CPU: folders beside this file, each with its ``LIBRARY``."""

NAMES = (
    "onednn",
)  # fmt: skip
