"""What a program of transformed tiles is estimated to cost: multiplications, and bytes moved, by how far away they lie.

The numbers are those of a current processor core, not of one machine: they choose what is tried; measurements choose what is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from egraph.derive.bilinear.blocks import ELEMENT_BYTES, blocks_of, stage_bytes
from egraph.derive.bilinear.programs import Bilinear


@dataclass(frozen=True)
class Caches:
    """What stays near and what stays in a shared cache, in bytes; and the multiply-adds in the time that moving a byte takes."""

    near_bytes: int = 1 << 21
    shared_bytes: int = 1 << 24
    near: float = 2.0
    shared: float = 5.0
    memory: float = 16.0

    def rate(self, size_bytes: float) -> float:
        """Return the multiply-adds a byte where so many bytes are used again and again."""
        return self.near if size_bytes <= self.near_bytes else self.shared if size_bytes <= self.shared_bytes else self.memory


CACHES = Caches()


@dataclass(frozen=True)
class Plan:
    """A bilinear algorithm on the whole, or by blocks of images and rows of tiles."""

    what: Bilinear
    blocks: tuple[int, int] | None = None


def plans(batch: int, what: Bilinear, caches: Caches = CACHES) -> tuple[Plan, ...]:
    """Return an algorithm on the whole and in blocks that stay near, or in the shared cache."""
    cut = [blocks_of(batch, what, budget) for budget in (caches.near_bytes, caches.shared_bytes)]
    return tuple(dict.fromkeys([Plan(what), *(Plan(what, blocks) for blocks in cut if blocks is not None)]))


def estimate(batch: int, plan: Plan, caches: Caches = CACHES) -> float:
    """Return multiply-adds: those of the product, and those that would be done while the stages move their data."""
    what = plan.what
    images, rows = plan.blocks or (batch, what.axes[0].tiles)
    count = -(-batch // images) * -(-what.axes[0].tiles // rows)
    stages, weights = stage_bytes(batch, what), ELEMENT_BYTES * what.group * what.products * what.depth * what.width
    inputs = _elements(batch * what.group * what.channels, [axis.size for axis in what.axes])
    outputs = _elements(batch * what.group * what.outputs, [axis.outputs for axis in what.axes])
    data = ELEMENT_BYTES * (inputs + outputs)
    once = stages / count
    rate: Callable[[float], float] = caches.rate
    moved = 2 * stages * rate(once) + data * rate(data) + count * weights * rate(weights + (once if count > 1 else data))
    return what.group * what.products * what.tiles(batch) * what.depth * what.width + moved


def _elements(channels: int, sizes: list[int]) -> int:
    return channels * math.prod(sizes)
