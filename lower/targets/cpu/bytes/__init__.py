"""Products and convolutions of bytes, with exact sums on every processor."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from egraph.tensor import Kernel, Node
from egraph.tensor.ops.dtypes import BYTES
from lower.calls.call import LibraryCall
from lower.calls.launch import launch_call
from lower.calls.tiles import Matcher, library_tiles
from lower.candidates.tile import Tile, Tiling
from lower.quantised import PRECISION as IN_BYTES
from lower.targets import Launch, Library
from lower.targets.cpu.bytes.match import constant_orders, implementations, match, operand_precisions
from lower.targets.cpu.epilogue import recipe
from lower.views import Reason

if TYPE_CHECKING:
    from lower.steps import StepWriter


def launch(writer: StepWriter, kernel: Kernel) -> Launch:
    """Return the launch of a kernel, which is matched again with the places of its operands and its result."""
    return launch_call(writer, kernel, match, recipe)


@lru_cache(maxsize=1 << 15)
def _match_either(fragment: Node, implementation: str) -> LibraryCall | Reason:
    """Return the call for a fragment of bytes, or for a fragment of numbers that is computed in bytes."""
    call = match(fragment, implementation)
    return match(fragment, f"{implementation}@{IN_BYTES}") if isinstance(call, str) and "@" not in implementation else call


MATCHER = Matcher(implementations, _match_either)


def tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield products of bytes, and products of numbers that may be computed in bytes."""
    if IN_BYTES not in tiling.target.precisions and not any(each.dtype in BYTES for each in tiling.frozen.types.values()):
        return
    for number, tile in library_tiles(tiling, MATCHER):
        if tile.implementation.precision == IN_BYTES or not isinstance(match(tile.fragment, tile.implementation.name), str):
            yield number, tile


LIBRARY = Library(
    "bytes", tiles, launch, source=Path(__file__).with_name("bytes.c"), reads=operand_precisions, constant_orders=constant_orders
)
