"""The cost model of programs of transformed tiles: multiplications, and bytes moved by the cache level that holds them.

The numbers are those of a current processor core, not of one machine. They choose which programs are tried; measurements choose which is
used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from egraph.derive.bilinear.blocks import blocks_of, stage_bytes
from egraph.derive.bilinear.programs import ELEMENT_BYTES, Bilinear
from egraph.tensor import Node


@dataclass(frozen=True)
class Caches:
    """Bytes that stay in a core's own cache and in the shared one, and the multiply-adds in the time that moving a byte takes."""

    near_bytes: int = 1 << 21
    shared_bytes: int = 1 << 24
    near: float = 0.5
    shared: float = 1.2
    memory: float = 4.0
    lanes: int = 16
    """The number of columns that a library computes at once. With fewer columns, the other lanes are wasted."""
    block: float = 1e6
    """The number of multiply-adds in the time that launching the kernels of a block takes."""

    def filled(self, columns: int) -> int:
        """Return the number of columns that a library computes for ``columns``."""
        return -(-columns // self.lanes) * self.lanes

    def rate(self, size_bytes: float) -> float:
        """Return the multiply-adds per byte moved, for ``size_bytes`` that are used again and again."""
        return self.near if size_bytes <= self.near_bytes else self.shared if size_bytes <= self.shared_bytes else self.memory


CACHES = Caches()
ABOUT_AS_GOOD = 1.03
"""The factor by which an estimate with fewer blocks may be higher."""


@dataclass(frozen=True)
class Plan:
    """A bilinear algorithm on the whole data, or by blocks of images and rows of tiles."""

    bilinear: Bilinear
    blocks: tuple[int, int] | None = None


def best_plan(batch: int, bilinear: Bilinear) -> tuple[float, Plan]:
    """Return the estimate of an algorithm with its best division, and the plan.

    Of plans that are about as good, the one with the fewest blocks is returned, because each block adds nodes and kernels.
    """
    estimated = [(estimate(batch, plan), plan) for plan in plans(batch, bilinear)]
    limit = ABOUT_AS_GOOD * min(cost for cost, _ in estimated)
    return min((pair for pair in estimated if pair[0] <= limit), key=lambda pair: count_blocks(batch, pair[1]))


def count_blocks(batch: int, plan: Plan) -> int:
    """Return the number of blocks of a plan; 1 for the whole."""
    rows = plan.bilinear.axes[0].tiles
    images, cut = plan.blocks or (batch, rows)
    return -(-batch // images) * -(-rows // cut)


def plans(batch: int, bilinear: Bilinear, caches: Caches = CACHES) -> tuple[Plan, ...]:
    """Return an algorithm on the whole, and in blocks that stay in a core's own cache or in the shared one."""
    cut = [blocks_of(batch, bilinear, budget) for budget in (caches.near_bytes, caches.shared_bytes)]
    return tuple(dict.fromkeys([Plan(bilinear), *(Plan(bilinear, blocks) for blocks in cut if blocks is not None)]))


def estimate(batch: int, plan: Plan, caches: Caches = CACHES) -> float:
    """Return multiply-adds: those of the product and the transforms, and those that take as long as moving the data.

    V and M are moved from stage to stage. Images and weights come from memory, the weights once more for every block.
    """
    bilinear = plan.bilinear
    count = count_blocks(batch, plan)
    products = bilinear.group * bilinear.products * bilinear.tiles(batch)
    v, m = (sum(axis.algorithm.operations[side] for axis in bilinear.axes) for side in (0, 1))
    stages, weights = stage_bytes(batch, bilinear), ELEMENT_BYTES * bilinear.group * bilinear.products * bilinear.depth * bilinear.width
    moved = 1.5 * stages * caches.rate(stages / count) + (weights + data_bytes(batch, bilinear)) * caches.memory
    repeated = (count - 1) * (weights * caches.rate(weights + stages / count) + caches.block)
    return products * (bilinear.depth * caches.filled(bilinear.width) + v * bilinear.depth + m * bilinear.width) + moved + repeated


def direct_estimate(node: Node) -> float:
    """Return the multiply-adds of a convolution, and those in the time that moving its operands takes.

    Libraries have special kernels for groups of one channel.
    """
    x, w = node.inputs
    is_transposed = node.op == "ConvTranspose"
    outputs = w.type.sizes[1] if is_transposed else w.type.sizes[0] // node.integer("group")
    waste = 1.0 if outputs == 1 and node.attribute("group") != 1 else CACHES.filled(outputs) / outputs
    data = sum(each.type.size_bytes for each in (x, w, node))
    return waste * math.prod((x if is_transposed else node).type.sizes) * math.prod(w.type.sizes[1:]) + data * CACHES.memory


def data_bytes(batch: int, bilinear: Bilinear) -> int:
    """Return the size of the images that are read and written, in bytes."""
    inputs = bilinear.group * bilinear.channels * math.prod(axis.size for axis in bilinear.axes)
    outputs = bilinear.group * bilinear.outputs * math.prod(axis.outputs for axis in bilinear.axes)
    return ELEMENT_BYTES * batch * (inputs + outputs)
