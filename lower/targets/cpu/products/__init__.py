"""Products of numbers by constant matrices, which are packed once, with the steps that follow them."""

from __future__ import annotations

from functools import lru_cache, partial
from pathlib import Path

from egraph.tensor import Kernel
from lower.calls.launch import launch_call
from lower.calls.tiles import Matcher, library_tiles
from lower.targets import Library
from lower.targets.cpu.epilogue import recipe
from lower.targets.cpu.products.match import implementations, match, operand_precisions
from lower.views import Window


def writes(kernel: Kernel, window: Window) -> int:
    """Return in how many runs a kernel writes into a window: one, if columns lie side by side there."""
    return int(not isinstance(match(kernel.fragment, kernel.implementation.name, destination=window), str))


TILES = partial(library_tiles, matcher=Matcher(implementations, lru_cache(maxsize=1 << 15)(match)))
LAUNCH = partial(launch_call, match=match, recipe=recipe)
LIBRARY = Library(
    "products", TILES, LAUNCH, source=Path(__file__).with_name("products.c"), writes=writes, reads=operand_precisions
)
