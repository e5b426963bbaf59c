"""Precisions that are fast with instructions on tiles of bfloat16, and whether the processor has these instructions (tiles.h uses them)."""

from __future__ import annotations

from lower.views import Reason
from runtime.processor import x86_flags

ROUNDED, SPLIT = "bf16", "bf16x3"
"""With ``SPLIT``, each operand is the sum of two numbers of ``ROUNDED``, and three products of these are computed as one of longer sums."""
TILE_FEATURE = "amx_bf16"
"""The instructions, by their name on x86, that multiply tiles of ``ROUNDED``."""


def without_tiles(slow: str) -> Reason | None:
    """Return that something is slow because the processor has no tile instructions; None if it has them."""
    return None if TILE_FEATURE in x86_flags() else f"the processor has no {TILE_FEATURE}, without which {slow}"


def split_is_slow() -> Reason | None:
    """Return why products of split operands are slow on this processor; None if they are not."""
    return without_tiles(f"three products of {ROUNDED} take longer than one of float32")
