"""Winograd programs of a convolution: which bilinear algorithms are worth a try, by an estimate."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

from egraph.derive.bilinear.axes import Axis, Dilated, Gathered, Strided
from egraph.derive.bilinear.cook_toom import cook_toom
from egraph.derive.bilinear.programs import Bilinear, program, steps
from egraph.derive.derivation import Derivation
from egraph.ir import Node
from egraph.ops.window import layout_of, window_of

LARGEST_TAPS = 7
LARGEST_TILE = 6
"""Outputs of one tile along one axis, at most."""
MOST_GROWTH = 600.0
"""Bound of the error beside the direct sum's: F(6x6, 3x3) has 509, and in float32 an error of 1e-5 of the largest output."""
MOST_PROGRAMS = 3
"""Programs for one convolution, at most: those with the best estimates."""
ELEMENT_BYTES = 4
MULTIPLICATIONS_A_BYTE = 4.0
"""Multiply-adds of a matrix product that take as long as moving a byte of what is transformed."""


def winograd_programs(node: Node) -> tuple[Derivation, ...]:
    """Return programs by transformed tiles for a convolution of constant weights with channels last, the best estimate first."""
    found = {}
    for what in alternatives(node):
        x, w = node.inputs
        sizes = "x".join(f"{axis.algorithm.outputs}" for axis in what.axes)
        found[what] = Derivation(f"winograd F({sizes})", program(x, w, what), steps(x, w, what))
    return tuple(found.values())


def alternatives(node: Node) -> tuple[Bilinear, ...]:
    """Return the algorithms that are estimated to cost less than the convolution itself, the best first."""
    x, w = node.inputs
    if w.op != "Placeholder" or not w.attribute("constant"):
        return ()
    direct = math.prod(node.type.sizes) * math.prod(w.type.sizes[1:])
    estimates = {what: estimate(x.type.sizes[0], what) for what in algorithms(node) if what.growth <= MOST_GROWTH}
    best = sorted((what for what in estimates if estimates[what] < direct), key=lambda what: (estimates[what], repr(what)))
    return tuple(best[:MOST_PROGRAMS])


def algorithms(node: Node) -> tuple[Bilinear, ...]:
    """Return all algorithms for a convolution with channels last."""
    x, w = node.inputs
    if node.attribute("layout") != "NHWC" or x.type.dtype not in ("float32", "float64"):
        return ()
    group = int(str(node.attribute("group")))
    return tuple(Bilinear(choice, group, w.type.sizes[1], w.type.sizes[0] // group) for choice in _choices(_lines(node)))


def estimate(batch: int, what: Bilinear) -> float:
    """Return the multiplications of the product, and what is moved between the stages in as many."""
    rows = what.group * what.products * what.tiles(batch)
    inputs = what.group * what.channels * batch * math.prod(axis.size for axis in what.axes)
    outputs = what.group * what.outputs * batch * math.prod(axis.outputs for axis in what.axes)
    elements = 2 * rows * (what.depth + what.width) + inputs + outputs
    return rows * what.depth * what.width + ELEMENT_BYTES * elements * MULTIPLICATIONS_A_BYTE


def _lines(node: Node) -> tuple[Gathered, ...]:
    """Return the spatial axes of a convolution, taps gathered."""
    x, w = node.inputs
    a = dict(node.attributes)
    layout, window = layout_of(x.type.sizes, a), window_of(w.type.sizes[2:], a)
    windows = (window.sizes, window.strides, window.dilations, window.before)
    spaces = zip(layout.space(x.type.sizes), layout.space(node.type.sizes), *windows, strict=True)
    return tuple(Gathered(*(int(str(value)) for value in space)) for space in spaces)  # type: ignore[arg-type]


def _choices(lines: Sequence[Gathered]) -> Iterable[tuple[Axis, ...]]:
    """Yield distinct ways to treat all axes: tiles of about one size on some of them, taps gathered on the others."""
    seen: dict[tuple[Axis, ...], None] = {}
    for most in range(2, LARGEST_TILE + 1):
        seen |= dict.fromkeys(itertools.product(*((line, *_transformed(line, most)) for line in lines)))
    return (choice for choice in seen if any(axis.algorithm.products > 1 for axis in choice))


def _transformed(line: Gathered, most: int) -> tuple[Axis, ...]:
    """Return an axis in the least number of tiles of at most ``most`` outputs, all alike, if it has two taps and two outputs."""
    taps, outputs = -(-line.taps // line.stride), -(-line.outputs // line.dilation)
    m = -(-outputs // -(-outputs // most))
    if m < 2 or not 2 <= taps <= LARGEST_TAPS or (line.stride > 1 and line.dilation > 1):
        return ()
    algorithm = cook_toom(m, taps)
    if line.dilation > 1:
        return (Dilated(line.size, line.outputs, line.taps, line.dilation, line.before, algorithm),)
    return (Strided(line.size, line.outputs, line.taps, line.stride, line.before, algorithm),)
