"""Winograd programs of a convolution: an estimate decides which bilinear algorithms are proposed."""

from __future__ import annotations

import itertools
import math

from egraph.derive.bilinear.axes import DIRECT, Axis, Dilated, Gathered, Strided, Transposed
from egraph.derive.bilinear.blocks import blocked_program, even_part
from egraph.derive.bilinear.cook_toom import cook_toom, strided
from egraph.derive.bilinear.estimates import Plan, best_plan, direct_estimate
from egraph.derive.bilinear.programs import Bilinear, program, steps
from egraph.derive.derivation import Derivation, Step
from egraph.tensor import Node
from egraph.tensor.expr.index import known
from egraph.tensor.ops.window import layout_of, window_of
from egraph.tolerance import Tolerance

LARGEST_TAPS = 7
SIZES = range(2, 7)
"""Numbers of outputs of one tile along one axis."""
LARGEST_TILE = 12
"""The most outputs of one tile along one axis, all phases of a transposed convolution counted: they are computed together."""
LARGEST_WINDOW = 64
"""The most inputs of one tile along one axis if the phases of a stride have algorithms of their own: its matrices are that wide."""
MOST_GROWTH = 27.0
"""The largest typical error relative to the direct sum's. F(6x6, 3x3) has 21, and in float32 an error of 1e-5 of the largest output."""
ERROR_OF_A_MODEL = 1.6e-5
"""Expected error of a model's outputs for each unit of growth: a direct sum's, 1e-6 of the largest output, over several layers."""
USUAL_GROWTH = Tolerance().relative / ERROR_OF_A_MODEL
"""The growth up to which a whole model stays within the usual tolerance: F(4x4, 3x3) has 5.2, F(2x2, 5x5) 5.7."""
MOST_PROGRAMS = 2
"""The most programs kept for one convolution, once for algorithms of usual growth and once for those of larger growth.

Those with the best estimates are kept, each algorithm with its best division into blocks.
"""
WORTH = 1.1
"""The least estimated speedup of a program over the convolution itself."""


def winograd_programs(node: Node) -> tuple[Derivation, ...]:
    """Return programs by transformed tiles for a convolution of constant weights with channels last, best estimate first."""
    x, w = node.inputs
    derivations = []
    for plan in alternatives(node):
        error = ERROR_OF_A_MODEL * plan.bilinear.growth
        sizes = "x".join(f"{axis.algorithm.outputs}" for axis in plan.bilinear.axes)
        if plan.blocks is None:
            derivations.append(Derivation(f"winograd F({sizes})", program(x, w, plan.bilinear), steps(x, w, plan.bilinear), error))
        else:
            images, rows = plan.blocks
            cut = Step("traversal splitting: blocks", f"{images} images, {rows} rows of tiles each")
            root = blocked_program(x, w, plan.bilinear, images, rows)
            derivations.append(Derivation(f"winograd F({sizes}) by {images}x{rows}", root, (cut, *steps(x, w, plan.bilinear)), error))
    return tuple(derivations)


def alternatives(node: Node) -> tuple[Plan, ...]:
    """Return the plans whose estimate is good enough to propose, best first; plans of larger error follow those of usual error.

    The best algorithm of usual error is also proposed without blocks: blocks are for a processor's caches, and a GPU idles between them.
    """
    x, w = node.inputs
    if w.op != "Placeholder" or not w.attribute("constant"):
        return ()
    batch, limit = x.type.sizes[0], direct_estimate(node) / WORTH
    estimated = [best_plan(batch, bilinear) for bilinear in algorithms(node) if bilinear.growth <= MOST_GROWTH]
    worth = sorted((pair for pair in estimated if pair[0] <= limit), key=lambda pair: pair[0])
    usual = [plan for _, plan in worth if plan.bilinear.growth <= USUAL_GROWTH]
    more = [plan for _, plan in worth if plan.bilinear.growth > USUAL_GROWTH]
    chosen = usual[:MOST_PROGRAMS]
    whole = [] if not chosen or any(plan.blocks is None for plan in chosen) else [Plan(chosen[0].bilinear)]
    return (*chosen, *whole, *more[:MOST_PROGRAMS])


