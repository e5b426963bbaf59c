"""Tiles of recurrences: each over its operands, and with the transposes and reshapes above it that it can write through."""

from __future__ import annotations

from collections.abc import Iterator

from egraph.tensor.ops.recurrence import GATES
from lower.candidates.tile import Tile, Tiling
from lower.targets.cpu.recurrence.match import RecurrenceCall, match

VIEWS_ABOVE = 3


def recurrence_tiles(tiling: Tiling) -> Iterator[tuple[int, Tile]]:
    """Yield each recurrence, and what is a view of its result but cannot be one of where that lies."""
    frontier: dict[int, list[Tile]] = {}
    for number, nodes in tiling.frozen.classes.items():
        for node in nodes:
            if node.op in GATES and number not in tiling.leaves:
                tile = Tile(tiling.over_leaves(number, node), (node,), tiling.implementation("recurrence.fold"))
                if _fits(tiling, tile):
                    frontier.setdefault(number, []).append(tile)
                    yield number, tile
    for _ in range(VIEWS_ABOVE if tiling.fused else 0):
        grown: dict[int, list[Tile]] = {}
        for number in sorted({above for below in frontier for above in tiling.consumers[below]} - tiling.leaves):
            for node in tiling.frozen.classes[number]:
                for tile in frontier.get(node.children[0], ()) if node.op in ("Reshape", "Transpose") else ():
                    higher = Tile(tiling.build(number, node, [tile.fragment]), (node, *tile.covered), tile.implementation)
                    if number not in grown and _fits(tiling, higher):
                        grown.setdefault(number, []).append(higher)
                        if node.op == "Transpose":  # the tile below a reshape, viewed, is the same for free
                            yield number, higher
        frontier = grown


def _fits(tiling: Tiling, tile: Tile) -> bool:
    return isinstance(match(tiling.canonical(tile.fragment)[0]), RecurrenceCall)
