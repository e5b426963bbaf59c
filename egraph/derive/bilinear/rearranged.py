"""Strides and dilations as rearrangements around a plain convolution, in core operators, so that the rules for plain convolutions apply.

    stride s:    conv(x, w) = conv(phases of x as channels, phases of w as channels)      taps completed to a multiple of s by zeros
    dilation d:  conv(x, w) = phases joined(conv(phases of x as batch, w))                 sizes completed to a multiple of d by zeros

An axis of ``L = q p`` positions becomes ``q`` positions of ``p`` phases each: a reshape, a transpose, a reshape. Channels last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from egraph.derive.bilinear.axes import Gathered
from egraph.derive.bilinear.convolutions import lines_of
from egraph.derive.derivation import Derivation, Step
from egraph.tensor import Node
from egraph.tensor.ops import apply

LARGEST_COMPLETION = 1.5
"""The largest factor of multiplications that completed taps may cost."""
FEW_CHANNELS = 16
"""The number of channels up to which gathering phases pays off: a library's kernel of so few channels leaves most of its lanes idle."""


def rearranged_programs(node: Node) -> Iterable[Derivation]:
    """Yield the program over phases of a convolution with a stride or a dilation, channels last."""
    x, w = node.inputs
    if node.attribute("layout") != "NHWC":
        return
    lines = lines_of(node)
    is_plain = all(line.dilation == 1 for line in lines)
    if not is_plain and all(line.stride == 1 for line in lines):
        y = dilation_as_batch(x, w, lines, node.integer("group"))
        yield Derivation("dilation as batch", y, (Step("variable substitution: phases of a dilation", f"{y.type}"),))
    completed = math.prod(-(-line.taps // line.stride) * line.stride / line.taps for line in lines)
    few = w.type.sizes[1] <= FEW_CHANNELS and node.attribute("group") == 1
    if is_plain and few and any(line.stride > 1 for line in lines) and completed <= LARGEST_COMPLETION:
        y = stride_as_channels(x, w, lines)
        yield Derivation("stride as channels", y, (Step("variable substitution: phases of a stride", f"{y.inputs[0].type}"),))


def stride_as_channels(x: Node, w: Node, lines: Sequence[Gathered]) -> Node:
    """Return the convolution of an ungrouped convolution's phases, with stride 1 and s to the power of the axes times as many channels."""
    taps = [-(-line.taps // line.stride) for line in lines]
    positions = [line.outputs + tap - 1 for line, tap in zip(lines, taps, strict=True)]
    strides = [line.stride for line in lines]
    data = _framed(x, 1, [line.before for line in lines], [p * s for p, s in zip(positions, strides, strict=True)])
    data = _phases(data, 1, positions, strides, first=1 + len(lines))
    weight = _framed(w, 2, [0] * len(lines), [t * s for t, s in zip(taps, strides, strict=True)])
    weight = _phases(weight, 2, taps, strides, first=1)
    sizes = (weight.type.sizes[0], math.prod(strides) * w.type.sizes[1], *taps)
    data = apply("Reshape", data, shape=(x.type.sizes[0], *positions, sizes[1]))
    return _plain(data, apply("Reshape", weight, shape=sizes), len(lines), 1)


def dilation_as_batch(x: Node, w: Node, lines: Sequence[Gathered], group: int) -> Node:
    """Return the plain convolution of the phases of a dilated convolution, its phases joined again."""
    dilations = [line.dilation for line in lines]
    outputs = [-(-line.outputs // line.dilation) for line in lines]
    positions = [q + line.taps - 1 for q, line in zip(outputs, lines, strict=True)]
    data = _framed(x, 1, [line.before for line in lines], [p * d for p, d in zip(positions, dilations, strict=True)])
    data = _phases(data, 1, positions, dilations, first=0)
    batch, channels, count = x.type.sizes[0], x.type.sizes[-1], len(lines)
    y = _plain(apply("Reshape", data, shape=(math.prod(dilations) * batch, *positions, channels)), w, count, group)
    y = apply("Reshape", y, shape=(*dilations, batch, *outputs, y.type.sizes[-1]))
    order = [count, *(axis for k in range(count) for axis in (count + 1 + k, k)), 2 * count + 1]
    y = apply("Transpose", y, perm=tuple(order))
    y = apply("Reshape", y, shape=(batch, *(q * d for q, d in zip(outputs, dilations, strict=True)), y.type.sizes[-1]))
    return _framed(y, 1, [0] * count, [line.outputs for line in lines])


def _plain(x: Node, w: Node, spatial: int, group: int) -> Node:
    unit = (1,) * spatial
    return apply("Conv", x, w, strides=unit, dilations=unit, pads=(0,) * 2 * spatial, group=group, layout="NHWC")


def _framed(x: Node, first: int, before: Sequence[int], sizes: Sequence[int]) -> Node:
    """Return x with axes from ``first`` on of these sizes, by zeros before them, and zeros behind them or an end cut off."""
    actual = x.type.sizes
    low = [0] * len(actual)
    high = list(actual)
    for axis, (added, size) in enumerate(zip(before, sizes, strict=True), first):
        low[axis], high[axis] = added, size
    after = [size - start - length for size, start, length in zip(high, low, actual, strict=True)]
    if any(low) or any(extra > 0 for extra in after):
        x = apply("Pad", x, mode="constant", value=0.0, before=tuple(low), after=tuple(max(0, extra) for extra in after))
    if x.type.sizes == tuple(high):
        return x
    return apply("Slice", x, starts=(0,) * len(actual), ends=tuple(high), steps=(1,) * len(actual))


def _phases(x: Node, start: int, positions: Sequence[int], phases: Sequence[int], *, first: int) -> Node:
    """Split axes from ``start`` on into positions and phases, and move all phases to axis ``first`` of the other axes."""
    shape = x.type.sizes
    split = [size for pair in zip(positions, phases, strict=True) for size in pair]
    x = apply("Reshape", x, shape=(*shape[:start], *split, *shape[start + len(positions) :]))
    moved = [start + 2 * k + 1 for k in range(len(positions))]
    unmoved = [axis for axis in range(len(x.type.sizes)) if axis not in moved]
    return apply("Transpose", x, perm=(*unmoved[:first], *moved, *unmoved[first:]))
