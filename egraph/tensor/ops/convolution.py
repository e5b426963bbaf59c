"""Conv and ConvTranspose in one to three spatial dimensions, with groups, dilations and padding per side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from egraph.errors import TypeMismatch
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.index import Index, Size, index
from egraph.tensor.expr.scope import ZERO, Compare, Reduction, Scope, Tensor, inside
from egraph.tensor.ops.dtypes import BYTES, FLOATS, contracted, same_dtype
from egraph.tensor.ops.sampling import Sample
from egraph.tensor.ops.scopes import factor, grid, multiply, read
from egraph.tensor.ops.sizes import at_least, divide, entries, is_one, known, plain, quotient, rank_between, refuse, same
from egraph.tensor.ops.spec import OpSpec, Shape, Values
from egraph.tensor.ops.window import LAYOUTS, Layout, draw_window, layout_of, window_of


def _conv_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    data, weight = shapes
    layout = layout_of(data, a)
    rank_between(weight, len(data), len(data), "weight")
    group = at_least(a["group"], 1, "group must be at least 1")
    same(data[layout.channel], weight[1] * group, "input channels must be weight channels * group")
    divide(weight[0], group, "group must divide the output channels")
    return layout.join(data[0], weight[0], window_of(weight[2:], a).output_sizes(layout.space(data)))


def _channel(output: Index, outputs: Size, inputs: Size, group: Size, inner: Index) -> Index:
    """(f // (F/g)) * (C/g) + ci, where ci counts the channels of one group"""
    if is_one(group):
        return inner
    return index((output // quotient(outputs, group)) * inputs + inner)


def _conv_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    data, weight = operands
    layout, window = layout_of(data.shape, a), window_of(weight.shape[2:], a)
    shape = layout.join(data.shape[0], weight.shape[0], window.output_sizes(layout.space(data.shape)))
    iterators, out = grid("i", shape)
    sums, (inner, *taps) = grid("k", weight.shape[1:])
    f = out[layout.channel]
    channel = _channel(f, weight.shape[0], weight.shape[1], a["group"], inner)
    positions = window.positions(layout.space(out), taps)
    body = multiply(factor(data, layout.join(out[0], channel, positions)), factor(weight, (f, inner, *taps)))
    return Scope(iterators, sums, Reduction.SUM, guarded(window.guards(positions, layout.space(data.shape)), body, ZERO))


def _conv_flops(shapes: Sequence[tuple[int, ...]], a: Values) -> int:
    return 2 * math.prod(shapes[1][1:]) * math.prod(plain(_conv_shape(shapes, a)))


def _draw_group(random: Random) -> tuple[int, int, int]:
    """Return (group, channels of one group on one side, on the other): group 1, between, or one channel each."""
    return random.choice((1, 1, 2, 3)), random.choice((1, 1, 2, 3)), random.choice((1, 2, 3))


def _conv_sample(random: Random) -> Sample:
    spatial = random.choice((1, 2, 2, 2, 3))
    layout = Layout(random.choice(LAYOUTS), spatial)
    group, inner, outer = _draw_group(random)
    space = tuple(random.choice((1, 2, 4, 5, 6, 7)) if spatial < 3 else random.choice((1, 3, 4)) for _ in range(spatial))
    attributes = draw_window(random, space)
    weight = (outer * group, inner, *attributes.pop("kernel_shape"))
    return (layout.join(random.choice((1, 2)), inner * group, space), weight), {**attributes, "group": group, "layout": layout.name}


def _transposed_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    data, weight = shapes
    layout = layout_of(data, a)
    rank_between(weight, len(data), len(data), "weight")
    group = at_least(a["group"], 1, "group must be at least 1")
    same(data[layout.channel], weight[0], "input channels must be the weight's first size")
    divide(weight[0], group, "group must divide the input channels")
    window = window_of(weight[2:], a)
    extra = entries(a["output_padding"], layout.spatial, "output_padding")
    space = []
    for axis, size in enumerate(layout.space(data)):
        at_least(extra[axis], 0, "output_padding must not be negative")
        stride, dilation = window.strides[axis], window.dilations[axis]
        added, limits = known(extra[axis]), (known(stride), known(dilation))
        if added and None not in limits and added >= max(limit for limit in limits if limit is not None):
            refuse(f"output_padding must be smaller than the stride or the dilation, got {added}")
        result = stride * (size - 1) + extra[axis] + window.extent(axis) - window.before[axis] - window.after[axis]
        space.append(at_least(result, 1, f"the padding removes all of spatial axis {axis}: its size must be at least 1"))
    return layout.join(data[0], weight[1] * group, space)


def _transposed_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    data, weight = operands
    shape = _transposed_shape([data.shape, weight.shape], a)
    layout, window, group = layout_of(data.shape, a), window_of(weight.shape[2:], a), a["group"]
    iterators, out = grid("i", shape)
    inputs = quotient(weight.shape[0], group)
    sums, (inner, *taps) = grid("k", (inputs, *weight.shape[2:]))
    f, outputs = out[layout.channel], weight.shape[1]
    channel = _channel(f, shape[layout.channel], inputs, group, inner)
    conditions: list[Compare] = []
    positions: list[Index] = []
    for axis, size in enumerate(layout.space(data.shape)):
        shifted = index(layout.space(out)[axis] + window.before[axis] - taps[axis] * window.dilations[axis])
        positions.append(shifted // window.strides[axis])
        conditions += [Compare(shifted % window.strides[axis], "==", index(0)), *inside(positions[-1], 0, size)]
    body = multiply(
        read(data, layout.join(out[0], channel, positions)), read(weight, (channel, f if is_one(group) else f % outputs, *taps))
    )
    return Scope(iterators, sums, Reduction.SUM, guarded(conditions, body, ZERO))


def _transposed_flops(shapes: Sequence[tuple[int, ...]], a: Values) -> int:
    return 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:])


def _transposed_sample(random: Random) -> Sample:
    spatial = random.choice((1, 2, 2, 2, 3))
    layout = Layout(random.choice(LAYOUTS), spatial)
    group, inner, outer = _draw_group(random)
    while True:
        space = tuple(random.choice((1, 2, 3, 5)) if spatial < 3 else random.choice((1, 3)) for _ in range(spatial))
        attributes = draw_window(random, space)
        weight = (inner * group, outer, *attributes.pop("kernel_shape"))
        extra = tuple(random.randrange(stride) for stride in attributes["strides"])
        values = {**attributes, "group": group, "output_padding": extra, "layout": layout.name}
        data = layout.join(random.choice((1, 2)), inner * group, space)
        try:
            _transposed_shape([data, weight], values)
        except TypeMismatch:  # the padding removes everything
            continue
        return (data, weight), values


CONVOLUTION: tuple[OpSpec, ...] = (
    OpSpec(
        "Conv", 2, "contraction", _conv_shape, _conv_meaning, _conv_sample, attributes=("dilations", "group", "layout", "pads", "strides"),
        dtype=contracted, dtypes=FLOATS | BYTES, flops=_conv_flops,
        notes="a bias is an Add; the weight is [F, C/group, ...] in both layouts",
    ),
    OpSpec(
        "ConvTranspose", 2, "contraction", _transposed_shape, _transposed_meaning, _transposed_sample,
        attributes=("dilations", "group", "layout", "output_padding", "pads", "strides"), dtype=same_dtype, flops=_transposed_flops,
        notes="a bias is an Add; the weight is [C, F/group, ...] in both layouts",
    ),
)  # fmt: skip
