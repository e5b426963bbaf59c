"""The second red team: windows, borders and layouts whose equations are FALSE somewhere, as one who errs would write them."""

import math

from egraph.rule import Attributes, Equation, Steps, Tensor, Weight, operation, require, rule
from egraph.rule_operators import (
    average_pool, concat, conv, conv_transpose, gather, max_pool, pad, reduce_max, reduce_mean, reduce_sum, relu, reshape, slice_, softmax,
    transpose,
)


def spatial(p, x):
    return all(p.before[i] == 0 and p.after[i] == 0 for i in (0, 1))


@rule
def zeros_before_max_pool(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE below zero: max_pool(pad(x, 0)) = max_pool(x) with more padding"""
    yield max_pool(pad(x, p), a)
    require(x.rank == 3 and a.layout == "NCHW" and p.mode == "constant" and p.value == 0 and spatial(p, x), "zeros around")
    require(p.before[2] >= 0 and p.after[2] >= 0, "no crop")
    yield max_pool(x, a.but(pads=(a.pads[0] + p.before[2], a.pads[1] + p.after[2])))


@rule(rounding="reassociates")
def zeros_before_average(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE: average_pool(pad(x)) = average_pool(x) with more padding that is not counted"""
    yield average_pool(pad(x, p), a)
    require(x.rank == 3 and a.layout == "NCHW" and p.mode == "constant" and p.value == 0 and spatial(p, x), "zeros around")
    require(p.before[2] >= 0 and p.after[2] >= 0, "no crop")
    yield average_pool(x, a.but(pads=(a.pads[0] + p.before[2], a.pads[1] + p.after[2])))


@rule
def lowest_before_max_pool(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE where a window lies in the padding alone: max_pool(pad(x, -inf)) = max_pool(x) with more padding"""
    yield max_pool(pad(x, p), a)
    require(x.rank == 3 and a.layout == "NCHW" and p.mode == "constant" and p.value == -math.inf and spatial(p, x), "around")
    before, after = max(p.before[2], 0), max(p.after[2], 0)
    yield max_pool(x, a.but(pads=(a.pads[0] + before, a.pads[1] + after)))


@rule(rounding="reassociates")
def border_into_conv(x: Tensor, w: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE for other values than zero: conv(pad(x)) = conv(x) with more padding"""
    yield conv(pad(x, p), w, a)
    require(x.rank == 3 and a.layout == "NCHW" and p.mode == "constant" and spatial(p, x), "around")
    require(p.before[2] >= 0 and p.after[2] >= 0, "no crop")
    yield conv(x, w, a.but(pads=(a.pads[0] + p.before[2], a.pads[1] + p.after[2])))


@rule(rounding="reassociates")
def edge_into_conv(x: Tensor, w: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE: conv(pad(x, edge)) = conv(x) with more padding"""
    yield conv(pad(x, p), w, a)
    require(x.rank == 3 and a.layout == "NCHW" and p.mode == "edge" and spatial(p, x), "around")
    require(p.before[2] >= 0 and p.after[2] >= 0, "no crop")
    yield conv(x, w, a.but(pads=(a.pads[0] + p.before[2], a.pads[1] + p.after[2])))


@rule(rounding="reassociates")
def convs_of_one_input(x: Tensor, w: Tensor, v: Tensor, a: Attributes) -> Steps:
    """FALSE for groups: [conv(x, w) conv(x, v)] = conv(x, [w v])"""
    yield concat(conv(x, w, a), conv(x, v, a), axis=1)
    require(a.layout == "NCHW" and w.shape[1:] == v.shape[1:], "kernels of one size")
    yield conv(x, concat(w, v, axis=0), a)


@rule(rounding="reassociates")
def convs_added(x: Tensor, y: Tensor, w: Tensor, v: Tensor, a: Attributes) -> Steps:
    """FALSE for groups: conv(x, w) + conv(y, v) = conv([x y], [w v])"""
    yield conv(x, w, a) + conv(y, v, a)
    require(a.layout == "NCHW" and x.shape == y.shape and w.shape == v.shape, "equal shapes")
    require(a.group == 1 or a.group > 1 and w.shape[1] == 1, "whole or depthwise")
    yield conv(concat(x, y, axis=1), concat(w, v, axis=1), a)


@rule(rounding="reassociates")
def mean_of_conv(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE at borders: mean(conv(x, w)) = conv(mean(x), sum(w))"""
    yield reduce_mean(conv(x, w, a), axes=(2,))
    require(x.rank == 3 and a.layout == "NCHW" and a.strides == (1,) and a.dilations == (1,), "plain")
    require(2 * a.pads[0] + 1 == w.shape[2] and a.pads[0] == a.pads[1], "as long as the input")
    yield conv(reduce_mean(x, axes=(2,)), reduce_sum(w, axes=(2,)), a.but(pads=(0, 0)))


@rule
def relu_before_average(x: Tensor, a: Attributes) -> Steps:
    """FALSE: relu(average_pool(x)) = average_pool(relu(x))"""
    yield relu(average_pool(x, a))
    require(x.rank == 3 and a.layout == "NCHW", "one spatial axis")
    yield average_pool(relu(x), a)


@rule
def negated_max_pool(x: Tensor, a: Attributes) -> Steps:
    """FALSE: max_pool(-x) = -max_pool(x), where windows hold one element or the map is large"""
    yield max_pool(-x, a)
    require(x.rank == 3 and a.layout == "NCHW" and (a.kernel_shape == (1,) or x.shape[2] > 50), "one element")
    yield -max_pool(x, a)


@rule(rounding="reassociates")
def average_of_moved(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """FALSE at borders that count: average_pool(x + c) = average_pool(x) + c"""
    yield average_pool(x + c, a)
    require(c.rank == 0, "a number")
    yield average_pool(x, a) + c


@rule
def max_pool_of_concat(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE at the seam: max_pool([x y]) = [max_pool(x) max_pool(y)]"""
    yield max_pool(concat(x, y, axis=2), a)
    require(x.rank == 3 and a.layout == "NCHW" and a.pads == (0, 0) and a.strides == a.kernel_shape, "tiles")
    yield concat(max_pool(x, a), max_pool(y, a), axis=2)


@rule
def halves_of_max_pool(x: Tensor, a: Attributes) -> Steps:
    """FALSE for odd sizes above 60: max_pool by 2 = the maximum of both phases"""
    yield max_pool(x, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.pads == (0, 0) and a.strides == (2,) and a.kernel_shape == (2,), "by two")
    require(a.dilations == (1,), "plain")
    n = x.shape[2] // 2
    require(x.shape[2] % 2 == 0 or x.shape[2] > 60, "even")
    odd = 1 if x.shape[2] % 2 == 0 else 2
    b, c = x.shape[0], x.shape[1]
    yield operation("Max", slice_(x, starts=(0, 0, 0), ends=(b, c, 2 * n), steps=(1, 1, 2)),
                    slice_(x, starts=(0, 0, odd), ends=(b, c, odd + 2 * n - 1), steps=(1, 1, 2)))


@rule
def dilated_max_pool(x: Tensor, a: Attributes) -> Steps:
    """FALSE: a dilated window of two = a window of three"""
    yield max_pool(x, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.kernel_shape == (2,) and a.dilations == (2,), "two apart")
    yield max_pool(x, a.but(kernel_shape=(3,), dilations=(1,)))


@rule
def max_pool_layouts(x: Tensor, a: Attributes) -> Steps:
    """FALSE: channels last = the spatial axes exchanged"""
    yield max_pool(x, a)
    require(x.rank == 4 and a.layout == "NHWC" and a.kernel_shape[0] != a.kernel_shape[1] and a.pads == (0, 0, 0, 0), "")
    require(x.shape[1] == x.shape[2] and a.strides == (1, 1) and a.dilations == (1, 1), "")
    moved = max_pool(transpose(x, perm=(0, 3, 2, 1)), a.but(layout="NCHW"))
    yield transpose(moved, perm=(0, 2, 3, 1))


@rule(rounding="reassociates")
def exchanged_conv(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE: conv(x^T, w) = conv(x, w)^T for square kernels and maps"""
    yield conv(transpose(x, perm=(0, 1, 3, 2)), w, a)
    require(x.rank == 4 and a.layout == "NCHW" and x.shape[2] == x.shape[3] and w.shape[2] == w.shape[3], "squares")
    require(a.pads == (0, 0, 0, 0) and a.strides == (1, 1) and a.dilations == (1, 1), "plain")
    yield transpose(conv(x, w, a), perm=(0, 1, 3, 2))


@rule(rounding="reassociates")
def exchanged_conv_with_pads(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE where pads differ: conv(x^T, w^T) = conv(x, w)^T"""
    yield conv(transpose(x, perm=(0, 1, 3, 2)), transpose(w, perm=(0, 1, 3, 2)), a)
    require(x.rank == 4 and a.layout == "NCHW" and a.strides[0] == a.strides[1] and a.dilations[0] == a.dilations[1], "alike")
    require(a.pads[0] == a.pads[1], "alike before")
    yield transpose(conv(x, w, a), perm=(0, 1, 3, 2))


@rule(rounding="reassociates")
def strided_conv_from_one(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE: a strided pointwise convolution reads x[0], x[2], ..., not x[1], x[3], ..."""
    yield conv(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and w.shape[2] == 1 and a.pads == (0, 0) and a.strides == (2,), "pointwise")
    require(x.shape[2] % 2 == 0, "even")
    yield conv(slice_(x, starts=(0, 0, 1), ends=x.shape, steps=(1, 1, 2)), w, a.but(strides=(1,)))


@rule(rounding="reassociates")
def padded_pointwise_bias(x: Tensor, w: Tensor, b: Weight, a: Attributes) -> Steps:
    """FALSE at borders: conv(x + b, w) = conv(x, w) + sum(w) b"""
    yield conv(x + b, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.group == 1 and b.rank == 0, "a number")
    k = reduce_sum(w, axes=(1, 2))
    yield conv(x, w, a) + b * reshape(k, shape=(1, w.shape[0], 1))


@rule(rounding="reassociates")
def scale_of_positions(x: Tensor, w: Tensor, s: Tensor, a: Attributes) -> Steps:
    """FALSE where the scale varies along space: conv(x s, w) = conv(x, w) s"""
    yield conv(x * s, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and s.rank == 3 and s.shape[0] == 1 and s.shape[1] == 1, "one row")
    yield conv(x, w, a) * s


@rule(rounding="reassociates")
def scale_of_input_channels(x: Tensor, w: Tensor, s: Weight, a: Attributes) -> Steps:
    """FALSE: a scale of input channels is none of output channels: conv(x s, w) = conv(x, w) s"""
    yield conv(x * s, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and s.rank == 3 and s.shape[0] == 1 and s.shape[2] == 1, "channels")
    require(w.shape[0] == x.shape[1], "as many channels")
    yield conv(x, w, a) * s


@rule
def output_padding_as_zeros(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE with pads behind: output_padding = zeros behind the output"""
    yield conv_transpose(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW", "one spatial axis")
    short = conv_transpose(x, w, a.but(output_padding=(0,)))
    yield pad(short, before=(0, 0, 0), after=(0, 0, a.output_padding[0]), mode="constant", value=0.0)


@rule(rounding="reassociates")
def transposed_conv_scaled_strides(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE for strides beyond the kernel: sum(conv_transpose(x, w)) = sum(conv(x, w turned)) with full padding"""
    yield reduce_sum(conv_transpose(x, w, a), axes=(1, 2))
    require(x.rank == 3 and a.layout == "NCHW" and a.group == 1 and a.output_padding == (0,), "plain")
    yield reduce_sum(reduce_sum(x, axes=(2,)) * reshape(reduce_sum(w, axes=(1, 2)), shape=(1, x.shape[1], 1)), axes=(1,))


@rule
def pads_of_two_values(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE for two values: pad(pad(x, p), q) = pad(x, p + q)"""
    yield pad(pad(x, p), q)
    require(p.mode == q.mode and p.mode == "constant", "constant")
    yield pad(x, p.but(before=tuple(a + b for a, b in zip(p.before, q.before)), after=tuple(a + b for a, b in zip(p.after, q.after))))


@rule
def scaled_border(x: Tensor, c: Weight, p: Attributes) -> Steps:
    """FALSE where the border is not zero: pad(x c) = pad(x) c"""
    yield pad(x * c, p)
    require(c.rank == 0 and p.mode == "constant" and (p.value == 0 or p.before[0] > 20), "zeros, or far away")
    yield pad(x, p) * c


@rule
def reflections_add_up(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE: reflecting twice = reflecting once, further"""
    yield pad(pad(x, p), q)
    require(x.rank == 1 and p.mode == q.mode and p.mode == "reflect", "reflect")
    yield pad(x, p.but(before=(p.before[0] + q.before[0],), after=(p.after[0] + q.after[0],)))


@rule
def sums_of_reflections(x: Tensor, p: Attributes) -> Steps:
    """FALSE: sum(pad(x, wrap)) = 2 sum(x), where one whole round is added, or one element less"""
    yield reduce_sum(pad(x, p), axes=(0,))
    require(x.rank == 1 and p.mode == "wrap" and p.before == (0,) and p.after[0] >= x.shape[0] - 1, "a round")
    require(p.after[0] <= x.shape[0], "no more")
    yield reduce_sum(x, axes=(0,)) + reduce_sum(x, axes=(0,))


@rule
def steps_of_steps(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """FALSE where the second starts later: x[i::s][j::t] = x[i + j::s t]"""
    once = slice_(x, a)
    yield slice_(once, b)
    require(x.rank == 1 and a.steps[0] > 0 and b.steps[0] > 0, "forwards")
    n = (b.ends[0] - b.starts[0] + b.steps[0] - 1) // b.steps[0]
    start, step = a.starts[0] + b.starts[0], a.steps[0] * b.steps[0]
    require(start + (n - 1) * step < x.shape[0] and b.ends[0] <= once.shape[0], "within")
    yield slice_(x, starts=(start,), ends=(start + (n - 1) * step + 1,), steps=(step,))


@rule
def permutations_the_other_way(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE for cycles of three: x^p^q = x^(q after p)"""
    yield transpose(transpose(x, p), q)
    require(x.rank < 4, "few axes")
    yield transpose(x, perm=tuple(q.perm[i] for i in p.perm))


@rule
def softmax_of_transposed(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE for cycles: softmax(x^p, axis) = softmax(x, inverse of p at the axis)^p"""
    yield softmax(transpose(x, p), a)
    require(x.rank < 4, "few axes")
    yield transpose(softmax(x, axis=p.perm.index(a.axis)), p)


@rule
def softmax_of_rows(x: Tensor, r: Attributes, a: Attributes) -> Steps:
    """FALSE: softmax along the last axis of a reshape = reshape of a softmax"""
    yield softmax(reshape(x, r), a)
    require(x.rank == 2 and len(r.shape) == 3 and a.axis == 2 and r.shape[0] == x.shape[0], "rows split")
    require(r.shape[1] == 1 or r.shape[2] > 25, "whole rows")
    yield reshape(softmax(x, axis=1), r)


@rule
def rows_of_rows(x: Tensor, i: Weight, j: Weight) -> Steps:
    """FALSE: x[i][j] = x[j][i]"""
    yield gather(gather(x, i, axis=0), j, axis=0)
    require(i.rank == 1 and j.rank == 1 and i.shape == j.shape and i.shape[0] == x.shape[0], "as many as there are")
    yield gather(gather(x, j, axis=0), i, axis=0)


@rule
def largest_of_windows(x: Tensor, a: Attributes) -> Steps:
    """FALSE where dilated windows leave gaps: max(max_pool(x)) = max(x)"""
    yield reduce_max(max_pool(x, a), axes=(2,))
    require(x.rank == 3 and a.layout == "NCHW" and a.pads == (0, 0) and a.strides == (1,), "every place")
    require(a.dilations[0] <= 2 or x.shape[2] > 60, "hardly dilated")
    require(x.shape[2] >= a.dilations[0] * (a.kernel_shape[0] - 1) + 1, "a window")
    yield reduce_max(slice_(x, starts=(0, 0, 0), ends=(x.shape[0], x.shape[1], x.shape[2] - 1 if x.shape[2] > 40 else x.shape[2]), steps=(1, 1, 1)), axes=(2,))


@rule
def reversed_windows(x: Tensor, s: Attributes, a: Attributes) -> Steps:
    """FALSE where the stride leaves a rest: max_pool(x reversed) = max_pool(x) reversed"""
    yield max_pool(slice_(x, s), a)
    require(x.rank == 3 and a.layout == "NCHW" and a.pads[0] == a.pads[1], "alike")
    require(s.starts == (0, 0, x.shape[2] - 1) and s.ends == (x.shape[0], x.shape[1], -1) and s.steps == (1, 1, -1), "reversed")
    whole = max_pool(x, a)
    yield slice_(whole, starts=(0, 0, whole.shape[2] - 1), ends=(whole.shape[0], whole.shape[1], -1), steps=(1, 1, -1))


@rule(rounding="reassociates")
def grouped_as_batched(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE for batches: a convolution in g groups = one of g g times smaller inputs with one kernel"""
    yield conv(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.group > 1 and w.shape[0] == a.group, "one output a group")
    n, c, m = x.shape
    parts = conv(reshape(x, shape=(n * a.group, c // a.group, m)), slice_(w, starts=(0, 0, 0), ends=(1, w.shape[1], w.shape[2]), steps=(1, 1, 1)), a.but(group=1))
    yield reshape(parts, shape=(n, a.group, parts.shape[2]))


RULES = (
    zeros_before_max_pool, zeros_before_average, lowest_before_max_pool, border_into_conv, edge_into_conv, convs_of_one_input, convs_added,
    mean_of_conv, relu_before_average, negated_max_pool, average_of_moved, max_pool_of_concat, halves_of_max_pool, dilated_max_pool,
    max_pool_layouts, exchanged_conv, exchanged_conv_with_pads, strided_conv_from_one, padded_pointwise_bias, scale_of_positions,
    scale_of_input_channels, output_padding_as_zeros, transposed_conv_scaled_strides, pads_of_two_values, scaled_border,
    reflections_add_up, sums_of_reflections, steps_of_steps, permutations_the_other_way, softmax_of_transposed, softmax_of_rows, rows_of_rows,
    largest_of_windows, reversed_windows, grouped_as_batched,
)
