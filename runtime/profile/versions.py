"""Parts of the key of measurements beside the device: versions of packages, and where a kernel's constants came from."""

from __future__ import annotations

from importlib import metadata

MISSING = "-"
"""The version of a package that is not installed."""
LEAST_FROM_MEMORY_BYTES = 64 << 10
"""The number of bytes of a kernel's constants below which it does not matter which cache or memory they are read from."""


def library_version(package: str) -> str:
    """Return an installed package's version, or ``MISSING``."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return MISSING


def from_memory(device: str) -> str:
    """Return the device key of kernels that were timed with their constants in no cache."""
    return f"{device}, weights from memory"


def in_place(device: str, model: str) -> str:
    """Return the device key of kernels that were timed inside a program for a model."""
    return f"{device}, in {model}"
