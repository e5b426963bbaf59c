"""Divide a tile: its positions into interior and boundary, its elements among threads.

In the interior no test is left; at each border it is known which reads are padding, so that no test is left there either,
and products with padding are not computed. Of small images most tiles lie at a border.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

from egraph.tensor.expr.conditions import bound_of
from egraph.tensor.expr.index import Iterator, known, length
from egraph.tensor.expr.laws import coefficient
from lower.eoperator.tabled import Store, Tile, tests_of
from lower.eoperator.terms import Terms, subterms

MOST_REGIONS = 9
"""The largest number of regions that a tile's positions are divided into: three along each of two axes."""
MOST_STORES = 400
"""The largest number of stores in the tiles of all regions: larger tiles are written twice, with and without tests."""
MOST_WORK = Fraction(3, 2)
"""Values that all shares compute over those of the tile, at most: what several planes share is computed by several threads."""


def regions(table: Terms, tile: Tile, iterators: Sequence[Iterator]) -> dict[Iterator, tuple[Iterator, ...]]:
    """Return narrower iterators for each that decides tests; none where some test stays open, or there would be too much code."""
    points: dict[Iterator, set[int]] = {}
    for test in tests_of(tile, frozenset(iterators)):
        limit = bound_of(test)
        if limit is None:
            return {}
        low, high = known(limit.iterator.low), known(limit.iterator.high)
        points.setdefault(limit.iterator, {low, high}).update(point for point in (limit.low, limit.high) if low < point < high)
    count = math.prod(len(ends) - 1 for ends in points.values())
    if not 1 < count <= MOST_REGIONS or count * len(tile.stores) > MOST_STORES:
        return {}
    return {
        i: tuple(Iterator(table.fresh(i.name, b - a).name, a, b) for a, b in itertools.pairwise(sorted(points[i])))
        for i in iterators
        if i in points
    }


def shares(whole_tile: Tile, outer: Sequence[Iterator], threads: int) -> tuple[Tile, ...]:
    """Return a tile for each thread, of about as many stores; none where stores are no planes, or too much would be computed twice.

    A transform writes the operand of a batched product, one plane a place, and a library's product gives each thread a run of
    planes. If each thread computed whole tiles, half of what it writes would be in another core's caches since the last run, and
    to transfer a cache line costs more than to compute it: ResNet-18's transforms took 160 us instead of 17. So each thread
    computes the planes, of all tiles, that it will read.
    """
    planes = _planes(whole_tile.stores, outer)
    if planes is None or len(planes) < 2 * threads:
        return ()
    bounds = [-(-len(planes) * k // threads) for k in range(threads + 1)]  # the first threads have one more, as in libraries
    chosen = [frozenset(planes[low:high]) for low, high in itertools.pairwise(bounds)]
    tiles = tuple(_part(whole_tile, frozenset(part)) for part in chosen)
    work = [len(subterms(part.roots)) for part in tiles]
    return tiles if sum(work) <= MOST_WORK * len(subterms(whole_tile.roots)) else ()


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


def _part(tile: Tile, numbers: frozenset[int]) -> Tile:
    """Return the tile of some of the stores, with the stages that these need."""
    stores = tuple(store for number, store in enumerate(tile.stores) if number in numbers)
    needed = frozenset(subterms([term for store in stores for term in (store.root, *store.parts)]))
    return Tile(tuple(stage for stage in tile.stages if stage in needed), stores)
