"""Attention as one kernel that never stores the scores: a block computes 8 to 32 rows of the result, 32 keys at a time.

A warp has two to eight of the rows, a lane a key, then columns of the values. Keys and their values are staged in shared memory together,
and read from there four numbers at once. Largest score and sum of a row are kept while keys go by, and what was summed is scaled where a
larger score appears. Where probabilities themselves are masked or weighed, a first pass finds the largest score and the sum, and a second
one the probabilities. What replaces probabilities that are no numbers needs no second pass: of a row, all are or none is, as its sum says.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from egraph.errors import LowerError
from lower.attention.match import KEEP_WHERE, REPLACE_WHERE, AttentionCall
from lower.eoperator.request import KernelRequest
from lower.targets.cuda.generator.kernel import OUTPUT
from lower.views import Window
from runtime.devices.cuda.kernels import Launch

SIDE = 32
"""Keys of a step, and columns of the values that the lanes of a warp have: one each."""
WARPS = 4
THREADS = SIDE * WARPS
MOST_EACH, LEAST_EACH = 8, 2
"""Rows of a warp, whose lanes share what they read of keys and values."""
ENOUGH_BLOCKS = 96
"""Blocks that occupy most of a GPU: where there are less, a warp has fewer rows."""
MOST_STAGED = 64
"""Numbers of a row of queries and keys that are staged at once, at most."""
MOST_COLUMNS = 4 * SIDE
"""Columns of the values that are staged at once, at most: all fits into 48 KB with what else is staged."""
VECTOR = 4
"""Numbers that are read from shared memory at once."""
MOST_UNROLLED = 16
"""Loads of a thread that are under way together, at most: each takes a register."""
BEGIN_CYCLES = 1500
"""Besides the steps: the queries, and the result.

These numbers are fitted to fourteen kinds of calls on an H100, off by a sixth; where a step divides, by a third.
"""
WAITING_CYCLES = 1200
"""What a step waits for loads, barriers, and the reductions of scores, one after another."""
READING_SHARE = 0.36
"""Share of the rate of shared memory that steps reach."""
BLOCKS = 3
"""Blocks that a multiprocessor must hold, which leaves a thread 170 registers: left alone, ptxas takes 64 and spills."""
MOST_WIDTH = 8 * SIDE
"""Columns of the values, at most: a lane keeps one in 32 of them for each of its warp's rows."""
INFINITY = "__int_as_float(0x7f800000)"
STEPS = {0: "{s} + {x}", 1: "{s} * {x}", 2: "{s} - {x}", 3: "{x} - {s}", 4: "{s} / {x}"}
"""Steps between the products by their codes, of a score and what it meets."""


