"""Write kernels that are unrolled over tables: a tile of elements at once, in vectors along the contiguous axis.

In the interior (no padding, no overhang) a tile's code has no conditions; at the boundary it is written for each border, or with
conditions. Which code runs is decided once a tile, outside of the vectors.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from tvm import tirx
from tvm.tirx import ForKind

from egraph.tensor.expr.index import Index, Iterator, index, known, length
from egraph.tensor.expr.laws import coefficient, iterators_of
from egraph.tensor.expr.scope import Compare
from lower.eoperator.regions import regions, shares
from lower.eoperator.tabled import Tile, assumed, strongest, tabled_digits, tests_of, tile, unrolled
from lower.eoperator.terms import Replacement, Term, subterms
from lower.targets.cpu.generator.blocks import LANES, Block, Lanes, Point, sequence
from lower.targets.cpu.generator.functions import Expr
from lower.targets.cpu.generator.reduction import vectorizes

if TYPE_CHECKING:
    from lower.targets.cpu.generator.nest import Planner

NANOSECONDS_A_VALUE = 0.3
"""Estimated time of one vector operation with its loads and stores, in nanoseconds; 0.2 to 0.4 were measured."""
PARALLEL_NS = 10_000.0
"""Nanoseconds of work from which waking other threads pays: ten times what waking takes."""
WIDTHS = (LANES, 8, 4)
"""Lengths of vectors; an axis of another length is covered by overlapping ones."""
ELEMENT_BYTES = 4
PAGE_BYTES = 4096
"""First-level caches choose the set by bits within a page, so that they need not wait for its address."""
LINE_BYTES = 64
"""Bytes of a cache line."""
MOST_LINES = 16
"""Cache lines in one set above which buffers are faster: with 36 places, 9 in a set lose by them and 18 gain a quarter."""
VECTORS = 4
"""Vectors of one place that are copied to a buffer together: as fast as 8, in half the space."""
LEAST_SHARE = 1 / 12
"""Part of a tile's positions from which a region gets code of its own. Generating and compiling a transform of 36 places takes 0.2 s a
region; in code with conditions its tiles take up to 1.4 times as long. With this share, nine transforms took 7.1 s to compile, not 12.5,
and none took more than 1.05 times as long to run, with its operands in the caches.
"""
LEAST_RARE = 3
"""Number of small regions from which they share code with conditions, which is as long as the code of two regions."""
Axes: TypeAlias = Mapping[Iterator, tuple[Iterator, ...]]
Picked: TypeAlias = tuple[Iterator, ...]
Pieces: TypeAlias = dict[Picked, Tile]
"""A tile for each region: for each choice of a narrower iterator on each axis."""


def write_tile(planner: Planner, iterators: Sequence[Iterator], root: Term, offset: Index) -> bool:
    """Write a kernel whose tables can all be unrolled; return whether they can."""
    table = planner.table
    iterators, replace, cuts = tabled_digits(table, iterators, root)
    if replace:
        root, offset = table.substitute(root, replace), table.index(offset, replace)
    chosen = unrolled(iterators, root)
    if chosen is None:
        return False
    whole_tile = tile(table, chosen, root, offset, cuts)
    outer = tuple(i for i in iterators if i not in chosen)
    vector = outer[-1] if outer and _is_vector(outer[-1], whole_tile) else None
    loops = outer[:-1] if vector is not None else outer
    vectors = math.prod(map(length, loops)) * (1 if vector is None else -(-length(vector) // LANES))
    parallel = planner.threads > 1 and vectors * len(subterms(whole_tile.roots)) * NANOSECONDS_A_VALUE > PARALLEL_NS
    axes = regions(table, whole_tile, loops)
    pieces: Pieces = {}
    for picked in frequent_regions(axes):
        narrow = dict(zip(axes, picked, strict=True))
        where: Replacement = {i: index(region) for i, region in narrow.items()}
        own_cuts = [cut.within(narrow) for cut in cuts]
        pieces[picked] = tile(table, chosen, table.substitute(root, where), table.index(offset, where), own_cuts)
    parts = shares(whole_tile, outer, planner.threads) if parallel else ()
    if not parts:
        _write(planner, loops, vector, whole_tile, axes, pieces, parallel=parallel)
        return True
    shared = {
        picked: shares(piece, [dict(zip(axes, picked, strict=True)).get(i, i) for i in outer], len(parts))
        for picked, piece in pieces.items()
    }
    if any(len(tiles) != len(parts) for tiles in shared.values()):
        axes, shared = {}, {}
    emitter = planner.emitter

    def share(variable: Expr) -> None:
        for number, part in enumerate(parts):
            with emitter.inside(Block(barrier=True)) as block:
                _write(planner, loops, vector, part, axes, {picked: tiles[number] for picked, tiles in shared.items()}, parallel=False)
            emitter.append(tirx.IfThenElse(tirx.EQ(variable, emitter.integer(number)), sequence(block.statements), None))

    emitter.loop(0, len(parts), share, kind=ForKind.PARALLEL)
    return True


def frequent_regions(axes: Axes) -> list[Picked]:
    """Return the regions that get code of their own, the smallest first. Small regions are left out if there are several of them."""
    if not axes:
        return []
    picks = sorted(itertools.product(*axes.values()), key=lambda picked: (_positions(picked), tuple(known(i.low) for i in picked)))
    least = LEAST_SHARE * sum(map(_positions, picks))
    frequent = [picked for picked in picks if _positions(picked) >= least]
    return frequent if len(picks) - len(frequent) >= LEAST_RARE else picks


def _positions(picked: Picked) -> int:
    return math.prod(map(length, picked))


def _write(
    planner: Planner, loops: Sequence[Iterator], vector: Iterator | None, part_tile: Tile, axes: Axes, pieces: Pieces, *, parallel: bool
) -> None:
    """Write a tile at all positions of the remaining iterators."""
    emitter = planner.emitter
    tests = tests_of(part_tile, frozenset(loops))
    needed = strongest(tests)
    inside = assumed(planner.table, part_tile, tests) if tests and needed is not None else None

    def body(in_parallel: bool) -> None:
        """Write a tile; few tiles leave it to the vectors to run in parallel."""
        if pieces:
            _by_region(planner, tuple(axes), pieces, part_tile, lambda piece: _vectors(planner, vector, piece, parallel=in_parallel))
            return
        if inside is None:
            _vectors(planner, vector, part_tile, parallel=in_parallel)
            return
        branches = []
        for each in (inside, part_tile):
            with emitter.inside(Block(barrier=True)) as block:
                _vectors(planner, vector, each, parallel=in_parallel)
            branches.append(sequence(block.statements))
        emitter.append(tirx.IfThenElse(emitter.condition(needed or (), {}), *branches))

    planner.outer(loops, body, parallel=parallel)


def _by_region(planner: Planner, axes: Picked, pieces: Pieces, whole: Tile, write: Callable[[Tile], None]) -> None:
    """Write the code of each region, to be tested for from the largest on; the other regions run the ``whole`` tile with its conditions."""
    emitter = planner.emitter
    values = {axis: emitter.index(index(axis), {}) for axis in axes}
    chain: Any = None
    if sum(map(_positions, pieces)) < _positions(axes):
        with emitter.inside(Block(barrier=True)) as block:
            write(whole)
        chain = sequence(block.statements)
    for picked, piece in pieces.items():  # from the inside of the chain
        bounds: list[Compare] = []
        with emitter.inside(Block(barrier=True)) as block:
            for axis, region in zip(axes, picked, strict=True):
                emitter.bind_iterator(region, values[axis] if length(region) > 1 else emitter.integer(known(region.low)))
                bounds += [Compare(index(axis), "<", index(region.high)), Compare(index(region.low), "<=", index(axis))]
            write(piece)
        code = sequence(block.statements)
        chain = code if chain is None else tirx.IfThenElse(emitter.condition(bounds, {}), code, chain)
    emitter.append(chain)


def _is_vector(iterator: Iterator, of: Tile) -> bool:
    """Return whether all elements can be computed in vectors along an iterator, and stored contiguously."""
    return length(iterator) >= WIDTHS[-1] and all(
        coefficient(store.offset, iterator) == 1
        and not any(iterator in iterators_of(c.left - c.right) for c in store.conditions)
        and (iterator not in store.root.free or vectorizes(store.root, iterator))
        for store in of.stores
    )


def _vectors(planner: Planner, vector: Iterator | None, part: Tile, *, parallel: bool) -> None:
    """Write a tile at all positions of the vector iterator; the last vectors overlap those before rather than being short."""
    emitter = planner.emitter
    if vector is None:
        _elements(planner, part, {})
        return
    size = length(vector)
    width = next(width for width in WIDTHS if width <= size)
    reads = [r for r in crowded_reads(part.roots, vector, ELEMENT_BYTES) if emitter.dtypes[r.data[0]] == "float32"]
    together = min(VECTORS, size // width) if reads else 1

    def write_vectors(base: Expr) -> None:
        if together == 1:
            point: Point = {vector: Lanes(base, width)}
            with emitter.at_points((point,)):
                _elements(planner, part, point)
            return
        held = {read: emitter.array("float32", together * width) for read in reads}

        def place(k: Expr) -> tuple[Point, Expr]:
            start = emitter.bind(k * emitter.integer(width))
            return {vector: Lanes(emitter.bind(base + start), width)}, tirx.Ramp(start, emitter.integer(1), width)

        for read, array in held.items():

            def fill(k: Expr, read: Term = read, array: Any = array) -> None:
                point, where = place(k)
                emitter.append(tirx.BufferStore(array, emitter.load(read, point), [where]))

            emitter.loop(0, together, fill)

        def compute(k: Expr) -> None:
            point, where = place(k)
            with emitter.at_points((point,)):
                for read, array in held.items():
                    emitter.give(read, point, emitter.bind(tirx.BufferLoad(array, [where])))
                _elements(planner, part, point)

        emitter.loop(0, together, compute, barrier=True)

    step = together * width
    blocks, left = divmod(size, step)
    if blocks == 1 and not left:
        with emitter.scope():
            write_vectors(emitter.integer(0))
        return

    def body(k: Expr) -> None:
        base = k * emitter.integer(step)
        write_vectors(emitter.bind(tirx.Min(base, emitter.integer(size - step))) if left else base)

    blocks += bool(left)
    emitter.loop(0, blocks, body, kind=ForKind.PARALLEL if parallel and blocks >= planner.threads else ForKind.SERIAL)


def _elements(planner: Planner, tile_at_point: Tile, point: Point) -> None:
    """Write a tile at one position."""
    emitter = planner.emitter
    for stage in tile_at_point.stages:
        emitter.value(stage, point)
    for store in tile_at_point.stores:
        if not store.conditions:
            planner.store_one(store.root, store.offset, point)
            continue
        for part in store.parts:
            emitter.value(part, point)
        with emitter.inside(Block(barrier=True)) as block:
            planner.store_one(store.root, store.offset, point)
        emitter.append(tirx.IfThenElse(emitter.condition(store.conditions, point), sequence(block.statements), None))


def crowded(offsets: Sequence[Index], element_bytes: int) -> bool:
    """Return whether lines at these offsets fall into so few sets that they do not fit."""
    forms: dict[Index, set[int]] = {}
    for offset in offsets:
        constant = offset.constant_part
        forms.setdefault(offset - constant, set()).add(constant)
    for constants in forms.values():
        sets = Counter(constant * element_bytes % PAGE_BYTES // LINE_BYTES for constant in constants)
        if max(sets.values()) > MOST_LINES:
            return True
    return False


def crowded_reads(roots: Sequence[Term], vector: Iterator, element_bytes: int) -> list[Term]:
    """Return the contiguous reads, outside of guards, of tensors whose reads fall into few sets of the cache.

    Channels, tiles and rows are often powers of two, and so are the distances between what one tile reads: such lines evict each
    other before their neighbours are read. Copied a few lines at a time, each place in turn, into a buffer, they do not.
    """
    contiguous: dict[Term, None] = {}
    seen: set[Term] = set()
    stack = [*reversed(roots)]
    while stack:
        term = stack.pop()
        if term in seen or term.kind in ("guard", "reduce"):
            continue
        seen.add(term)
        if term.kind == "read" and coefficient(term.data[1], vector) == 1:
            contiguous[term] = None
        stack += reversed(term.children)
    names: dict[str, list[Term]] = {}
    for read in contiguous:
        names.setdefault(read.data[0], []).append(read)
    return [read for reads in names.values() if crowded([r.data[1] for r in reads], element_bytes) for read in reads]
