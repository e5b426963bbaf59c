"""Precisions that tiles of bfloat16 make fast, and whether the processor has such tiles (tiles.h multiplies them)."""

from __future__ import annotations

from lower.views import Reason
from runtime.processor import x86_flags

ROUNDED, SPLIT = "bf16", "bf16x3"
"""``SPLIT``: operands are sums of two numbers of ``ROUNDED`` each, and three products of these are computed as one of longer sums."""
TILE_FEATURE = "amx_bf16"
"""Instructions, by their name on x86, that multiply tiles of ``ROUNDED``."""


def without_tiles(slow: str) -> Reason | None:
    """Return that something is slow because the processor has no tiles; None where it has them."""
    return None if TILE_FEATURE in x86_flags() else f"the processor has no {TILE_FEATURE}, without which {slow}"


def split_is_slow() -> Reason | None:
    """Return why products of split operands are slow on this processor; None where they are not."""
    return without_tiles(f"three products of {ROUNDED} take longer than one of float32")
