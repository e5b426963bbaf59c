"""Sums of products, in tiles: what the rows and the columns of a tile need is staged in shared memory, block by block of the sum.

A matrix product is one, and so is a convolution, whatever computes its operands (prologue) and its result (epilogue).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction

from egraph.tensor.expr.index import Index, Iterator, bounds, length
from egraph.tensor.expr.laws import coefficient, iterators_of
from egraph.tensor.expr.scope import Reduction
from lower.eoperator.terms import Term, Terms, subterms
from lower.targets.cuda.generator.functions import TENSOR_TYPES
from lower.targets.cuda.generator.writer import Value, Writer

SIDE = 64
"""Rows and columns of a tile."""
LANES = 16
"""Threads along each side of a tile; a thread computes every sixteenth row and column of it."""
EACH = SIDE // LANES
DEPTH = 16
"""Terms of the sum that are staged at once."""
PADDING = 4
"""Elements between the stages' rows, so that a stage's columns lie in different banks."""
PAIRS = 16
"""Pairs of terms that are staged at once for tensor cores: twice what one of their products sums."""
TENSOR_THREADS = 128
"""Threads of a block that multiplies on tensor cores."""
LEAST_SIDE = 32
"""Rows, and columns, from which tiles pay: with fewer, half of the threads idle."""
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


def product_of(table: Terms, sizes: Mapping[str, int], iterators: Sequence[Iterator], term: Term) -> Product | None:
    """Return the only reduction of a kernel as a product that is worth tiles, None where it is none."""
    factors = _factors(table, sizes, term.children[0]) if term.data[0] == Reduction.SUM else None
    if factors is None:
        return None
    left, right = factors
    if iterators and iterators[-1] in left.free and iterators[-1] not in right.free:
        left, right = right, left  # neighbouring threads have neighbouring columns
    rows = tuple(i for i in iterators if i in left.free and i not in right.free)
    columns = tuple(i for i in iterators if i in right.free and i not in left.free)
    batch = tuple(i for i in iterators if i not in (*rows, *columns))
    if set(batch) - term.free:
        return None  # elements that differ in these alone would compute the sum again
    enough = min(_count(rows), _count(columns)) >= LEAST_SIDE and _count(term.data[1]) >= LEAST_TERMS
    return Product(term, term.data[1], left, right, rows, columns, batch) if enough else None


def _factors(table: Terms, sizes: Mapping[str, int], body: Term) -> tuple[Term, Term] | None:
    """Return two factors of a summand; the conditions of a guard go to the factor that has what they depend on."""
    zero = table.number(Fraction(0))
    if body.kind == "apply" and body.data == "mul":
        left, right = body.children
        return left, right
    if body.kind != "guard" or body.children[1] is not zero:
        return None
    inner = _factors(table, sizes, body.children[0])
    if inner is None:
        return None
    needed = frozenset().union(*(iterators_of(c.left - c.right) for c in body.data))
    for guarded, other in (inner, inner[::-1]):
        if needed <= guarded.free and _is_inside(sizes, other):
            return table.guard(body.data, guarded, zero), other
    return None


def _is_inside(sizes: Mapping[str, int], term: Term) -> bool:
    """Return whether a term reads inside of its tensors wherever its iterators stand."""
    for read in subterms((term,)):
        if read.kind == "read":
            limits = bounds(read.data[1])
            if limits is None or limits[0] < 0 or limits[1] >= sizes[read.data[0]]:
                return False
    return True


def _count(iterators: Sequence[Iterator]) -> int:
    return math.prod(map(length, iterators))


def write_product(writer: Writer, product: Product, store: Callable[[], None]) -> tuple[int, int]:
    """Write a product's kernel; ``store`` stores an element where all iterators are bound. Return its blocks and their threads."""
    rows, columns, terms = _count(product.rows), _count(product.columns), _count(product.summed)
    tiles = -(-rows // SIDE), -(-columns // SIDE)
    writer.line(f"__shared__ float lefts[{DEPTH}][{SIDE + PADDING}];")
    writer.line(f"__shared__ float rights[{DEPTH}][{SIDE + PADDING}];")
    writer.line(f"const int row = (int)(blockIdx.x / {tiles[1]}u % {tiles[0]}u) * {SIDE};")
    writer.line(f"const int column = (int)(blockIdx.x % {tiles[1]}u) * {SIDE};")
    writer.bind_digits(product.batch, f"blockIdx.x / {tiles[0] * tiles[1]}u" if product.batch else "0")
    writer.line(f"const int y = threadIdx.x / {LANES}, x = threadIdx.x % {LANES};")
    writer.line(f"float sums[{EACH}][{EACH}] = {{}};")
    with writer.braces(f"for (int first = 0; first < {terms}; first += {DEPTH})"):
        _stage(writer, "lefts", product.left, product.rows, "row", product.summed)
        _stage(writer, "rights", product.right, product.columns, "column", product.summed)
        writer.line("__syncthreads();")
        with writer.braces(f"for (int k = 0; k < {DEPTH}; ++k)"):
            writer.line(f"float left[{EACH}], right[{EACH}];")
            each = f"for (int i = 0; i < {EACH}; ++i)"
            writer.line(f"{each} left[i] = lefts[k][y + i * {LANES}];")
            writer.line(f"{each} right[i] = rights[k][x + i * {LANES}];")
            writer.line(f"{each} for (int j = 0; j < {EACH}; ++j) sums[i][j] += left[i] * right[j];")
        writer.line("__syncthreads();")
    writer.line("#pragma unroll")
    with writer.braces(f"for (int i = 0; i < {EACH}; ++i)"):
        writer.line("#pragma unroll")
        with writer.braces(f"for (int j = 0; j < {EACH}; ++j)"):
            writer.line(f"const int m = row + y + i * {LANES}, n = column + x + j * {LANES};")
            with writer.braces(f"if (m < {rows} && n < {columns})", barrier=True):
                writer.bind_digits(product.rows, "m")
                writer.bind_digits(product.columns, "n")
                writer.give(product.term, Value("sums[i][j]", "float"))
                store()
    return _count(product.batch) * tiles[0] * tiles[1], LANES * LANES


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


def _stage(writer: Writer, name: str, factor: Term, across: Sequence[Iterator], start: str, summed: Sequence[Iterator]) -> None:
    """Compute a factor for a tile's rows or columns and a stretch of the sum, neighbouring threads along what is contiguous."""
    extent, terms = _count(across), _count(summed)
    with writer.braces(f"for (int place = threadIdx.x; place < {SIDE * DEPTH}; place += {LANES * LANES})"):
        k, m = (f"place % {DEPTH}", f"place / {DEPTH}") if _by_terms(factor, across, summed) else (f"place / {SIDE}", f"place % {SIDE}")
        writer.line(f"const int k = {k}, m = {m};")
        writer.line("float staged = 0.0f;")
        with writer.braces(f"if ({start} + m < {extent} && first + k < {terms})", barrier=True):
            writer.line(f"const int across = {start} + m, term = first + k;")
            writer.bind_digits(across, "across")
            writer.bind_digits(summed, "term")
            value = writer.value(factor)
            writer.line(f"staged = {value.text};")
        writer.line(f"{name}[k][m] = staged;")


def _contiguous(reads: Sequence[Index], iterator: Iterator) -> int:
    return sum(coefficient(read, iterator) in (1, -1) for read in reads)