def algorithms(node: Node) -> tuple[Bilinear, ...]:
    """Return all algorithms for a convolution, or a transposed one, with channels last."""
    return _algorithms(node) if node.attribute("layout") == "NHWC" and node.type.dtype in ("float32", "float64") else ()


def saving(node: Node) -> float:
    """Return how many times fewer multiplications the best algorithm needs than the operator itself; 1 if none saves any.

    Transforms and changes of layout are not counted, so the factor bounds that of every program of this convolution.
    """
    if node.op not in ("Conv", "ConvTranspose"):
        return 1.0
    x, w = node.inputs
    direct = (x if node.op == "ConvTranspose" else node).type.elements * math.prod(w.type.sizes[1:])
    batch = x.type.sizes[0]
    usable = (each for each in _algorithms(node) if each.growth <= MOST_GROWTH)
    fewest = min((each.group * each.products * each.tiles(batch) * each.depth * each.width for each in usable), default=direct)
    return max(1.0, direct / fewest)


def _algorithms(node: Node) -> tuple[Bilinear, ...]:
    w = node.inputs[1]
    lines = lines_of(node)
    group = node.integer("group")
    if node.op == "Conv":
        choices = dict.fromkeys(choice for most in SIZES for choice in itertools.product(*(_ways(line, most) for line in lines)))
        channels, outputs = w.type.sizes[1], w.type.sizes[0] // group
    else:
        if any(line.dilation > 1 for line in lines):
            return ()
        choices = dict.fromkeys(tuple(_transposed(line, most) for line in lines) for most in SIZES)
        channels, outputs = w.type.sizes[0] // group, w.type.sizes[1]
    return tuple(
        Bilinear(axes, group, channels, outputs, node.op != "Conv") for axes in choices if any(axis.algorithm.products > 1 for axis in axes)
    )


def lines_of(node: Node) -> tuple[Gathered, ...]:
    """Return the spatial axes of a convolution as axes with gathered taps."""
    x, w = node.inputs
    a = dict(node.attributes)
    layout, window = layout_of(x.type.sizes, a), window_of(w.type.sizes[2:], a)
    windows = (window.sizes, window.strides, window.dilations, window.before)
    lines = zip(*(map(known, sizes) for sizes in (layout.space(x.type.sizes), layout.space(node.type.sizes), *windows)), strict=True)
    return tuple(Gathered(size, outputs, taps, before, DIRECT, stride, dilation) for size, outputs, taps, stride, dilation, before in lines)


def _ways(line: Gathered, most: int) -> tuple[Axis, ...]:
    """Return an axis with its taps gathered, and as the fewest tiles of at most ``most`` outputs, all of the same size.

    Tiles need two taps and two outputs.
    """
    taps, outputs = -(-line.taps // line.stride), -(-line.outputs // line.dilation)
    m = even_part(outputs, most)
    if m < 2 or not 2 <= taps <= LARGEST_TAPS or (line.stride > 1 and line.dilation > 1):
        return (line,)
    sizes = line.size, line.outputs, line.taps, line.before
    if line.dilation > 1:
        return (line, Dilated(*sizes, cook_toom(m, taps), line.dilation))
    has_phases = line.stride > 1 and line.stride * (m - 1) + line.taps <= LARGEST_WINDOW
    separate = (Strided(*sizes, strided(m, line.taps, line.stride), line.stride, separate=True),) if has_phases else ()
    return (line, Strided(*sizes, cook_toom(m, taps), line.stride), *separate)


def _transposed(line: Gathered, most: int) -> Axis:
    """Return an axis of a transposed convolution, in tiles of at most ``most`` outputs if its phases have few taps but more than one."""
    taps, outputs = -(-line.taps // line.stride), -(-(line.outputs + line.before % line.stride) // line.stride)
    m = even_part(outputs, max(1, min(most, LARGEST_TILE // line.stride))) if 1 < taps <= LARGEST_TAPS else 1
    return Transposed(line.size, line.outputs, line.taps, line.before, cook_toom(m, taps), line.stride)
