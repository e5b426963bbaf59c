"""Attention as one kernel that never stores the scores: a block computes 32 rows of the result, 32 keys at a time.

A warp has eight of the rows, a lane a key, then columns of the values. Largest score and sum of a row are kept while keys go by, and what
was summed is scaled where a larger score appears. Where probabilities themselves are masked or weighed, a first pass finds the largest
score and the sum, and a second one the probabilities.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from egraph.errors import LowerError
from lower.attention.match import KEEP_WHERE, REPLACE_WHERE, AttentionCall
from lower.eoperator.request import KernelRequest
from lower.targets.cuda.generator.kernel import OUTPUT
from lower.views import Window
from runtime.devices.cuda.kernels import Launch

SIDE = 32
"""Rows of a block, keys of a step, and numbers of a row that are staged at once."""
WARPS = 4
EACH = SIDE // WARPS
"""Rows of a warp."""
BLOCKS = 3
"""Blocks that a multiprocessor must hold, which leaves a thread 170 registers: left alone, ptxas takes 64 and spills."""
MOST_WIDTH = 8 * SIDE
"""Columns of the values, at most: a lane keeps one in 32 of them for each of its warp's rows."""
INFINITY = "__int_as_float(0x7f800000)"
STEPS = {0: "{s} + {x}", 1: "{s} * {x}", 2: "{s} - {x}", 3: "{x} - {s}", 4: "{s} / {x}"}
"""Steps between the products by their codes, of a score and what it meets."""


@dataclass(frozen=True)
class AttentionRequest(KernelRequest):
    """A fragment that is attention, with the windows over its operands."""

    call: AttentionCall | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.fragment.digest}|{self.call}".encode()).hexdigest()[:16]


class _Text:
    """Lines of one kernel."""

    def __init__(self) -> None:
        self.lines: list[str] = []
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
    def each_row(self) -> Iterator[None]:
        self.line("#pragma unroll")
        with self.braces(f"for (int r = 0; r < {EACH}; ++r)"):
            yield


