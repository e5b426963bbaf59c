"""Share a tile's elements out to threads where each of them is a plane of the result.

A transform writes the operand of a batched product, one plane a place, and a library's product gives each thread a run of
planes. If each thread computed whole tiles, half of what it writes would lie in another core's caches since the last run,
and to take a line away from another core costs more than to compute it: of ResNet-18's transforms, 17 us became 160.
Here a thread computes the same run of planes, of all tiles.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

from egraph.tensor.expr.index import Iterator, length
from egraph.tensor.expr.laws import coefficient
from lower.eoperator.tabled import Store, Tile
from lower.eoperator.terms import subterms

MOST_WORK = Fraction(3, 2)
"""Values that all shares compute over those of the tile, at most: what several planes share is computed by several threads."""


def shares(given: Tile, outer: Sequence[Iterator], threads: int) -> tuple[Tile, ...]:
    """Return a tile for each thread, of about as many stores; none where stores are no planes, or too much would be computed twice."""
    planes = _planes(given.stores, outer)
    if planes is None or len(planes) < 2 * threads:
        return ()
    bounds = [-(-len(planes) * k // threads) for k in range(threads + 1)]  # the first threads have one more, as in libraries
    chosen = [frozenset(planes[low:high]) for low, high in itertools.pairwise(bounds)]
    tiles = tuple(_part(given, frozenset(part)) for part in chosen)
    work = [len(subterms(tile.roots)) for tile in tiles]
    return tiles if sum(work) <= MOST_WORK * len(subterms(given.roots)) else ()


def _planes(stores: Sequence[Store], outer: Sequence[Iterator]) -> list[int] | None:
    """Return the stores' numbers in the order of their planes; None where two of them write between each other's elements."""
    if not stores or not outer:
        return None
    span = 0
    for iterator in outer:
        stride = coefficient(stores[0].offset, iterator)
        if stride is None:
            return None
        span += (length(iterator) - 1) * abs(stride)
    starts = [store.offset.constant_part for store in stores]
    order = sorted(range(len(stores)), key=lambda number: starts[number])
    apart = all(starts[right] - starts[left] > span for left, right in itertools.pairwise(order))
    same = all(store.offset - store.offset.constant_part == stores[0].offset - starts[0] for store in stores)
    return order if apart and same else None


def _part(given: Tile, numbers: frozenset[int]) -> Tile:
    """Return the tile of some of the stores, with the stages that these need."""
    stores = tuple(store for number, store in enumerate(given.stores) if number in numbers)
    needed = frozenset(subterms([term for store in stores for term in (store.root, *store.parts)]))
    return Tile(tuple(stage for stage in given.stages if stage in needed), stores)
