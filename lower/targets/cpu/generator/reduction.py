"""Emit reductions: several accumulators at once, in vectors along the points or along a contiguous reduced axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tvm import tirx

from egraph.tensor.expr.index import Iterator, known, length
from egraph.tensor.expr.laws import coefficient, iterators_of
from egraph.tensor.expr.scope import Reduction
from lower.eoperator.request import element_type
from lower.eoperator.terms import Term, subterms
from lower.targets.cpu.generator.blocks import LANES, UNROLL, Lanes, Point, Writer, shuffle
from lower.targets.cpu.generator.functions import Expr, cast, lanes, larger, number, smaller, widen
from lower.targets.cpu.generator.streaming import fetch

if TYPE_CHECKING:
    from lower.targets.cpu.generator.emit import Emitter

LEAST_LANES = 4
"""Elements of an axis from which a reduction runs along it in vectors."""
STRETCH = 128
"""Terms that one accumulator of a long sum takes, before it is added to a total."""


def reduce_at(emitter: Emitter, term: Term, points: tuple[Point, ...]) -> list[Expr]:
    """Return a reduction's value at every point: vectors along the points, or along a contiguous reduced axis."""
    reduction, iterators = term.data
    body = term.children[0]
    vector = iterators[-1] if _along(body, iterators[-1], points) else None
    slots: list[list[Any]] = [[] for _ in points]
    zero = tirx.const(0, "int32")
    kind = element_type(body, emitter.dtypes) or "float32"

    def accumulate(at: tuple[Point, ...]) -> None:
        """Add the body's values at each inner point to the accumulator of each outer one."""
        for p, outer in enumerate(points):
            for q, inner in enumerate(at):
                value = emitter.value(body, {**outer, **inner})
                first = {i: Lanes(at.base) for i, at in {**outer, **inner}.items()}
                if lanes(value) == LANES:
                    for name, offset in emitter.fetched.get(term, ()):
                        emitter.append(fetch(emitter.buffers[name], emitter.index(offset, first)))
                if term in emitter.kept:
                    where = emitter.index(emitter.kept[term], first)
                    where = tirx.Ramp(where, emitter.integer(1), lanes(value)) if lanes(value) > 1 else where
                    emitter.append(tirx.BufferStore(emitter.buffers["out"], value, [where]))
                store = slots[p][q]
                old = tirx.BufferLoad(store, [zero])
                count = lanes(old)
                emitter.append(tirx.BufferStore(store, combine(reduction, old, widen(cast(value, kind), count)), [zero]))

    def stretches(low: int, high: int, inside: Callable[[Expr], None]) -> None:
        """Emit a loop. A long sum is added up by blocks: rounding grows with the size and the number of blocks, not with all terms."""
        rounds = (high - low) // STRETCH if reduction == "sum" and kind == "float32" else 0
        if rounds < 2:
            emitter.loop(low, high, inside, name="k")
            return

        def stretch(number: Expr) -> None:
            far = [list(stores) for stores in slots]
            for stores in slots:
                stores[:] = [accumulator(lanes(tirx.BufferLoad(store, [zero]))) for store in stores]
            first = emitter.bind(number * emitter.integer(STRETCH) + emitter.integer(low))
            emitter.loop(0, STRETCH, lambda k: inside(emitter.bind(first + k)), name="k")
            for stores, totals in zip(slots, far, strict=True):
                for near, total in zip(stores, totals, strict=True):
                    value = tirx.BufferLoad(total, [zero]) + tirx.BufferLoad(near, [zero])
                    emitter.append(tirx.BufferStore(total, value, [zero]))
                stores[:] = totals

        emitter.loop(0, rounds, stretch, name="k")
        if low + rounds * STRETCH < high:
            emitter.loop(low + rounds * STRETCH, high, inside, name="k")

    def nest(remaining: tuple[Iterator, ...], inner: Callable[[], None]) -> None:
        if not remaining:
            inner()
            return
        iterator, inner_iterators = remaining[0], remaining[1:]
        low, high = known(iterator.low), known(iterator.low) + length(iterator)

        def inside(variable: Expr) -> None:
            emitter.bind_iterator(iterator, variable)
            nest(inner_iterators, inner)

        if vector is None and not inner_iterators:
            stretches(low, high, inside)
        else:
            emitter.loop(low, high, inside, name="k")

    def all_points(at: tuple[Point, ...]) -> None:
        combined = tuple({**outer, **inner} for outer in points for inner in at)
        with emitter.at_points(combined):
            accumulate(at)

    def accumulator(width: int) -> Any:
        store = emitter.allocate(kind, width)
        emitter.append(tirx.BufferStore(store, widen(number(reduction.identity.value, kind), width), [zero]))
        return store

    def prepare(count: int, width: int) -> None:
        for p, outer in enumerate(points):
            held = max([width, *(at.count for i, at in outer.items() if i in term.free)])
            slots[p] = [accumulator(held) for _ in range(count)]

    if vector is None:
        prepare(1, 1)
        nest(iterators, lambda: all_points(({},)))
        return [emitter.bind(tirx.BufferLoad(s[0], [zero])) for s in slots]
    size = length(vector)
    totals: list[Expr | None] = [None] * len(points)
    start = 0
    together = max(1, UNROLL // len(points))
    for step, count in ((LANES * together, together), (LANES, 1), (8, 1), (4, 1), (1, 1)):
        blocks = (size - start) // step
        if not blocks:
            continue
        width = step // count
        prepare(count, width)
        first = start

        def steps(blocks: int = blocks, step: int = step, count: int = count, width: int = width, first: int = first) -> None:
            def write_vectors(base: Expr) -> None:
                at = tuple({vector: Lanes(base + emitter.integer(first + u * width) if first + u else base, width)} for u in range(count))
                all_points(at)

            stretches(0, blocks, lambda k: write_vectors(k * emitter.integer(step)))

        nest(iterators[:-1], steps)
        for p in range(len(points)):
            parts = [emitter.bind(tirx.BufferLoad(s, [zero])) for s in slots[p]]
            while len(parts) > 1:
                parts = [emitter.bind(combine(reduction, a, b)) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            before = totals[p]
            totals[p] = emitter.bind(
                parts[0] if before is None else combine(reduction, horizontal(emitter, reduction, before, width), parts[0])
            )
        start += blocks * step
    return [emitter.bind(horizontal(emitter, reduction, total)) for total in totals if total is not None]


def horizontal(emitter: Writer, reduction: Reduction, value: Expr, count: int = 1) -> Expr:
    """Reduce a vector to so many numbers by halves."""
    while lanes(value) > count:
        value = emitter.bind(value)
        half = lanes(value) // 2
        value = combine(reduction, shuffle([value], range(half)), shuffle([value], range(half, 2 * half)))
    return value


def _along(body: Term, iterator: Iterator, points: tuple[Point, ...]) -> bool:
    """Return whether a reduction can run along a vector: single points, contiguous reads, no guard that varies."""
    if any(lanes.count > 1 for point in points for lanes in point.values()) or length(iterator) < LEAST_LANES:
        return False
    return vectorizes(body, iterator)


def vectorizes(body: Term, iterator: Iterator) -> bool:
    """Return whether values along an iterator can be computed as vectors at a gain."""
    good = bad = 0
    for term in subterms((body,)):
        if iterator not in term.free:
            continue
        match term.kind:
            case "guard" if any(iterator in iterators_of(c.left - c.right) for c in term.data):
                return False
            case "read":
                c = coefficient(term.data[1], iterator)
                if c is not None and abs(c) <= 4:
                    good += 1
                else:
                    bad += 1
    return good > 0 and good >= bad


def along_memory(iterators: tuple[Iterator, ...], body: Term) -> tuple[Iterator, ...]:
    """Return the iterators of a reduction in the order of what is read, where they would stride over it: of a transposed tensor's sum."""
    if len(iterators) < 2 or vectorizes(body, iterators[-1]):
        return iterators
    offsets = [term.data[1] for term in subterms((body,)) if term.kind == "read"]
    steps = {i: [coefficient(offset, i) for offset in offsets] for i in iterators}
    if any(None in each for each in steps.values()):
        return iterators
    ordered = tuple(sorted(iterators, key=lambda i: -sum(abs(step or 0) for step in steps[i])))
    return ordered if length(ordered[-1]) >= LEAST_LANES and vectorizes(body, ordered[-1]) else iterators


def combine(reduction: Reduction, a: Expr, b: Expr) -> Expr:
    match reduction:
        case "sum":
            return a + b
        case "prod":
            return a * b
        case "max":
            return larger(a, b)
        case _:
            return smaller(a, b)
