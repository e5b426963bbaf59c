"""Implementations of the CPU that tests choose by hand."""

from __future__ import annotations

from lower.targets import lowering

GENERATED = lowering().generated
PRODUCT = lowering().implementation("onednn.matmul")
