"""Collect garbage rarely: proofs, e-graphs and kernels are made of many small values and hardly a cycle among them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 100_000
"""Values made between two collections; at Python's own 700 they were a thirteenth of the time in which TASO's corpus is judged, and a third
of the time in which the kernels of DenseNet-121 are laid out."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect every ``ALLOCATIONS`` new values inside the block; what is alive before it is left alone."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
