"""Collect garbage rarely: proofs, e-graphs and kernels consist of many small values and hardly a cycle among them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

ALLOCATIONS = 100_000
"""Allocations between two collections. At Python's own 700, collections took a thirteenth of the time in which TASO's corpus is judged, and
a third of the time in which the kernels of DenseNet-121 are laid out."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect every ``ALLOCATIONS`` new values inside the block; values that exist before it are not examined."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
