"""Products in which the left operand is multiplied by factors as it is read, and those that windows of an image look at."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from egraph.tensor import Kernel
from lower.calls.launch import launch_call
from lower.calls.tiles import Matcher, library_tiles
from lower.candidates.tile import Tile, Tiling
from lower.targets import Launch, Library
from lower.targets.cpu.products.match import WITH_WINDOWS, constant_orders, has_factors, implementations, match, recipe

if TYPE_CHECKING:
    from lower.steps import StepWriter


def launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Return the launch of a kernel, which is matched again, now that it is known where its operands and its result lie."""
    return launch_call(writer, kernel, match, recipe)


MATCHER = Matcher(implementations, lru_cache(maxsize=1 << 15)(match), takes_factors=True, chained=WITH_WINDOWS)


def tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield products with factors and those below windows, which take a library several calls; its plain products are as fast as these."""
    for number, tile in library_tiles(tiling, MATCHER):
        if tile.implementation.text == WITH_WINDOWS or has_factors(tile.fragment):
            yield number, tile


LIBRARY = Library("products", tiles, launch, source=Path(__file__).with_name("products.c"), constant_orders=constant_orders)
