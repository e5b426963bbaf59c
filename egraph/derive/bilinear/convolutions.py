"""Winograd programs of a convolution: which bilinear algorithms are worth a try, by an estimate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from egraph.derive.bilinear.axes import Axis, Dilated, Gathered, Strided
from egraph.derive.bilinear.blocks import blocked_program
from egraph.derive.bilinear.cook_toom import cook_toom
from egraph.derive.bilinear.estimates import Plan, direct_estimate, estimate, plans
from egraph.derive.bilinear.programs import Bilinear, program, steps
from egraph.derive.derivation import Derivation, Step
from egraph.ir import Node
from egraph.ops.window import layout_of, window_of

LARGEST_TAPS = 7
LARGEST_TILE = 6
"""Outputs of one tile along one axis, at most."""
MOST_GROWTH = 600.0
"""Bound of the error beside the direct sum's: F(6x6, 3x3) has 509, and in float32 an error of 1e-5 of the largest output."""
MOST_PROGRAMS = 3
"""Programs for one convolution, at most: those with the best estimates, each algorithm in its best blocks."""
WORTH = 1.1
"""How much faster than the convolution itself a program is estimated to be, at least."""


def winograd_programs(node: Node) -> tuple[Derivation, ...]:
    """Return programs by transformed tiles for a convolution of constant weights with channels last, the best estimate first."""
    x, w = node.inputs
    found = []
    for plan in alternatives(node):
        sizes = "x".join(f"{axis.algorithm.outputs}" for axis in plan.what.axes)
        if plan.blocks is None:
            found.append(Derivation(f"winograd F({sizes})", program(x, w, plan.what), steps(x, w, plan.what)))
        else:
            images, rows = plan.blocks
            cut = Step("traversal splitting: blocks", f"{images} images, {rows} rows of tiles each")
            root = blocked_program(x, w, plan.what, images, rows)
            found.append(Derivation(f"winograd F({sizes}) by {images}x{rows}", root, (cut, *steps(x, w, plan.what))))
    return tuple(found)


def alternatives(node: Node) -> tuple[Plan, ...]:
    """Return the plans that are estimated to be worth a try, the best first."""
    x, w = node.inputs
    if w.op != "Placeholder" or not w.attribute("constant"):
        return ()
    batch, limit = x.type.sizes[0], direct_estimate(node) / WORTH
    found = {}
    for what in algorithms(node):
        if what.growth <= MOST_GROWTH:
            estimates = {plan: estimate(batch, plan) for plan in plans(batch, what)}
            best = min(estimates, key=estimates.__getitem__)
            found[best] = estimates[best]
    return tuple(sorted((plan for plan in found if found[plan] <= limit), key=found.__getitem__)[:MOST_PROGRAMS])


def algorithms(node: Node) -> tuple[Bilinear, ...]:
    """Return all algorithms for a convolution with channels last."""
    x, w = node.inputs
    if node.attribute("layout") != "NHWC" or x.type.dtype not in ("float32", "float64"):
        return ()
    group = int(str(node.attribute("group")))
    return tuple(Bilinear(choice, group, w.type.sizes[1], w.type.sizes[0] // group) for choice in _choices(_lines(node)))


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