@dataclass(frozen=True)
class Blocking:
    """How rows, depth and columns of attention are divided."""

    each: int
    """Rows of a warp."""
    blocks: int
    tiles: int
    """Blocks of one matrix of the batch."""
    depth: int
    staged: int
    """Numbers of a row of queries and keys that are staged at once; zeros beyond the depth."""
    width: int
    columns: int
    """Columns of the values that are staged at once."""

    @staticmethod
    def of(call: AttentionCall) -> Blocking:
        *batch, rows, depth = call.arguments[0].window.shape
        width = call.destination.shape[-1]
        each = MOST_EACH
        while each > LEAST_EACH and (2 * rows <= WARPS * each or math.prod(batch) * -(-rows // (WARPS * each)) < ENOUGH_BLOCKS):
            each //= 2
        tiles = -(-rows // (WARPS * each))
        staged = min(MOST_STAGED, -(-depth // VECTOR) * VECTOR)
        return Blocking(each, math.prod(batch) * tiles, tiles, depth, staged, width, min(MOST_COLUMNS, -(-width // SIDE) * SIDE))

    @property
    def rows(self) -> int:
        """Return the rows of a block."""
        return WARPS * self.each

    @property
    def is_whole(self) -> bool:
        """Return whether rows of queries and keys are staged as a whole."""
        return self.depth <= self.staged

    def cycles(self, keys: int, passes: int, multiprocessors: int) -> float:
        """Return about how many cycles of a GPU all blocks take: they read shared memory, or wait."""
        scores, values = self.depth / VECTOR * (self.each + VECTOR), SIDE / VECTOR * (self.each + VECTOR * self.width / SIDE)
        reading = WARPS * (passes * scores + values) / READING_SHARE
        together = min(BLOCKS, -(-self.blocks // multiprocessors))
        rounds = -(-self.blocks // (multiprocessors * together))
        return BEGIN_CYCLES + rounds * -(-keys // SIDE) * max(passes * WAITING_CYCLES + reading, together * reading)

    @property
    def pitch(self) -> int:
        """Return the distance of staged rows, an odd number of vectors: the lanes' keys lie in different banks."""
        return VECTOR * (self.staged // VECTOR | 1)


@dataclass(frozen=True)
class AttentionRequest(KernelRequest):
    """A fragment that is attention, with the windows over its operands."""

    call: AttentionCall | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.fragment.digest}|{self.call}".encode()).hexdigest()[:16]


class _Text:
    """Lines of one kernel, whose warps have ``each`` rows."""

    def __init__(self, each: int) -> None:
        self.lines: list[str] = []
        self.each = each
        self._depth = 1

    def line(self, text: str) -> None:
        self.lines.append("  " * self._depth + text)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        self.line(f"{head} {{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    @contextmanager
    def unrolled(self, name: str, count: int) -> Iterator[None]:
        self.line("#pragma unroll" if count <= MOST_UNROLLED else f"#pragma unroll {MOST_UNROLLED}")
        with self.braces(f"for (int {name} = 0; {name} < {count}; ++{name})"):
            yield

    @contextmanager
    def each_row(self) -> Iterator[None]:
        with self.unrolled("r", self.each):
            yield


def refusal(call: AttentionCall) -> str | None:
    """Return why there is no kernel for a call; None where there is one."""
    width = call.destination.shape[-1]
    if width > MOST_WIDTH:
        return f"{width} columns of values are more than {MOST_WIDTH}"
    if any(stride < 0 for operand in call.arguments for stride in operand.window.strides):
        return "an operand is read backwards"
    return None


def has_two_passes(call: AttentionCall) -> bool:
    """Return whether probabilities are masked or weighed, which takes their sums: a first pass over the keys computes these."""
    return len(call.codes) > call.steps_before


def write_attention(request: AttentionRequest) -> tuple[str, Launch]:
    """Return the text of a call, without the functions that all texts have, and its launch."""
    call = request.call
    if call is None or (reason := refusal(call)) is not None:
        raise LowerError("no attention is generated" + (f": {reason}" if call else ""), where=request.symbol)
    (queries, keys, values), rest = call.arguments[:3], call.arguments[3:]
    *batch, rows, depth = queries.window.shape
    count, width = values.window.shape[-2:]
    conditions = _conditions(call.codes)
    kinds = ["const float*"] * 3 + ["const unsigned char*" if each else "const float*" for each in conditions]
    kinds += ["const float*"] * call.is_guarded
    blocking, is_exact = Blocking.of(call), has_two_passes(call)
    replacement = f"p{len(call.arguments) - 1}[0]" if call.is_guarded else ""
    text = _Text(blocking.each)
    shapes = {
        "queries": (blocking.rows, blocking.pitch), "keys": (SIDE, blocking.pitch), "values": (SIDE, blocking.columns),
        "weights": (blocking.rows, SIDE),
    }  # fmt: skip
    text.line(f"alignas(16) __shared__ float {', '.join(f'{name}[{a}][{b}]' for name, (a, b) in shapes.items())};")
    text.line(f"const int lane = threadIdx.x, warp = threadIdx.y, thread = warp * {SIDE} + lane;")
    text.line(f"const int top = (int)(blockIdx.x % {blocking.tiles}u) * {blocking.rows};")
    step = blocking.tiles
    for axis, size in reversed(list(enumerate(batch))):
        text.line(f"const int b{axis} = (int)(blockIdx.x / {step}u % {size}u);")
        step *= size
    for number, operand in enumerate(call.arguments):
        text.line(f"{kinds[number]} p{number} = in{number}{_batch(operand.window)};")
    text.line(f"float* result = {OUTPUT}{_batch(call.destination)};")
    text.line(f"float largest[{blocking.each}], total[{blocking.each}], sums[{blocking.each}][{-(-width // SIDE)}] = {{}};")
    with text.each_row():
        text.line(f"largest[r] = -{INFINITY}, total[r] = 0.0f;")
    steps = list(zip(_grouped(call.codes), _reads(call.codes, [each.window for each in rest]), strict=True))
    before, after = steps[: call.steps_before], steps[call.steps_before :]

    def stage_values(first: int) -> None:
        _stage(text, "values", values.window, "p2", ("left", SIDE, count), (str(first), blocking.columns, width))

    if blocking.is_whole:
        _stage(text, "queries", queries.window, "p0", ("top", blocking.rows, rows), ("0", blocking.staged, depth))
    has_one_step = count <= SIDE
    for is_first in (True, False) if is_exact else (True,):
        has_values = not (is_exact and is_first)
        with text.braces(f"for (int left = 0; left < {count}; left += {SIDE})"):
            text.line(f"float scores[{blocking.each}] = {{}};")
            if blocking.is_whole:
                if is_first or not has_one_step:  # in one step, they are there
                    _stage(text, "keys", keys.window, "p1", ("left", SIDE, count), ("0", blocking.staged, depth))
                if has_values:
                    stage_values(0)
                text.line("__syncthreads();")
                _multiply(text, blocking)
            else:
                with text.braces(f"for (int first = 0; first < {depth}; first += {blocking.staged})"):
                    _stage(text, "queries", queries.window, "p0", ("top", blocking.rows, rows), ("first", blocking.staged, depth))
                    _stage(text, "keys", keys.window, "p1", ("left", SIDE, count), ("first", blocking.staged, depth))
                    text.line("__syncthreads();")
                    _multiply(text, blocking)
                    text.line("__syncthreads();")
                if has_values:
                    stage_values(0)
            _finish_scores(text, before, rows, count)
            if is_first:
                _online(text, is_alone=not is_exact)
            else:
                _probabilities(text, after, rows, count, replacement)
            if has_values:
                text.line("__syncwarp();" if blocking.is_whole else "__syncthreads();")
                _add_values(text, blocking, 0)
                for first in range(blocking.columns, width, blocking.columns):
                    text.line("__syncthreads();")
                    stage_values(first)
                    text.line("__syncthreads();")
                    _add_values(text, blocking, first)
            if blocking.is_whole and not has_one_step:
                text.line("__syncthreads();")
        if is_first:
            with text.each_row(), text.braces(f"for (int step = {SIDE // 2}; step > 0; step /= 2)"):
                text.line("total[r] += __shfl_xor_sync(0xffffffffu, total[r], step);")
    if replacement and not is_exact:
        _replace_rows(text, blocking, replacement, count, f"p2[{_place(values.window, 'j')}]")
    with text.each_row():
        text.line(f"const int row = top + warp * {blocking.each} + r;")
        quotient = "sums[r][w]" if is_exact else "sums[r][w] / total[r]"
        with text.braces(f"for (int w = 0; w < {-(-width // SIDE)}; ++w)"):
            text.line(f"const int column = lane + {SIDE} * w;")
            text.line(f"if (row < {rows} && column < {width}) result[{_place(call.destination)}] = {quotient};")
    names = [f"in{number}" for number in range(len(call.arguments))]
    declared = [f"{kind} __restrict__ {name}" for kind, name in zip([*kinds, "float*"], [*names, OUTPUT], strict=True)]
    head = f'extern "C" __global__ void __launch_bounds__({THREADS}, {BLOCKS}) {request.symbol}({", ".join(declared)}) {{'
    launch = Launch(request.symbol, (blocking.blocks, 1, 1), (SIDE, WARPS, 1), 0, (*names, OUTPUT))
    return "\n".join([head, *text.lines, "}", ""]), launch


def _conditions(codes: Sequence[int]) -> list[bool]:
    """Return of what the steps read, in order, whether it is a condition."""
    return [each for code in codes for each in ((True, False) if code in (KEEP_WHERE, REPLACE_WHERE) else (False,))]


def _grouped(codes: Sequence[int]) -> list[tuple[int, int]]:
    """Return each step's code and the position of the first operand that it reads."""
    grouped, position = [], 3
    for code in codes:
        grouped.append((code, position))
        position += len(_conditions([code]))
    return grouped


def _reads(codes: Sequence[int], windows: Sequence[Window]) -> list[list[str]]:
    """Return what each step reads at a row and a column."""
    reads = []
    for code, position in _grouped(codes):
        numbers = range(position, position + len(_conditions([code])))
        reads.append([f"p{number}[{_place(windows[number - 3])}]" for number in numbers])
    return reads


def _batch(window: Window) -> str:
    """Return what a matrix of the batch lies behind the first one."""
    return "".join(f" + b{axis} * {stride}" for axis, stride in enumerate(window.strides[:-2]) if stride and window.shape[axis] > 1)


def _place(window: Window, row: str = "row", column: str = "column") -> str:
    parts = [f"({name}) * {stride}" for name, stride in zip((row, column), window.strides[-2:], strict=True) if stride]
    return " + ".join(parts) or "0"


Steps = Sequence[tuple[tuple[int, int], list[str]]]


Extent = tuple[str, int, int]
"""Where what is staged begins along an axis, how much of it there is, and where the axis ends."""


def _stage(text: _Text, name: str, window: Window, pointer: str, down: Extent, across: Extent) -> None:
    """Load a part of a matrix into shared memory, zeros beyond its ends; neighbouring threads read neighbouring numbers."""
    (top, rows, row_end), (left, columns, column_end) = down, across
    with text.unrolled("turn", -(-rows * columns // THREADS)):
        text.line(f"const int at = thread + turn * {THREADS};")
        is_sideways = window.strides[-1] != 1 and window.strides[-2] == 1
        text.line(f"const int r = {f'at % {rows}' if is_sideways else f'at / {columns}'};")
        text.line(f"const int c = {f'at / {rows}' if is_sideways else f'at % {columns}'};")
        within = [f"{top} + r < {row_end}"] if row_end % rows else []
        within += [f"{left} + c < {column_end}"] if column_end % columns else []
        element = f"{pointer}[{_place(window, f'{top} + r', f'{left} + c')}]"
        with text.braces(f"if (at < {rows * columns})") if rows * columns % THREADS else nullcontext():
            text.line(f"{name}[r][c] = {' && '.join(within)} ? {element} : 0.0f;" if within else f"{name}[r][c] = {element};")


def _multiply(text: _Text, blocking: Blocking) -> None:
    """Add to a lane's scores what is staged of queries and keys."""
    with text.braces(f"for (int d = 0; d < {blocking.staged}; d += {VECTOR})"), text.each_row():
        for number in range(VECTOR):
            at = f"d + {number}" if number else "d"
            text.line(f"scores[r] += queries[warp * {blocking.each} + r][{at}] * keys[lane][{at}];")


def _finish_scores(text: _Text, steps: Steps, rows: int, count: int) -> None:
    """Do to scores what stands between the products; beyond the last key they are less than all others."""
    text.line("const int column = left + lane;")
    with text.each_row():
        text.line(f"const int row = min(top + warp * {text.each} + r, {rows - 1});")
        with text.braces(f"if (column < {count})"):
            _apply(text, steps, "scores[r]")
        text.line(f"else scores[r] = -{INFINITY};")


def _apply(text: _Text, steps: Steps, target: str) -> None:
    for (code, _), read in steps:
        if code in (KEEP_WHERE, REPLACE_WHERE):
            kept, other = (target, read[1]) if code == KEEP_WHERE else (read[1], target)
            text.line(f"{target} = {read[0]} != 0 ? {kept} : {other};")
        else:
            text.line(f"{target} = {STEPS[code].format(s=target, x=read[0])};")


def _online(text: _Text, *, is_alone: bool) -> None:
    """Take scores into the rows' largest ones and sums; ``is_alone``: what was summed of the values follows, and no pass comes after."""
    with text.each_row():
        text.line("float most = einsat_max(largest[r], scores[r]);")
        with text.braces(f"for (int step = {SIDE // 2}; step > 0; step /= 2)"):
            text.line("most = einsat_max(most, __shfl_xor_sync(0xffffffffu, most, step));")
        text.line(f"const float base = most == -{INFINITY} ? 0.0f : most;  // a row of nothing so far stays so")
        text.line("const float scale = expf(largest[r] - base), weight = expf(scores[r] - base);")
        text.line("total[r] = total[r] * scale + weight, largest[r] = most;")
        if is_alone:
            text.line("for (float& sum : sums[r]) sum *= scale;")
            text.line(f"weights[warp * {text.each} + r][lane] = weight;")


def _probabilities(text: _Text, steps: Steps, rows: int, count: int, replacement: str) -> None:
    """Compute a lane's probabilities, and what becomes of them."""
    with text.each_row():
        text.line(f"const int row = min(top + warp * {text.each} + r, {rows - 1});")
        text.line("float p = expf(scores[r] - largest[r]) / total[r];")
        if replacement:
            text.line(f"if (p != p) p = {replacement};")
        with text.braces(f"if (column < {count})"):
            _apply(text, steps, "p")
        text.line("else p = 0.0f;")
        text.line(f"weights[warp * {text.each} + r][lane] = p;")


def _replace_rows(text: _Text, blocking: Blocking, replacement: str, count: int, value: str) -> None:
    """Compute rows whose probabilities are no numbers: ``replacement`` times the sum of all values.

    The sum of a row's exponentials tells: it is 0 where all scores are -infinity, no number where a score is none or infinite, and at
    least 1 otherwise, since the largest score adds 1.
    """
    with text.each_row(), text.braces("if (!(total[r] > 0.0f))"):
        text.line("total[r] = 1.0f;")
        with text.braces(f"for (int w = 0; w < {-(-blocking.width // SIDE)}; ++w)"):
            text.line(f"const int column = min(lane + {SIDE} * w, {blocking.width - 1});")
            text.line("sums[r][w] = 0.0f;")
            text.line(f"for (int j = 0; j < {count}; ++j) sums[r][w] += {replacement} * {value};")


def _add_values(text: _Text, blocking: Blocking, first: int) -> None:
    """Add the values of these keys, weighed, in the columns from one on; a warp reads the weights of its own rows alone."""
    count = -(-(min(first + blocking.columns, blocking.width) - first) // SIDE)
    with text.braces(f"for (int j = 0; j < {SIDE}; j += {VECTOR})"):
        for number in range(VECTOR):
            at = f"j + {number}" if number else "j"
            with text.unrolled("w", count):
                text.line(f"const float value = values[{at}][lane + {SIDE} * w];")
                place = f"w + {first // SIDE}" if first else "w"
                with text.each_row():
                    text.line(f"sums[r][{place}] += weights[warp * {blocking.each} + r][{at}] * value;")
