"""Choose how a kernel's work is divided among threads, and write its body.

*Elements*: a thread an element, neighbouring threads neighbouring elements; windows and short reductions run within a thread.
*Tiles of tables*: a thread a tile of elements that are computed together. *Transposes*: squares through shared memory, so that
reads and writes are both contiguous. *Rows*: the threads of a warp, or of a block, share a row's reductions and then its elements.
*Columns*: 32 neighbouring columns lie side by side, and the block's rows of threads share their reductions. *Products*: tiles of
sums of products (``products``).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from egraph.errors import LowerError
from egraph.tensor import PLAIN
from egraph.tensor.expr.index import Index, Iterator, known, length
from egraph.tensor.expr.laws import coefficient
from egraph.tensor.expr.scope import Reduction
from lower.eoperator.phases import split_phases
from lower.eoperator.request import Kernel
from lower.eoperator.tabled import has_tables, spelled_out, tabled_digits, tile, unrolled
from lower.eoperator.terms import Term, indices_of, subterms
from lower.eoperator.transforms import merge, simplify_reductions, split_digits, with_reciprocals
from lower.targets.cuda.generator.functions import TYPES
from lower.targets.cuda.generator.kernel import OUTPUT
from lower.targets.cuda.generator.products import (
    LEAST_SIDE,
    LEAST_TENSOR_SIDE,
    Product,
    add_parts,
    arranged,
    product_of,
    scratch_bytes,
    write_part,
    write_product,
    write_tensor_product,
)  # fmt: skip
from lower.targets.cuda.generator.writer import STRETCH, Value, Writer, plus

WARP = 32
THREADS = 256
"""Threads of a block where they share nothing."""
TILE_THREADS = 128
"""Threads of a block whose threads compute tiles: each of them needs many registers."""
SQUARE = 32
"""Rows and columns of the squares that are transposed."""
SQUARE_ROWS = 8
"""Rows of threads that transpose a square together."""
LEAST_TRANSPOSED = 8
"""Extent of both axes from which squares pay: of less, most threads would idle."""
SHARED_BYTES = 48 * 1024
"""Shared memory that a block has without asking for more."""
MOST_SQUARES = SHARED_BYTES // (SQUARE * (SQUARE + 1) * 8)
"""Squares that a block holds, at most, of elements of eight bytes."""
LEAST_SHARED_TERMS = 32
"""Terms of a reduction from which threads share it."""
LEAST_REUSED_TERMS = 4
"""Terms from which threads share a reduction that several elements need."""
WARP_TERMS = 1024
"""The most terms that one warp reduces; a longer row takes a block."""
LANE_TERMS, LEAST_LANES = 8, 4
"""Terms that a lane reduces, at least, of rows that are too short for a warp; and lanes that share a row, at least."""
WARPS = 4
"""Warps of a block, each with a row of its own."""
TENSOR_BLOCKS = 2
"""Blocks of products on tensor cores that a multiprocessor must hold. Left alone, ptxas once took 40 registers and spilled."""
ENOUGH_THREADS = 1 << 16
"""Threads that keep a device busy: reductions of so many columns are not shared, and rows of fewer threads in all are shared by more."""
LEAST_LANE_TERMS = 4
"""Terms that a thread keeps, at least, of a row that more threads share because rows are few: their loads are under way together."""
MOST_ROW_THREADS = 256
"""Threads that share a row because rows are few, at most: each 32 of them add a result to what is reduced one by one."""
UNROLLED = 8
"""Turns of a loop that is written out, at most, so that what it loads is under way together."""


@dataclass(frozen=True)
class Shape:
    """How many blocks of how many threads, by x and y."""

    blocks: int
    block: tuple[int, int]
    resident: int = 0
    """Blocks that a multiprocessor must be able to hold, which bounds their registers; 0: the compiler decides."""

    @property
    def bounds(self) -> str:
        """Return the arguments of ``__launch_bounds__``."""
        return f"{self.block[0] * self.block[1]}" + (f", {self.resident}" if self.resident else "")


@dataclass(frozen=True)
class Parts:
    """A launch before the last one, which writes parts of sums to memory of ``scratch_bytes`` bytes."""

    writer: Writer
    shape: Shape
    scratch_bytes: int


class Scheduler:
    """Writes one kernel; afterwards ``shape`` and the writer's lines are complete."""

    def __init__(self, kernel: Kernel, writer: Writer, precision: str = PLAIN) -> None:
        self.table, self.writer, self.dtype, self.precision = kernel.table, writer, kernel.output_dtype, precision
        self.parts: Parts | None = None

    def write(self, kernel: Kernel) -> Shape:
        """Write the body that stores the kernel's root at its offset for all values of its iterators."""
        iterators, root, offset = split_digits(self.table, kernel.iterators, kernel.root, kernel.offset)
        if has_tables(root) and self.precision == PLAIN:
            shape = self._tables(iterators, root, offset)
            if shape is not None:
                return shape
        iterators, root, offset = self._arranged(iterators, root, offset)
        product = self._product_of(kernel, iterators, root)
        if product is not None and self.precision == PLAIN:
            return self._product(iterators, root, offset, product)
        if product is not None:
            blocks, threads = write_tensor_product(self.precision, self.writer, product, lambda: self._store(root, offset))
            return Shape(blocks, (threads, 1), TENSOR_BLOCKS)
        if self.precision != PLAIN:
            raise LowerError(f"nothing is multiplied in {self.precision}: this is no product, or too small a one")
        shared = shared_reductions(iterators, root)
        if shared:
            return self._shared(iterators, root, offset, shared)
        transposed = transposed_reads(iterators, root, offset)
        if transposed is not None:
            return self._squares(iterators, root, offset, *transposed)
        return self._elements(iterators, root, offset)

    def product(self, kernel: Kernel) -> Product | None:
        """Return the product that a kernel is written as, None where it is none."""
        iterators, root, _ = self._arranged(*split_digits(self.table, kernel.iterators, kernel.root, kernel.offset))
        return self._product_of(kernel, iterators, root)

    def _arranged(self, iterators: Sequence[Iterator], root: Term, offset: Index) -> tuple[tuple[Iterator, ...], Term, Index]:
        """Return an expression without tables, whose reductions are narrowed and whose iterators are merged where they can be."""
        iterators, root, offset = split_phases(self.table, tuple(iterators), spelled_out(self.table, root), offset)
        root = with_reciprocals(self.table, simplify_reductions(self.table, root))
        iterators, replace = merge(self.table, iterators, [offset, *indices_of((root,))])
        if replace:
            root, offset = self.table.substitute(root, replace), self.table.index(offset, replace)
        return tuple(iterators), root, offset

    def _product_of(self, kernel: Kernel, iterators: Sequence[Iterator], root: Term) -> Product | None:
        reduces = [term for term in subterms((root,)) if term.kind == "reduce"]
        if len(reduces) != 1 or reduces[0] not in unconditional(root):
            return None
        least_side = LEAST_SIDE if self.precision == PLAIN else LEAST_TENSOR_SIDE
        return product_of(self.table, kernel.sizes, iterators, reduces[0], least_side)

    def _store(self, root: Term, offset: Index) -> None:
        kind = TYPES[self.dtype]
        value = self.writer.value(root, "bool" if self.dtype == "bool" else kind)
        text = value.text if value.kind == kind else f"({kind}){value.text}"
        self.writer.line(f"{OUTPUT}[{self.writer.index(offset)}] = {text};")

    # Tiles of products

    def _product(self, iterators: Sequence[Iterator], root: Term, offset: Index, product: Product) -> Shape:
        """Write a product, or, where its sums are cut into parts, these as a launch of its own, and then their sum."""
        arrangement, writer = arranged(product), self.writer
        tiling = arrangement.tiling

        def store(text: str) -> None:
            writer.give(product.term, Value(text, "float"))
            self._store(root, offset)

        if tiling.parts == 1:
            return Shape(write_product(writer, product, arrangement, store), (tiling.threads, 1), tiling.resident)
        first = Writer(writer.parameters, writer.dtypes)
        blocks = write_product(first, product, arrangement, lambda text: write_part(first, product, text))
        self.parts = Parts(first, Shape(blocks, (tiling.threads, 1), tiling.resident), scratch_bytes(product, tiling))
        shape = self._flat(iterators, THREADS)
        store(add_parts(writer, product, tiling))
        return shape

    # A thread an element

    def _elements(self, iterators: Sequence[Iterator], root: Term, offset: Index) -> Shape:
        shape = self._flat(iterators, THREADS)
        self._store(root, offset)
        return shape

    def _flat(self, iterators: Sequence[Iterator], threads: int) -> Shape:
        """Bind the iterators to a thread's number."""
        count = math.prod(map(length, iterators))
        threads = min(threads, -(-count // WARP) * WARP)
        self.writer.line(f"const unsigned flat = blockIdx.x * {threads}u + threadIdx.x;")
        if count % threads:
            self.writer.line(f"if (flat >= {count}u) return;")
        self.writer.bind_digits(iterators, "flat")
        return Shape(-(-count // threads), (threads, 1))

    # A thread a tile

    def _tables(self, iterators: tuple[Iterator, ...], root: Term, offset: Index) -> Shape | None:
        """Write a kernel whose tables can all be unrolled; None where they cannot."""
        table, writer = self.table, self.writer
        iterators, replace, cuts = tabled_digits(table, iterators, root)
        if replace:
            root, offset = table.substitute(root, replace), table.index(offset, replace)
        chosen = unrolled(iterators, root)
        if chosen is None:
            return None
        contracted = tile(table, chosen, root, offset, cuts)
        shape = self._flat([i for i in iterators if i not in chosen], TILE_THREADS)
        for stage in contracted.stages:
            writer.value(stage)
        for store in contracted.stores:
            if not store.conditions:
                self._store(store.root, store.offset)
                continue
            for part in store.parts:
                writer.value(part)
            with writer.braces(f"if ({writer.condition(store.conditions)})", barrier=True):
                self._store(store.root, store.offset)
        return shape

    # Squares through shared memory

    def _squares(self, iterators: Sequence[Iterator], root: Term, offset: Index, across: Iterator, reads: Sequence[Term]) -> Shape:
        """Read along ``across``, write along the last iterator."""
        writer, along = self.writer, iterators[-1]
        rows, columns = -(-length(across) // SQUARE), -(-length(along) // SQUARE)
        outer = [i for i in iterators[:-1] if i is not across]
        names = [writer.name("square") for _ in reads]
        for name, read in zip(names, reads, strict=True):
            writer.line(f"__shared__ {TYPES[writer.dtypes[read.data[0]]]} {name}[{SQUARE}][{SQUARE + 1}];")
        writer.line(f"const int row = (int)(blockIdx.x / {columns}u % {rows}u) * {SQUARE};")
        writer.line(f"const int column = (int)(blockIdx.x % {columns}u) * {SQUARE};")
        writer.bind_digits(outer, f"(blockIdx.x / {columns * rows}u)")
        ends = {i: known(i.low) + length(i) for i in (across, along)}
        with writer.braces(f"for (int j = threadIdx.y; j < {SQUARE}; j += {SQUARE_ROWS})"):
            writer.bind(across, plus("row + (int)threadIdx.x", known(across.low)))
            writer.bind(along, plus("column + j", known(along.low)))
            with writer.braces(f"if ({across.name} < {ends[across]} && {along.name} < {ends[along]})", barrier=True):
                for name, read in zip(names, reads, strict=True):
                    writer.line(f"{name}[j][threadIdx.x] = {writer.load(*read.data)};")
        writer.line("__syncthreads();")
        with writer.braces(f"for (int j = threadIdx.y; j < {SQUARE}; j += {SQUARE_ROWS})"):
            writer.bind(across, plus("row + j", known(across.low)))
            writer.bind(along, plus("column + (int)threadIdx.x", known(along.low)))
            with writer.braces(f"if ({across.name} < {ends[across]} && {along.name} < {ends[along]})", barrier=True):
                for name, read in zip(names, reads, strict=True):
                    element = f"{name}[threadIdx.x][j]"
                    is_bool = writer.dtypes[read.data[0]] == "bool"
                    writer.give(read, Value(f"({element} != 0)", "bool") if is_bool else Value(element, TYPES[writer.dtypes[read.data[0]]]))
                self._store(root, offset)
        return Shape(math.prod(map(length, outer)) * rows * columns, (SQUARE, SQUARE_ROWS))

    # Rows and columns, whose reductions threads share

    def _shared(self, iterators: Sequence[Iterator], root: Term, offset: Index, reduces: Sequence[Term]) -> Shape:
        """Compute reductions by threads together, then what needs them."""
        rows = [i for i in iterators if any(i in term.free for term in reduces)]
        inner = [i for i in iterators if i not in rows]
        works = [math.prod(map(length, term.data[1])) for term in reduces]
        work = max([*works, math.prod(map(length, inner))])
        vector = iterators[-1] if iterators and iterators[-1] in rows else None
        if vector is not None and _side_by_side(reduces, vector):
            team = Team.by_columns(rows, work, len(reduces))
        else:
            team = Team.by_rows(rows, work)
        writer = self.writer
        count = math.prod(map(length, rows))
        if team.lanes == 1:
            writer.line("const unsigned row = blockIdx.x;")
        else:
            lane = "threadIdx.x" if team.by_column else "threadIdx.y"
            writer.line(f"const unsigned own = blockIdx.x * {team.lanes}u + {lane};")
            if count % team.lanes:  # threads without a row compute the last one again, since all must reach the barrier, and store nothing
                writer.line(f"const unsigned row = min(own, {count - 1}u);")
            else:
                writer.line("const unsigned row = own;")
        writer.bind_digits(rows, "row")
        writer.line(f"const int rank = threadIdx.{'y' if team.by_column else 'x'};")
        for term in reduces:
            self._cooperate(term, team)
        tests = [f"own < {count}u"] if team.lanes > 1 and count % team.lanes else []
        if not inner:
            tests.append("rank == 0")
        with writer.braces(f"if ({' && '.join(tests)})" if tests else "", barrier=True):
            if not inner:
                self._store(root, offset)
            else:
                size = math.prod(map(length, inner))
                with _turns(writer, "place", size, team.size):
                    writer.bind_digits(inner, "place")
                    self._store(root, offset)
        return Shape(-(-count // team.lanes), team.block)

    def _cooperate(self, term: Term, team: Team) -> None:
        """Reduce: each thread every so many terms, then all their results."""
        writer = self.writer
        reduction, iterators = term.data
        order = iterators if team.by_column else _contiguous_last(iterators, term.children[0])
        size = math.prod(map(length, order))
        total = writer.accumulator(reduction)
        step = team.size
        name = writer.name("term")
        stretched = reduction == Reduction.SUM and size >= 2 * STRETCH * step

        def accumulate(into: str) -> None:
            writer.bind_digits(order, name)
            writer.accumulate(reduction, into, writer.value(term.children[0]).text)

        if stretched:
            start = writer.name("first")
            with writer.braces(f"for (int {start} = rank; {start} < {size}; {start} += {STRETCH * step})"):
                near = writer.accumulator(reduction)
                last = f"min({start} + {STRETCH * step}, {size})"
                with writer.braces(f"for (int {name} = {start}; {name} < {last}; {name} += {step})"):
                    accumulate(near)
                writer.accumulate(reduction, total, near)
        else:
            with _turns(writer, name, size, step):
                accumulate(total)
        if not team.by_column:
            with writer.braces(f"for (int step = {min(WARP, team.size) // 2}; step > 0; step /= 2)"):
                writer.accumulate(reduction, total, f"__shfl_xor_sync(0xffffffffu, {total}, step)")
        if team.parts > 1:
            self._combine(reduction, total, team)
        writer.give(term, Value(total, "float"))

    def _combine(self, reduction: Reduction, total: str, team: Team) -> None:
        """Reduce the results of the block's warps, or of its rows of threads."""
        writer = self.writer
        parts = writer.name("parts")
        if team.by_column:
            writer.line(f"__shared__ float {parts}[{team.parts}][{WARP}];")
            writer.line(f"{parts}[threadIdx.y][threadIdx.x] = {total};")
            element = "[threadIdx.x]"
        else:
            writer.line(f"__shared__ float {parts}[{team.parts}];")
            writer.line(f"if (threadIdx.x % {WARP} == 0) {parts}[threadIdx.x / {WARP}] = {total};")
            element = ""
        writer.line("__syncthreads();")
        writer.line(f"{total} = {parts}[0]{element};")
        with writer.braces(f"for (int part = 1; part < {team.parts}; ++part)"):
            writer.accumulate(reduction, total, f"{parts}[part]{element}")


@dataclass(frozen=True)
class Team:
    """Threads that share a row: ``size`` of them; a block holds ``lanes`` rows; ``parts`` results meet in shared memory."""

    size: int
    lanes: int
    parts: int
    by_column: bool

    @property
    def block(self) -> tuple[int, int]:
        return (self.lanes, self.size) if self.by_column else (self.size, self.lanes)

    @classmethod
    def by_rows(cls, rows: Sequence[Iterator], work: int) -> Team:
        """Give a row to a warp, a long one to a block, a short one to a part of a warp: lanes need terms to load at once.

        Where rows are so few that a device would idle, more threads share each of them.
        """
        count = math.prod(map(length, rows))
        if work < LANE_TERMS * WARP:
            size = max(LEAST_LANES, 1 << (-(-work // LANE_TERMS) - 1).bit_length())
        elif work <= WARP_TERMS:
            size = WARP
        else:
            size = 128 if work <= 4 * WARP_TERMS else 256 if work <= 16 * WARP_TERMS or count >= 512 else 1024
        size = max(size, min(_power_of_two(ENOUGH_THREADS // count), _power_of_two(work // LEAST_LANE_TERMS), MOST_ROW_THREADS))
        if size > WARP:
            return cls(size, 1, size // WARP, False)
        lanes = WARPS * WARP // size
        return cls(size, min(lanes, count) if size == WARP else lanes, 1, False)

    @classmethod
    def by_columns(cls, rows: Sequence[Iterator], work: int, reductions: int) -> Team:
        """Give 32 columns to a block, of which each reduction needs shared memory."""
        few = math.prod(map(length, rows)) * SQUARE_ROWS < ENOUGH_THREADS
        fits = reductions * WARP * WARP * 4 <= SHARED_BYTES
        size = WARP if few and fits and work >= 8 * WARP else SQUARE_ROWS if work >= 2 * SQUARE_ROWS else 4
        return cls(size, WARP, size, True)


def _power_of_two(number: int) -> int:
    """Return the largest power of two up to a number, one of what is less."""
    return 1 << max(0, number.bit_length() - 1)


@contextmanager
def _turns(writer: Writer, name: str, size: int, step: int) -> Generator[None]:
    """Write a loop over a thread's share of numbers below ``size``, every ``step`` of them; a short one is written out."""
    turns = -(-size // step)
    if turns > UNROLLED:
        with writer.braces(f"for (int {name} = rank; {name} < {size}; {name} += {step})"):
            yield
        return
    turn = writer.name("turn")
    with writer.braces(f"for (int {turn} = 0; {turn} < {turns}; ++{turn})", pragma="unroll"):
        writer.line(f"const int {name} = rank + {turn} * {step};")
        is_within = f"{turn} < {turns - 1} || {name} < {size}" if turns > 1 else f"{name} < {size}"
        with writer.braces(f"if ({is_within})") if size % step else nullcontext():
            yield


def unconditional(root: Term) -> list[Term]:
    """Return the terms that are computed whatever guards say, operands first."""
    reached: dict[Term, None] = {}
    stack = [root]
    while stack:
        term = stack.pop()
        if term not in reached:
            reached[term] = None
            if term.kind != "guard":
                stack.extend(term.children)
    return [term for term in subterms((root,)) if term in reached]


def shared_reductions(iterators: Sequence[Iterator], root: Term) -> list[Term]:
    """Return the reductions that threads compute together, operands first: all that are long, or that several elements need."""
    outer = frozenset(iterators)
    shared = [term for term in unconditional(root) if term.kind == "reduce" and term.free <= outer]
    if not shared:
        return []
    shared = [term for term in shared if not _is_by_place(term, shared, iterators)]
    rows = frozenset().union(*(term.free for term in shared))
    least = LEAST_SHARED_TERMS if rows == outer else LEAST_REUSED_TERMS
    if not any(math.prod(map(length, term.data[1])) >= least for term in shared):
        return []
    vector = iterators[-1] if iterators else None
    outputs = math.prod(length(i) for i in iterators if i in rows)
    if rows == outer and vector is not None and outputs >= ENOUGH_THREADS and _side_by_side(shared, vector):
        return []
    return shared


def _is_by_place(term: Term, shared: Sequence[Term], iterators: Sequence[Iterator]) -> bool:
    """Return whether a reduction is one of each place of a row whose others need it once, as softmax in a product with values does.

    A lane then computes a place by itself, beside its neighbours' places, and the row's other reductions are not computed for each.
    """
    vector = iterators[-1] if iterators else None
    others = [other for other in shared if vector not in other.free]
    if vector is None or vector not in term.free or not others:
        return False
    rows = math.prod(length(i) for i in iterators if any(i in other.free for other in others))
    reads = [read.data[1] for read in subterms(term.children) if read.kind == "read" and vector in read.free]
    is_wide = length(vector) >= WARP and rows * WARP >= ENOUGH_THREADS
    return is_wide and bool(reads) and all(coefficient(read, vector) in (1, -1) for read in reads)


def _side_by_side(reduces: Sequence[Term], vector: Iterator) -> bool:
    """Return whether reductions read neighbouring elements for neighbouring columns rather than for neighbouring terms."""
    across = within = 0
    for term in reduces:
        for read in subterms(term.children):
            if read.kind == "read":
                across += coefficient(read.data[1], vector) in (1, -1)
                within += any(coefficient(read.data[1], i) in (1, -1) for i in term.data[1])
    return across > 0 and across >= within


def _contiguous_last(iterators: Sequence[Iterator], body: Term) -> list[Iterator]:
    """Return the iterators with the one last along which most reads are contiguous."""
    reads = [term.data[1] for term in subterms((body,)) if term.kind == "read"]

    def contiguous(iterator: Iterator) -> int:
        return sum(coefficient(read, iterator) in (1, -1) for read in reads)

    best = max(reversed(iterators), key=contiguous)
    return [*(i for i in iterators if i is not best), best]


def transposed_reads(iterators: Sequence[Iterator], root: Term, offset: Index) -> tuple[Iterator, list[Term]] | None:
    """Return the axis along which reads that stride over the last axis are contiguous, and those reads; None where none pay."""
    if len(iterators) < 2 or coefficient(offset, iterators[-1]) != 1:
        return None
    along, reads_along = iterators[-1], dict[Iterator, list[Term]]()
    for term in unconditional(root):
        if term.kind != "read" or coefficient(term.data[1], along) in (None, 0, 1, -1) or not term.free <= frozenset(iterators):
            continue
        for iterator in iterators[:-1]:
            if coefficient(term.data[1], iterator) == 1 and min(length(iterator), length(along)) >= LEAST_TRANSPOSED:
                reads_along.setdefault(iterator, []).append(term)
    if not reads_along:
        return None
    across = max(reads_along, key=lambda i: (len(reads_along[i]), length(i)))
    return across, reads_along[across][:MOST_SQUARES]
