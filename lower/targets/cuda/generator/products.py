"""Sums of products, in tiles: what the rows and the columns of a tile need is staged in shared memory, block by block of the sum.

A matrix product is one, and so is a convolution, whatever computes its operands (prologue) and its result (epilogue). Where a device
would idle, since the tiles are few, the sum is cut into parts, each computed by blocks of its own; a second launch adds them up.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

from egraph.tensor.expr.conditions import undecided
from egraph.tensor.expr.index import Floor, Index, Iterator, Modulo, bounds, index, known, length, substitute
from egraph.tensor.expr.laws import coefficient, iterators_of
from egraph.tensor.expr.scope import Compare, Reduction
from lower.eoperator.terms import Term, Terms, subterms
from lower.targets.cuda.generator.functions import TENSOR_TYPES
from lower.targets.cuda.generator.kernel import SCRATCH
from lower.targets.cuda.generator.writer import Value, Writer, plus

SHAPES = (
    (8, 8, 16, 16), (4, 8, 16, 16), (8, 4, 16, 16), (8, 8, 8, 16), (8, 8, 16, 8), (8, 8, 8, 8), (4, 8, 8, 16), (8, 4, 16, 8),
    (4, 8, 8, 8), (8, 4, 8, 8), (4, 4, 16, 16), (4, 4, 8, 8), (2, 8, 8, 16), (8, 2, 16, 8), (2, 8, 8, 8), (8, 2, 8, 8), (2, 4, 8, 16),
    (4, 2, 16, 8), (1, 8, 8, 16), (8, 1, 16, 8), (1, 4, 8, 16), (4, 1, 16, 8),
)  # fmt: skip
"""Tiles: rows and columns that one thread computes, and threads along the rows and along the columns."""
DEPTHS = (8, 16, 32)
"""Terms of the sum that are staged at once."""
PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Into how many parts a sum may be cut."""
MOST_SCRATCH_BYTES = 32 << 20
"""Memory that parts of a sum may take, in bytes: it is the workspace that libraries get, too."""
MOST_STAGED = 32
"""Elements of a stage that a thread keeps in registers, at most."""
MOST_SHARED_BYTES = 48 << 10
PADDING = 4
"""Elements between the stages' rows: so many words at once are read, and neighbouring rows lie in different banks."""
MULTIPROCESSORS = 132
"""Of the GPUs that tiles are chosen for: texts are the same for all, and others have about as many."""
REGISTERS = 1 << 16
OTHER_REGISTERS = 40
"""Registers of a thread besides its sums, its factors and what it stages."""
MOST_RESIDENT = 8
"""Blocks that a multiprocessor is asked to hold, at most."""
CYCLES_A_US = 1755.0
"""Of the device that these numbers are fitted to: a thousand kernels of 24 products, in all these tiles, on an H100, are off by a tenth."""
BEGIN_CYCLES = 3800
"""Besides the stages: a launch, the first operands from memory, the result."""
LATENCY_CYCLES = 1220
"""What a stage takes at least."""
WAITING = 1.1
"""An instruction of one warp waits for so many more cycles; those of other warps take their place."""
STAGE_INSTRUCTIONS = 32
"""A barrier, tests, and which part of the operands a stage is."""
STAGED_INSTRUCTIONS, FLAT_INSTRUCTIONS = 2.4, 54
"""To stage an element: where neighbouring terms lie evenly spaced, and where the place of each is computed."""
READ_CYCLES = 0.84
"""Of shared memory, to read a word for each thread of a warp."""
SECOND_LAUNCH_CYCLES = 1330
"""A launch and the latency of one more read."""
ADDED_BYTES_A_CYCLE = 1470
"""What parts are written and read again at, by the cache."""
SIDE = 64
"""Rows and columns of a tile for tensor cores."""
PAIRS = 16
"""Pairs of terms that are staged at once for tensor cores: twice what one of their products sums."""
TENSOR_THREADS = 128
"""Threads of a block that multiplies on tensor cores."""
MOST_PLACES = 64
"""Values of divided iterators for which the bounds of an index are looked at one by one."""
LEAST_SIDE = 8
"""Rows, and columns, from which tiles pay: with fewer, half of the threads idle."""
LEAST_TENSOR_SIDE = 32
"""Rows, and columns, from which tiles of tensor cores pay."""
LEAST_TERMS = 32
"""Terms from which staging pays."""


