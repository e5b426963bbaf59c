"""Divide the places of a tile into regions where it is known what is padding and what hangs over.

Inside of the result all reads are wanted; at each border it is known which are not, so that nothing is left to be asked
there either, and what is multiplied with padding is not computed. Of small images most tiles lie at a border.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from egraph.tensor.expr.conditions import bound_of
from egraph.tensor.expr.index import Iterator, known
from lower.eoperator.tabled import Tile, tests_of
from lower.eoperator.terms import Terms

MOST_REGIONS = 9
MOST_STORES = 400
"""Stores of the tiles of all regions: larger tiles are written twice, with and without tests."""


def regions(table: Terms, given: Tile, iterators: Sequence[Iterator]) -> dict[Iterator, tuple[Iterator, ...]]:
    """Return narrower iterators for each that decides tests; none where some test stays open, or there would be too much code."""
    points: dict[Iterator, set[int]] = {}
    for test in tests_of(given, frozenset(iterators)):
        limit = bound_of(test)
        if limit is None:
            return {}
        low, high = known(limit.iterator.low), known(limit.iterator.high)
        points.setdefault(limit.iterator, {low, high}).update(point for point in (limit.low, limit.high) if low < point < high)
    count = math.prod(len(ends) - 1 for ends in points.values())
    if not 1 < count <= MOST_REGIONS or count * len(given.stores) > MOST_STORES:
        return {}
    return {
        i: tuple(Iterator(table.fresh(i.name, b - a).name, a, b) for a, b in itertools.pairwise(sorted(points[i])))
        for i in iterators
        if i in points
    }
