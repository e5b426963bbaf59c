"""MaxPool, AveragePool with both padding conventions, and LRN: reductions over sliding windows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from random import Random

from egraph.errors import TypeMismatch
from egraph.tensor.expr.bodies import guarded
from egraph.tensor.expr.index import Index, Size, index
from egraph.tensor.expr.scope import ONE, ZERO, Number, Reduction, Scalar, Scope, Tensor, inside, number
from egraph.tensor.expr.scope import apply as call
from egraph.tensor.ops.dtypes import BYTES, FLOATS
from egraph.tensor.ops.sampling import Sample, draw_float, draw_shape
from egraph.tensor.ops.scopes import add, as_number, factor, grid, multiply, pointwise, read
from egraph.tensor.ops.sizes import at_least, axis_of, is_zero, plain, product, refuse
from egraph.tensor.ops.spec import OpSpec, Shape, Values
from egraph.tensor.ops.window import LAYOUTS, Layout, Window, draw_window, every_window_reads, layout_of, window_of


def _pool_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    data = shapes[0]
    layout = layout_of(data, a)
    if len(a["kernel_shape"]) != layout.spatial:
        refuse(f"kernel_shape must have {layout.spatial} entries, got {len(a['kernel_shape'])}")
    window, space = window_of(a["kernel_shape"], a), layout.space(data)
    every_window_reads(window, space)
    return layout.join(data[0], data[layout.channel], window.output_sizes(space))


def _average_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    if a["count_include_pad"] not in (0, 1):
        refuse(f"count_include_pad must be 0 or 1, got {a['count_include_pad']}")
    return _pool_shape(shapes, a)


def _pooled(data: Tensor, a: Values, kind: Reduction, identity: Number, prefix: str) -> Scope:
    """Reduce every window of the data; padding contributes the identity."""
    layout, window = layout_of(data.shape, a), window_of(a["kernel_shape"], a)
    iterators, out = grid(prefix, _pool_shape([data.shape], a))
    sums, taps = grid(f"{prefix}k", a["kernel_shape"])
    positions = window.positions(layout.space(out), taps)
    element = factor(data, layout.join(out[0], out[layout.channel], positions))
    return Scope(iterators, sums, kind, guarded(window.guards(positions, layout.space(data.shape)), element, identity))


def _tap_count(window: Window, axis: int, size: Size, outputs: Size) -> Scope | Size:
    """Return how many taps along one axis lie inside the data: a number, or a scope over the output position."""
    if is_zero(window.before[axis]) and is_zero(window.after[axis]):
        return window.sizes[axis]
    iterators, (out,) = grid(f"c{axis}_", (outputs,))
    sums, (tap,) = grid(f"c{axis}_k", (window.sizes[axis],))
    position = index(out * window.strides[axis] + tap * window.dilations[axis] - window.before[axis])
    return Scope(iterators, sums, Reduction.SUM, guarded(inside(position, 0, size), ONE, ZERO))


def _average_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    data = operands[0]
    layout, window = layout_of(data.shape, a), window_of(a["kernel_shape"], a)
    total = _pooled(data, a, Reduction.SUM, ZERO, "s")
    space, outputs = layout.space(data.shape), layout.space(total.shape)
    counts = [
        window.sizes[axis] if a["count_include_pad"] else _tap_count(window, axis, space[axis], outputs[axis])
        for axis in range(layout.spatial)
    ]
    fixed = as_number(product([count for count in counts if not isinstance(count, Scope)]))

    def body(indices: tuple[Index, ...]) -> Scalar:
        at = layout.space(indices)
        counted = [read(count, (at[axis],)) for axis, count in enumerate(counts) if isinstance(count, Scope)]
        divisor = multiply(*counted, *([fixed] if fixed != ONE or not counted else []))
        return call("div", read(total, indices), divisor)

    return pointwise("i", total.shape, body)


def _pool_sample(random: Random) -> Sample:
    while True:
        spatial = random.choice((1, 2, 2, 2, 3))
        layout = Layout(random.choice(LAYOUTS), spatial)
        space = tuple(random.choice((1, 2, 4, 5, 6, 7)) for _ in range(spatial))
        values = {**draw_window(random, space, largest=4 - (spatial == 3), pooled=True), "layout": layout.name}
        data = layout.join(random.choice((1, 2)), random.choice((1, 3)), space)
        try:
            _pool_shape([data], values)
        except TypeMismatch:  # a window lies only in the padding
            continue
        return (data,), values


def _average_sample(random: Random) -> Sample:
    shapes, values = _pool_sample(random)
    return shapes, {**values, "count_include_pad": random.choice((0, 1))}


def _pool_flops(shapes: Sequence[tuple[int, ...]], a: Values) -> int:
    return math.prod(plain(_pool_shape(shapes, a))) * math.prod(a["kernel_shape"])


def _lrn_shape(shapes: Sequence[Shape], a: Values) -> Shape:
    axis_of(a["axis"], shapes[0])
    at_least(a["size"], 1, "size must be at least 1")
    return shapes[0]


def _share(alpha: float | Scalar, count: Size) -> Scalar:
    """alpha / count, as one number if both are known"""
    if isinstance(alpha, float) and isinstance(count, int):
        return number(Fraction(alpha) / count)
    return call("div", number(alpha), as_number(count))


def _lrn_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    """x / (bias + alpha/size * sum of x^2 over the neighbouring channels) ^ beta"""
    data, axis, count = operands[0], a["axis"], a["size"]
    iterators, out = grid("s", data.shape)
    sums, (tap,) = grid("k", (count,))
    channel = out[axis] + tap - (count - 1) // 2
    element = read(data, (*out[:axis], channel, *out[axis + 1 :]))
    square = guarded(inside(channel, 0, data.shape[axis]), multiply(element, element), ZERO)
    squares = Scope(iterators, sums, Reduction.SUM, square)

    def body(indices: tuple[Index, ...]) -> Scalar:
        scaled = multiply(_share(a["alpha"], count), read(squares, indices))
        return call("div", read(data, indices), call("pow", add(number(a["bias"]), scaled), number(a["beta"])))

    return pointwise("i", data.shape, body)


def _lrn_sample(random: Random) -> Sample:
    shape = draw_shape(random, 4, 4)
    values = {"size": random.choice((1, 3, 5)), "alpha": draw_float(random, 0.25, 2), "beta": draw_float(random, 0.25, 1)}
    return (shape,), {**values, "bias": draw_float(random, 1, 2), "axis": random.choice((1, 3))}


def _max_meaning(operands: Sequence[Tensor], a: Values) -> Scope:
    """Return the largest element of a window; for bytes, the result is a byte."""
    data = operands[0]
    largest = _pooled(data, a, Reduction.MAX, Number(-math.inf), "i" if data.dtype not in BYTES else "s")
    if data.dtype not in BYTES:
        return largest
    return pointwise("i", largest.shape, lambda indices: call(f"to_{data.dtype}", read(largest, indices)))


POOLING: tuple[OpSpec, ...] = (
    OpSpec(
        "MaxPool", 1, "reduction", _pool_shape, _max_meaning, _pool_sample, dtypes=FLOATS | BYTES,
        attributes=("dilations", "kernel_shape", "layout", "pads", "strides"), flops=_pool_flops, notes="ceil_mode is a larger end pad",
    ),
    OpSpec(
        "AveragePool", 1, "reduction", _average_shape, _average_meaning, _average_sample,
        attributes=("count_include_pad", "dilations", "kernel_shape", "layout", "pads", "strides"), flops=_pool_flops,
        notes="ceil_mode is a larger end pad where padding does not count, else a Pad and then a pool where it does not",
    ),
    OpSpec(
        "LRN", 1, "reduction", _lrn_shape, _lrn_meaning, _lrn_sample, attributes=("alpha", "axis", "beta", "bias", "size"),
        flops=lambda shapes, a: math.prod(shapes[0]) * (2 * a["size"] + 3),
        notes="the window of an even size reaches one further up than down",
    ),
)  # fmt: skip