@dataclass(frozen=True)
class Product:
    """``term`` = sum over ``summed`` of ``left * right``; they depend on ``rows`` and ``columns``, and on all else of the result."""

    term: Term
    summed: tuple[Iterator, ...]
    left: Term
    right: Term
    rows: tuple[Iterator, ...]
    columns: tuple[Iterator, ...]
    batch: tuple[Iterator, ...]


@dataclass(frozen=True)
class Sum:
    """How a sum is walked along: ``inner`` terms that lie evenly spaced, ``outer`` times; or, flat, all by their numbers."""

    outer: int
    inner: int
    is_flat: bool

    def stages(self, depth: int) -> int:
        return self.outer * -(-self.inner // depth)


@dataclass(frozen=True)
class Tiling:
    """A tile of ``down`` by ``across`` threads that compute so many rows and columns each, ``depth`` terms at a time, in one of ``parts``.

    A part of the sum is a number of stages.
    """

    rows_each: int
    columns_each: int
    down: int
    across: int
    depth: int
    parts: int

    @property
    def rows(self) -> int:
        return self.down * self.rows_each

    @property
    def columns(self) -> int:
        return self.across * self.columns_each

    @property
    def threads(self) -> int:
        return self.down * self.across

    @property
    def staged(self) -> int:
        """Return how many elements of a stage a thread keeps in registers."""
        return (self.rows + self.columns) * self.depth // self.threads

    @property
    def shared_bytes(self) -> int:
        return 8 * self.depth * (self.rows + self.columns + 2 * PADDING)

    @property
    def resident(self) -> int:
        """Return how many blocks a multiprocessor is to hold at once, which bounds their registers."""
        registers = self.rows_each * self.columns_each + self.rows_each + self.columns_each + self.staged + OTHER_REGISTERS
        return max(1, min(REGISTERS // (registers * self.threads), MOST_RESIDENT))

    @property
    def is_possible(self) -> bool:
        evenly = all(side * self.depth % self.threads == 0 for side in (self.rows, self.columns))
        return evenly and self.staged <= MOST_STAGED and self.shared_bytes <= MOST_SHARED_BYTES

    def cycles(self, batch: int, rows: int, columns: int, walk: Sum) -> float:
        """Return about how many cycles a product takes: a model of multiprocessors that start an instruction of four warps a cycle."""
        a, b = self.rows_each, self.columns_each
        blocks = -(-batch * -(-rows // self.rows) * -(-columns // self.columns) * self.parts // MULTIPROCESSORS)
        together = min(blocks, self.resident)
        warps = together * self.threads / 128  # of each of the four
        staging = self.staged / self.depth * (FLAT_INSTRUCTIONS if walk.is_flat else STAGED_INSTRUCTIONS)
        starting, reading = a * b + (a + b) / 4 + staging, 4 * READ_CYCLES * (a + b)
        stage = max((warps + WAITING) * (self.depth * max(starting, reading) + STAGE_INSTRUCTIONS), LATENCY_CYCLES)
        total = BEGIN_CYCLES + -(-blocks // together) * -(-walk.stages(self.depth) // self.parts) * stage
        if self.parts > 1:
            total += SECOND_LAUNCH_CYCLES + 8 * self.parts * batch * rows * columns / ADDED_BYTES_A_CYCLE
        return total


@cache
def tiling_of(batch: int, rows: int, columns: int, walk: Sum) -> Tiling:
    """Return the tiles of a product that are estimated to take the least."""
    best: tuple[float, Tiling] | None = None
    for shape, depth, parts in itertools.product(SHAPES, DEPTHS, PARTS):
        tiling = Tiling(*shape, depth, parts)
        stages = walk.stages(depth)
        if not tiling.is_possible or -(-stages // -(-stages // parts)) != parts:
            continue  # of so many parts, the last would be empty
        if parts > 1 and 4 * parts * batch * rows * columns > MOST_SCRATCH_BYTES:
            continue
        cycles = tiling.cycles(batch, rows, columns, walk)
        if best is None or cycles < best[0]:
            best = cycles, tiling
    assert best is not None
    return best[1]


def product_of(
    table: Terms, sizes: Mapping[str, int], iterators: Sequence[Iterator], term: Term, least_side: int = LEAST_SIDE
) -> Product | None:
    """Return the only reduction of a kernel as a product that is worth tiles, None where it is none."""
    factors = _factors(table, sizes, term.children[0]) if term.data[0] == Reduction.SUM else None
    if factors is None:
        return None
    left, right = factors
    inner = next((i for i in reversed(iterators) if (i in left.free) != (i in right.free)), None)
    if inner is not None and inner in left.free:
        left, right = right, left  # neighbouring threads have neighbouring columns
    rows = tuple(i for i in iterators if i in left.free and i not in right.free)
    columns = tuple(i for i in iterators if i in right.free and i not in left.free)
    batch = tuple(i for i in iterators if i not in (*rows, *columns))
    if set(batch) - term.free:
        return None  # elements that differ in these alone would compute the sum again
    enough = min(_count(rows), _count(columns)) >= least_side and _count(term.data[1]) >= LEAST_TERMS
    return Product(term, term.data[1], left, right, rows, columns, batch) if enough else None


def _factors(table: Terms, sizes: Mapping[str, int], body: Term) -> tuple[Term, Term] | None:
    """Return two factors of a summand; the conditions of a guard go to the factors that have what they depend on."""
    zero = table.number(Fraction(0))
    if body.kind == "apply" and body.data == "mul":
        left, right = body.children
        return left, right
    if body.kind != "guard" or body.children[1] is not zero:
        return None
    inner = _factors(table, sizes, body.children[0])
    if inner is None:
        return None
    shared = [tuple(c for c in body.data if iterators_of(c.left - c.right) <= factor.free) for factor in inner]
    for guarded, conditions, other in ((0, shared[1], inner[1]), (1, shared[0], inner[0])):
        if len(shared[guarded]) == len(body.data) and _is_inside(sizes, other, conditions):
            factors = [table.guard(tests, factor, zero) for tests, factor in zip(shared, inner, strict=True)]
            return factors[0], factors[1]
    return None


def _is_inside(sizes: Mapping[str, int], term: Term, conditions: Sequence[Compare]) -> bool:
    """Return whether a term reads inside of its tensors wherever its iterators stand and conditions hold."""
    for read in subterms((term,)):
        if read.kind == "read":
            for place in _places(read.data[1], conditions):
                limits = bounds(place)
                if limits is None or limits[0] < 0 or limits[1] >= sizes[read.data[0]]:
                    return False
    return True


def _places(place: Index, conditions: Sequence[Compare]) -> list[Index]:
    """Return an index for each value of the iterators that it divides or conditions compare, where these are few: bounds are exact then."""
    dividing = (index(atom) for atom in place.atoms if isinstance(atom, Floor | Modulo))
    enumerated = iterators_of(*dividing, *(c.left - c.right for c in conditions))
    if not enumerated or _count(tuple(enumerated)) > MOST_PLACES:
        return [place]
    places = []
    for values in itertools.product(*(range(known(i.low), known(i.low) + length(i)) for i in enumerated)):
        at = dict(zip(enumerated, values, strict=True))
        if undecided(Compare(substitute(c.left, at), c.operator, substitute(c.right, at)) for c in conditions) is not None:
            places.append(substitute(place, at))
    return places


def _count(iterators: Sequence[Iterator]) -> int:
    return math.prod(map(length, iterators))


@dataclass(frozen=True)
class Arrangement:
    """A product's tiles, how its sum is walked along, and the sum's iterators in that order, the inner one last."""

    tiling: Tiling
    walk: Sum
    summed: tuple[Iterator, ...]

    @property
    def outer(self) -> tuple[Iterator, ...]:
        """Return the iterators that a stage has one place of."""
        return () if self.walk.is_flat else self.summed[:-1]

    @property
    def inner(self) -> tuple[Iterator, ...]:
        """Return the iterators whose places are the terms of a stage."""
        return self.summed if self.walk.is_flat else self.summed[-1:]


def arranged(product: Product) -> Arrangement:
    """Return the arrangement of a product that is estimated to take the least."""
    sizes = _count(product.batch), _count(product.rows), _count(product.columns)
    longest = max(product.summed, key=length)
    others = tuple(i for i in product.summed if i is not longest)
    walks = [(Sum(_count(others), length(longest), is_flat=False), (*others, longest))]
    if others:
        walks.append((Sum(1, _count(product.summed), is_flat=True), product.summed))
    tiled = [Arrangement(tiling_of(*sizes, walk), walk, summed) for walk, summed in walks]
    return min(tiled, key=lambda each: each.tiling.cycles(*sizes, each.walk))


def scratch_bytes(product: Product, tiling: Tiling) -> int:
    """Return how much memory the parts of a product's sums take."""
    return 4 * tiling.parts * _count(product.batch) * _count(product.rows) * _count(product.columns)


@dataclass(frozen=True)
class _Factor:
    """One operand of a product: what a stage of it is, and where that lies."""

    name: str
    term: Term
    across: tuple[Iterator, ...]
    """The iterators of a tile's rows, or columns."""
    start: str
    """The variable of the tile's first row or column."""
    side: int
    each: int
    lane: str


def write_product(writer: Writer, product: Product, arrangement: Arrangement, store: Callable[[str], None]) -> int:
    """Write a product's kernel and return its blocks.

    ``store(text)`` stores an element of that value where all iterators are bound, or, of a sum that is cut into parts, where the variables
    ``part``, ``m`` and ``n`` say which it is.
    """
    rows, columns, batch = _count(product.rows), _count(product.columns), _count(product.batch)
    tiling, walk = arrangement.tiling, arrangement.walk
    tiles = -(-rows // tiling.rows), -(-columns // tiling.columns)
    stages = walk.stages(tiling.depth)
    factors = (
        _Factor("left", product.left, product.rows, "row", tiling.rows, tiling.rows_each, "y"),
        _Factor("right", product.right, product.columns, "column", tiling.columns, tiling.columns_each, "x"),
    )
    for factor in factors:  # while one stage is multiplied, the next one is stored
        writer.line(f"alignas(16) __shared__ float {factor.name}s[2][{tiling.depth}][{factor.side + PADDING}];")
    writer.line(f"const int row = (int)(blockIdx.x / {tiles[1]}u % {tiles[0]}u) * {tiling.rows};")
    writer.line(f"const int column = (int)(blockIdx.x % {tiles[1]}u) * {tiling.columns};")
    if tiling.parts > 1:
        width = -(-stages // tiling.parts)
        writer.line(f"const int part = (int)(blockIdx.x / {tiles[0] * tiles[1] * batch}u);")
        writer.line(f"const int begin = part * {width}, end = min(begin + {width}, {stages});")
    else:
        writer.line(f"const int begin = 0, end = {stages};")
    writer.bind_digits(product.batch, f"blockIdx.x / {tiles[0] * tiles[1]}u % {batch}u" if product.batch else "0")
    down = 4 if tiling.across >= 8 else 8  # threads of a warp lie four by eight: its reads of shared memory are few
    warps_across, lanes = tiling.across // (32 // down), 32 // down
    writer.line("const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;")
    writer.line(f"const int y = (int)(warp / {warps_across}u * {down} + lane / {lanes}u);")
    writer.line(f"const int x = (int)(warp % {warps_across}u * {lanes} + lane % {lanes}u);")
    for factor in factors:
        writer.line(f"float {factor.name}_staged[{factor.side * tiling.depth // tiling.threads}];")
    writer.line(f"float sums[{tiling.rows_each}][{tiling.columns_each}] = {{}};")
    # What is loaded for a stage is stored after the one before it was multiplied: loads take longer than that.
    with writer.braces("for (int stage = begin; stage <= end; ++stage)"):
        with writer.braces("if (stage < end)", barrier=True):
            for factor in factors:
                _load(writer, factor, arrangement)
        with writer.braces("if (stage > begin)", barrier=True):
            writer.line("const int half = (stage - 1) % 2;")
            writer.line("#pragma unroll")
            with writer.braces(f"for (int k = 0; k < {tiling.depth}; ++k)"):
                for factor in factors:
                    _read(writer, factor)
                writer.line("#pragma unroll")
                with writer.braces(f"for (int i = 0; i < {tiling.rows_each}; ++i)"):
                    writer.line("#pragma unroll")
                    writer.line(f"for (int j = 0; j < {tiling.columns_each}; ++j) sums[i][j] += left[i] * right[j];")
        with writer.braces("if (stage < end)", barrier=True):
            for factor in factors:
                _keep(writer, factor, arrangement)
        writer.line("__syncthreads();")
    writer.line("#pragma unroll")
    with writer.braces(f"for (int i = 0; i < {tiling.rows_each}; ++i)"):
        writer.line("#pragma unroll")
        with writer.braces(f"for (int j = 0; j < {tiling.columns_each}; ++j)"):
            m, n = _place("i", "y", tiling.rows_each, tiling.down), _place("j", "x", tiling.columns_each, tiling.across)
            writer.line(f"const int m = row + {m}, n = column + {n};")
            with writer.braces(f"if (m < {rows} && n < {columns})", barrier=True):
                if tiling.parts == 1:
                    writer.bind_digits(product.rows, "m")
                    writer.bind_digits(product.columns, "n")
                store("sums[i][j]")
    return batch * tiles[0] * tiles[1] * tiling.parts


def write_part(writer: Writer, product: Product, text: str) -> None:
    """Store an element of a part of a product's sums, where ``write_product`` asks for it."""
    rows, columns = _count(product.rows), _count(product.columns)
    batch = _number(writer, product.batch)
    size = _count(product.batch) * rows * columns
    writer.line(f"{SCRATCH}[part * {size} + ({batch}) * {rows * columns} + m * {columns} + n] = {text};")


def add_parts(writer: Writer, product: Product, tiling: Tiling) -> str:
    """Write the sum of an element's parts, where all iterators are bound, and return its name."""
    rows, columns = _count(product.rows), _count(product.columns)
    size = _count(product.batch) * rows * columns
    batch, m, n = (_number(writer, each) for each in (product.batch, product.rows, product.columns))
    total, place = writer.name("sum"), writer.name("place")
    writer.line(f"const int {place} = ({batch}) * {rows * columns} + ({m}) * {columns} + {n};")
    writer.line(f"float {total} = 0.0f;")
    writer.line("#pragma unroll")
    writer.line(f"for (int part = 0; part < {tiling.parts}; ++part) {total} += {SCRATCH}[part * {size} + {place}];")
    return total


def _number(writer: Writer, iterators: Sequence[Iterator]) -> str:
    """Return the number whose digits iterators are: what ``bind_digits`` binds them to."""
    text = "0"
    for iterator in iterators:
        digit = plus(iterator.name, -known(iterator.low))
        text = digit if text == "0" else f"({text}) * {length(iterator)} + {digit}"
    return text


def _vector(each: int) -> int:
    """Return how many neighbouring rows, or columns, a thread reads at once."""
    return min(each, 4)


def _place(number: str, lane: str, each: int, lanes: int) -> str:
    """Return which row, or column, of the tile is a thread's ``number``-th."""
    vector = _vector(each)
    return f"{number} / {vector} * {lanes * vector} + {lane} * {vector} + {number} % {vector}"


def _read(writer: Writer, factor: _Factor) -> None:
    """Read a thread's rows or columns of one term from shared memory."""
    vector, lanes = _vector(factor.each), factor.side // factor.each
    writer.line(f"float {factor.name}[{factor.each}];")
    for k in range(0, factor.each, vector):
        place = f"{factor.name}s[half][k][{k * lanes} + {factor.lane} * {vector}]"
        if vector == 1:
            writer.line(f"{factor.name}[{k}] = {place};")
            continue
        at_once = writer.name("read")
        writer.line(f"const float{vector} {at_once} = *(const float{vector}*)&{place};")
        for component, element in zip("xyzw", range(k, k + vector), strict=False):
            writer.line(f"{factor.name}[{element}] = {at_once}.{component};")


def _staged_at(factor: _Factor, arrangement: Arrangement) -> str:
    """Return the statement that says which term and which row or column a thread stages: neighbours what is contiguous."""
    tiling, by_terms = arrangement.tiling, _by_terms(factor.term, factor.across, arrangement.summed)
    inner, outer = ("k", "m") if by_terms else ("m", "k")
    size = tiling.depth if by_terms else factor.side
    place = f"threadIdx.x + j * {tiling.threads}u"
    return f"const int {inner} = (int)(({place}) % {size}u), {outer} = (int)(({place}) / {size}u);"


def _load(writer: Writer, factor: _Factor, arrangement: Arrangement) -> None:
    """Compute a factor for a tile's rows or columns and a stage of the sum."""
    tiling, walk = arrangement.tiling, arrangement.walk
    extent, count = _count(factor.across), factor.side * tiling.depth // tiling.threads
    chunks = -(-walk.inner // tiling.depth)
    tests = [f"{factor.start} + m < {extent}"] if extent % factor.side else []
    tests += [f"term < {walk.inner}"] if walk.inner % tiling.depth else []
    with writer.braces(""):
        if arrangement.outer:
            writer.bind_digits(arrangement.outer, f"(unsigned)stage / {chunks}u")
            writer.line(f"const int first = (int)((unsigned)stage % {chunks}u) * {tiling.depth};")
        else:
            writer.line(f"const int first = stage * {tiling.depth};")
        writer.line("#pragma unroll")
        with writer.braces(f"for (int j = 0; j < {count}; ++j)"):
            writer.line(_staged_at(factor, arrangement))
            writer.line("const int term = first + k;")
            writer.line("float staged = 0.0f;")
            with writer.braces(f"if ({' && '.join(tests)})" if tests else "", barrier=True):
                writer.line(f"const int across = {factor.start} + m;")
                writer.bind_digits(factor.across, "across")
                writer.bind_digits(arrangement.inner, "term")
                writer.line(f"staged = {writer.value(factor.term).text};")
            writer.line(f"{factor.name}_staged[j] = staged;")


def _keep(writer: Writer, factor: _Factor, arrangement: Arrangement) -> None:
    """Store what a thread has loaded where all threads of the block read it."""
    tiling = arrangement.tiling
    writer.line("#pragma unroll")
    with writer.braces(f"for (int j = 0; j < {factor.side * tiling.depth // tiling.threads}; ++j)"):
        writer.line(_staged_at(factor, arrangement))
        writer.line(f"{factor.name}s[stage % 2][k][m] = {factor.name}_staged[j];")


def write_tensor_product(precision: str, writer: Writer, product: Product, store: Callable[[], None]) -> tuple[int, int]:
    """Write a product's kernel whose operands tensor cores multiply, rounded to a precision as they are staged; sums are float32.

    Four warps compute a quarter of a tile each, by products of 16 x 16 and 16 x 8; a pair of terms lies in one word.
    """
    kind = TENSOR_TYPES[precision]
    rows, columns, terms = _count(product.rows), _count(product.columns), _count(product.summed)
    tiles = -(-rows // SIDE), -(-columns // SIDE)
    for name in ("lefts", "rights"):
        writer.line(f"__shared__ unsigned {name}[{SIDE}][{PAIRS + PADDING}];")
    writer.line(f"const int row = (int)(blockIdx.x / {tiles[1]}u % {tiles[0]}u) * {SIDE};")
    writer.line(f"const int column = (int)(blockIdx.x % {tiles[1]}u) * {SIDE};")
    writer.bind_digits(product.batch, f"blockIdx.x / {tiles[0] * tiles[1]}u" if product.batch else "0")
    writer.line("const int warp = threadIdx.x / 32, y = threadIdx.x % 32 / 4, x = threadIdx.x % 4;")
    writer.line(f"const int top = warp / 2 * {SIDE // 2}, side = warp % 2 * {SIDE // 2};")
    writer.line("float sums[2][4][4] = {};")
    with writer.braces(f"for (int first = 0; first < {terms}; first += {2 * PAIRS})"):
        _stage_pairs(writer, kind, "lefts", product.left, product.rows, "row", product.summed)
        _stage_pairs(writer, kind, "rights", product.right, product.columns, "column", product.summed)
        writer.line("__syncthreads();")
        with writer.braces(f"for (int k = 0; k < {PAIRS}; k += 8)"):
            writer.line("unsigned left[2][4], right[4][2];")
            each, half = "for (int i = 0; i < 2; ++i)", "for (int h = 0; h < 4; ++h)"
            writer.line(f"{each} {half} left[i][h] = lefts[top + 16 * i + y + h % 2 * 8][k + x + h / 2 * 4];")
            writer.line("for (int j = 0; j < 4; ++j) for (int h = 0; h < 2; ++h) right[j][h] = rights[side + 8 * j + y][k + x + 4 * h];")
            writer.line(f"{each} for (int j = 0; j < 4; ++j) einsat_mma_{kind}(sums[i][j], left[i], right[j]);")
        writer.line("__syncthreads();")
    with ExitStack() as loops:
        for name, count in (("i", 2), ("j", 4), ("h", 4)):
            writer.line("#pragma unroll")
            loops.enter_context(writer.braces(f"for (int {name} = 0; {name} < {count}; ++{name})"))
        writer.line("const int m = row + top + 16 * i + y + h / 2 * 8, n = column + side + 8 * j + 2 * x + h % 2;")
        with writer.braces(f"if (m < {rows} && n < {columns})", barrier=True):
            writer.bind_digits(product.rows, "m")
            writer.bind_digits(product.columns, "n")
            writer.give(product.term, Value("sums[i][j][h]", "float"))
            store()
    return _count(product.batch) * tiles[0] * tiles[1], TENSOR_THREADS


def _stage_pairs(
    writer: Writer, kind: str, name: str, factor: Term, across: Sequence[Iterator], start: str, summed: Sequence[Iterator]
) -> None:
    """Compute a factor as ``_stage`` does, two terms side by side in one word."""
    extent, terms = _count(across), _count(summed)
    with writer.braces(f"for (int place = threadIdx.x; place < {SIDE * PAIRS}; place += {TENSOR_THREADS})"):
        pair, m = (f"place % {PAIRS}", f"place / {PAIRS}") if _by_terms(factor, across, summed) else (f"place / {SIDE}", f"place % {SIDE}")
        writer.line(f"const int pair = {pair}, m = {m};")
        writer.line("float staged[2] = {0.0f, 0.0f};")
        writer.line("#pragma unroll")
        with (
            writer.braces("for (int h = 0; h < 2; ++h)"),
            writer.braces(f"if ({start} + m < {extent} && first + 2 * pair + h < {terms})", barrier=True),
        ):
            writer.line(f"const int across = {start} + m, term = first + 2 * pair + h;")
            writer.bind_digits(across, "across")
            writer.bind_digits(summed, "term")
            writer.line(f"staged[h] = {writer.value(factor).text};")
        writer.line(f"{name}[m][pair] = einsat_pair_{kind}(staged[0], staged[1]);")


def _by_terms(factor: Term, across: Sequence[Iterator], summed: Sequence[Iterator]) -> bool:
    """Return whether a factor's operands are contiguous along the terms rather than along the tile."""
    reads = [term.data[1] for term in subterms((factor,)) if term.kind == "read"]
    return _contiguous(reads, summed[-1]) > _contiguous(reads, across[-1])


def _contiguous(reads: Sequence[Index], iterator: Iterator) -> int:
    return sum(coefficient(read, iterator) in (1, -1) for read in reads)
