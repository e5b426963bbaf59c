"""Match depthwise convolutions, with the steps that follow them, as calls of the kernel in depthwise.c."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from egraph.tensor import PLAIN, Node, placeholders, walk
from lower.calls.call import Argument, Base, LibraryCall
from lower.calls.epilogue import spine, unsized
from lower.targets.cpu.epilogue import misplaced, steps_of
from lower.views import Reason, Window, contiguous, lying, read

CONV = "depthwise.conv"
PANEL = 16
"""The channels of a panel, as in depthwise.c."""
RANKS = (3, 4)
"""The ranks of operands with one and with two axes of positions."""
MOST_TAPS = 1024
"""The most rows of taps, as in depthwise.c."""


def implementations(op: str) -> tuple[str, ...]:
    """Return the names of the implementations of an operator by itself."""
    return (CONV,) if op == "Conv" else ()


def match(
    fragment: Node, implementation: str, *, bases: Mapping[int, Window] | None = None, destination: Window | None = None
) -> LibraryCall | Reason:
    """Return the call that computes ``fragment``, or why there is none; operands and result are row-major by default."""
    if implementation != CONV:
        return f"depthwise convolutions are computed in {PLAIN} alone"
    strange = next((node.type.dtype for node in walk((fragment,)) if node.type.dtype != PLAIN), None)
    if refused := f"it holds {strange}" if strange is not None else unsized(fragment):
        return refused
    base: Base = lying(bases)
    matched = spine(fragment, frozenset(("Conv",)), destination or contiguous(fragment.type.sizes), base)
    if isinstance(matched, str):
        return matched
    anchor, steps = matched.anchor, steps_of(matched.post_operations)
    a: dict[str, Any] = dict(anchor.attributes)
    left, right = anchor.inputs
    channels, inputs_of_each, *taps = right.type.sizes
    if a["layout"] != "NHWC" or left.type.rank not in RANKS:
        return f"the convolution has its channels first, or {left.type.rank - 2} axes of positions"
    if channels != a["group"] or inputs_of_each != 1:
        return "the convolution has more than one channel a group"
    if taps[0] > MOST_TAPS:
        return f"{taps[0]} rows of taps are too many"
    source, weights = read(left, base), read(right, base)
    if isinstance(source, str) or isinstance(weights, str) or isinstance(steps, str):
        return next(each for each in (source, weights, steps) if isinstance(each, str))
    leaf = weights[0]
    if not any(each.integer("index") == leaf.integer("index") and each.attribute("constant") for each in placeholders(fragment)):
        return "the weights are no constant"
    x = Argument("src", source[0].integer("index"), source[1])
    arguments = (x, Argument("weights", leaf.integer("index"), weights[1]), *steps[1])
    if refused := misplaced(matched.destination, arguments):
        return refused
    geometry = [*_plane(taps, 1), *_plane(a["strides"], 1), *_plane(a["pads"][: len(taps)], 0), *_plane(a["dilations"], 1)]
    pack: dict[str, Any] = {"operand": 1, "function": "depthwise_pack", "elements": -(-channels // PANEL) * PANEL * math.prod(taps)}
    parameters = {"function": "depthwise_convolve", "pack": pack, "integers": [*geometry, 0, *steps[0]]}
    return LibraryCall("depthwise_convolve", parameters, arguments, matched.destination)


def _plane(numbers: Sequence[int], of_rows: int) -> tuple[int, ...]:
    """Return a number for rows and one for columns; ``of_rows`` is the number for rows if there is one row."""
    return (*(of_rows,) * (2 - len(numbers)), *numbers)