def refusal(call: AttentionCall) -> str | None:
    """Return why there is no kernel for a call; None where there is one."""
    width = call.destination.shape[-1]
    if width > MOST_WIDTH:
        return f"{width} columns of values are more than {MOST_WIDTH}"
    if any(stride < 0 for operand in call.arguments for stride in operand.window.strides):
        return "an operand is read backwards"
    return None


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
    tiles, is_exact = -(-rows // SIDE), call.is_guarded or len(call.codes) > call.steps_before
    text = _Text()
    text.line(f"__shared__ float queries[{SIDE}][{SIDE + 1}], keys[{SIDE}][{SIDE + 1}], weights[{SIDE}][{SIDE}];")
    text.line("const int lane = threadIdx.x, warp = threadIdx.y;")
    text.line(f"const int top = (int)(blockIdx.x % {tiles}u) * {SIDE};")
    step = tiles
    for axis, size in reversed(list(enumerate(batch))):
        text.line(f"const int b{axis} = (int)(blockIdx.x / {step}u % {size}u);")
        step *= size
    for number, operand in enumerate(call.arguments):
        text.line(f"{kinds[number]} p{number} = in{number}{_batch(operand.window)};")
    text.line(f"float* result = {OUTPUT}{_batch(call.destination)};")
    text.line(f"float largest[{EACH}], total[{EACH}], sums[{EACH}][{-(-width // SIDE)}] = {{}};")
    with text.each_row():
        text.line(f"largest[r] = -{INFINITY}, total[r] = 0.0f;")
    steps = list(zip(_grouped(call.codes), _reads(call.codes, [each.window for each in rest]), strict=True))
    before, after = steps[: call.steps_before], steps[call.steps_before :]
    for is_first in (True, False) if is_exact else (True,):
        with text.braces(f"for (int left = 0; left < {count}; left += {SIDE})"):
            _scores(text, queries.window, keys.window, before, rows, count, depth)
            if is_first:
                _online(text, is_alone=not is_exact)
            else:
                _probabilities(text, after, rows, count, f"p{len(call.arguments) - 1}[0]" if call.is_guarded else "")
            if not (is_exact and is_first):
                _add_values(text, values.window, count, width)
        if is_first:
            with text.each_row(), text.braces(f"for (int step = {SIDE // 2}; step > 0; step /= 2)"):
                text.line("total[r] += __shfl_xor_sync(0xffffffffu, total[r], step);")
    with text.each_row():
        text.line(f"const int row = top + warp * {EACH} + r;")
        quotient = "sums[r][w]" if is_exact else "sums[r][w] / total[r]"
        with text.braces(f"for (int w = 0; w < {-(-width // SIDE)}; ++w)"):
            text.line(f"const int column = lane + {SIDE} * w;")
            text.line(f"if (row < {rows} && column < {width}) result[{_place(call.destination)}] = {quotient};")
    names = [f"in{number}" for number in range(len(call.arguments))]
    declared = [f"{kind} __restrict__ {name}" for kind, name in zip([*kinds, "float*"], [*names, OUTPUT], strict=True)]
    head = f'extern "C" __global__ void __launch_bounds__({SIDE * WARPS}, {BLOCKS}) {request.symbol}({", ".join(declared)}) {{'
    launch = Launch(request.symbol, (math.prod(batch) * tiles, 1, 1), (SIDE, WARPS, 1), 0, (*names, OUTPUT))
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


def _scores(text: _Text, queries: Window, keys: Window, steps: Steps, rows: int, count: int, depth: int) -> None:
    """Compute a lane's scores; beyond the last key they are less than all others."""
    text.line(f"float scores[{EACH}] = {{}};")
    with text.braces(f"for (int first = 0; first < {depth}; first += {SIDE})"):
        with text.braces(f"for (int r = warp; r < {SIDE}; r += {WARPS})"):
            for name, window, start, extent, pointer in (("queries", queries, "top", rows, "p0"), ("keys", keys, "left", count, "p1")):
                element = f"{pointer}[{_place(window, f'{start} + r', 'first + lane')}]"
                text.line(f"{name}[r][lane] = {start} + r < {extent} && first + lane < {depth} ? {element} : 0.0f;")
        text.line("__syncthreads();")
        with text.braces(f"for (int d = 0; d < {SIDE}; ++d)"):
            text.line("const float key = keys[lane][d];")
            with text.each_row():
                text.line(f"scores[r] += queries[warp * {EACH} + r][d] * key;")
        text.line("__syncthreads();")
    text.line("const int column = left + lane;")
    with text.each_row():
        text.line(f"const int row = min(top + warp * {EACH} + r, {rows - 1});")
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
            text.line(f"weights[warp * {EACH} + r][lane] = weight;")


def _probabilities(text: _Text, steps: Steps, rows: int, count: int, replacement: str) -> None:
    """Compute a lane's probabilities, and what becomes of them."""
    with text.each_row():
        text.line(f"const int row = min(top + warp * {EACH} + r, {rows - 1});")
        text.line("float p = expf(scores[r] - largest[r]) / total[r];")
        if replacement:
            text.line(f"if (p != p) p = {replacement};")
        if steps:
            with text.braces(f"if (column < {count})"):
                _apply(text, steps, "p")
        text.line(f"weights[warp * {EACH} + r][lane] = p;")


def _add_values(text: _Text, values: Window, count: int, width: int) -> None:
    """Add the values of these keys, weighed; a warp reads the weights of its own rows alone."""
    text.line("__syncwarp();")
    with text.braces(f"for (int j = 0; j < {SIDE} && left + j < {count}; ++j)"):
        text.line("#pragma unroll")
        with text.braces(f"for (int w = 0; w < {-(-width // SIDE)}; ++w)"):
            text.line(f"const int c = lane + {SIDE} * w;")
            text.line(f"const float value = c < {width} ? p2[{_place(values, 'left + j', 'c')}] : 0.0f;")
            with text.each_row():
                text.line(f"sums[r][w] += weights[warp * {EACH} + r][j] * value;")
