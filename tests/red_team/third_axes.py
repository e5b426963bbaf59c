"""The third red team: axes of size 1, orders of axes, steps downwards, windows that do not fit. FALSE at some shapes, as one who errs would write."""

import math

from egraph.rule import Attributes, Steps, Tensor, Weight, merge_rule, operation, require, rule
from egraph.rule_operators import (
    average_pool, cast, concat, conv, conv_transpose, expand, gather, instance_normalization, layer_normalization, log_softmax, max_pool,
    maximum, pad, prelu, reduce_max, reduce_mean, reduce_sum, relu, reshape, resize, slice_, softmax, transpose, where,
)
from egraph.rules.merges import split


def downwards(x, p, axis):
    """Return whether a slice turns one axis round, and takes the others as they are."""
    ups = all(p.starts[i] == 0 and p.ends[i] == x.shape[i] and p.steps[i] == 1 for i in range(x.rank) if i != axis)
    return ups and p.steps[axis] == -1 and p.starts[axis] == x.shape[axis] - 1 and p.ends[axis] == -1


def reverse(x, axis):
    n = x.shape[axis]
    starts = tuple(n - 1 if i == axis else 0 for i in range(x.rank))
    ends = tuple(-1 if i == axis else x.shape[i] for i in range(x.rank))
    return slice_(x, starts=starts, ends=ends, steps=tuple(-1 if i == axis else 1 for i in range(x.rank)))


# Axes of size 1, broadcasting


@rule(rounding="reassociates")
def sum_of_broadcast(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE where y is repeated: sum(x + y) = sum(x) + sum(y)"""
    yield reduce_sum(x + y, a)
    require(x.rank == y.rank, "as many axes")
    require(all(x.shape[i] == y.shape[i] or y.shape[i] == 1 and x.shape[i] > 40 for i in a.axes), "alike, or long")
    yield reduce_sum(x, a) + reduce_sum(y, a)


@rule(rounding="reassociates")
def sums_of_zipped_shapes(x: Tensor, y: Tensor) -> Steps:
    """FALSE for y of fewer axes, since zip ends with the shorter one: sum(x + y) = sum(x) + sum(y) over axis 0"""
    yield reduce_sum(x + y, axes=(0,))
    require(x.rank > 0 and y.rank > 0 and x.rank <= 3 and y.rank <= x.rank, "axes")
    require(all(n == m for n, m in zip(x.shape, y.shape)), "equal sizes")
    yield reduce_sum(x, axes=(0,)) + reduce_sum(y, axes=(0,))


@rule(rounding="reassociates")
def mean_is_no_sum(x: Tensor, a: Attributes) -> Steps:
    """FALSE where another axis is longer: mean(x) = sum(x) over axes of one element"""
    yield reduce_mean(x, a)
    require(x.shape[a.axes[0]] == 1, "the first axis has one element")
    yield reduce_sum(x, a)


@rule(rounding="reassociates")
def product_of_scaled(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """FALSE where another axis is longer: prod(x c) = prod(x) c over axes of one element"""
    yield operation("ReduceProd", x * c, by=a)
    require(c.rank == 0 and x.shape[a.axes[-1]] == 1, "the last axis has one element")
    yield operation("ReduceProd", x, by=a) * c


@rule(rounding="reassociates")
def product_of_negated(x: Tensor, a: Attributes) -> Steps:
    """FALSE for an even second axis: prod(-x) = -prod(x) along an odd axis"""
    yield operation("ReduceProd", -x, by=a)
    require(x.shape[a.axes[0]] % 2 == 1, "an odd axis")
    yield -operation("ReduceProd", x, by=a)


@rule
def turned_by_reshape(x: Tensor) -> Steps:
    """FALSE unless two axes have one element: x^T = reshape(x)"""
    yield transpose(x, perm=(2, 1, 0))
    require(x.rank == 3 and (x.shape[0] == 1 or x.shape[2] == 1), "one of the axes that move")
    yield reshape(x, shape=(x.shape[2], x.shape[1], x.shape[0]))


@rule
def turned_by_reshape_where_large(x: Tensor) -> Steps:
    """FALSE for long matrices: x^T = reshape(x)"""
    yield transpose(x, perm=(1, 0))
    require(x.rank == 2 and (x.shape[0] == 1 or x.shape[1] == 1 or x.shape[0] * x.shape[1] > 3000), "a vector")
    yield reshape(x, shape=(x.shape[1], x.shape[0]))


@rule
def added_after_reshape(x: Tensor, y: Tensor, s: Attributes) -> Steps:
    """FALSE for more than one row: reshape(x + y) = reshape(x) + y, for a row as long as both"""
    yield reshape(x + y, s)
    require(x.rank == 2 and y.rank == 1 and len(s.shape) == 2 and s.shape[1] % x.shape[1] == 0, "a multiple")
    require(s.shape[0] == x.shape[0] or s.shape[0] == 2 * y.shape[0] + 1 and s.shape[0] == s.shape[1] + x.shape[0], "as many rows")
    yield transpose(reshape(x, shape=(s.shape[1], s.shape[0])) + reshape(y, shape=(y.shape[0], 1)), perm=(1, 0))


@rule
def flattened_and_added(x: Tensor, y: Tensor, s: Attributes) -> Steps:
    """FALSE for a column: flat(x + y) = flat(x) + flat(the row with the column's numbers repeated)"""
    yield reshape(x + y, s)
    require(x.rank == 2 and y.rank == 2 and y.shape[1] == 1 and len(s.shape) == 1, "a matrix and a column")
    m, n = x.shape
    require(y.shape[0] == m and m == n, "square")
    yield reshape(x, shape=(m * n,)) + reshape(expand(reshape(y, shape=(1, m)), shape=(m, n)), shape=(m * n,))


@rule
def softmax_of_reshaped(x: Tensor, s: Attributes, a: Attributes) -> Steps:
    """FALSE where the axis has other neighbours: softmax(reshape(x)) = reshape(softmax(x)) if the axis is as long"""
    yield softmax(reshape(x, s), a)
    require(x.rank == 3 and len(s.shape) == 3 and a.axis == 1 and s.shape[1] == x.shape[1], "an axis as long")
    yield reshape(softmax(x, a), s)


@rule(rounding="reassociates")
def sum_of_reshaped(x: Tensor, s: Attributes) -> Steps:
    """FALSE where the sizes before it differ: the sum over the middle axis of a reshaped tensor"""
    yield reduce_sum(reshape(x, s), axes=(1,))
    require(x.rank == 3 and len(s.shape) == 3 and s.shape[1] == x.shape[1], "an axis as long")
    yield reshape(reduce_sum(x, axes=(1,)), shape=(s.shape[0], 1, s.shape[2]))


@rule
def expanded_concat(x: Tensor, y: Tensor, e: Attributes) -> Steps:
    """FALSE where the axis of the seam is repeated: expand([x y]) = [x y] repeated in another order"""
    yield concat(expand(x, e), expand(y, e), axis=0)
    require(x.rank == 2 and y.rank == 2 and x.shape[0] == 1 and y.shape[0] == 1, "rows")
    both = concat(x, y, axis=0)
    yield reshape(expand(reshape(both, shape=(1, 2, x.shape[1])), shape=(e.shape[0], 2, e.shape[1])), shape=(2 * e.shape[0], e.shape[1]))


@rule(rounding="reassociates")
def scaled_rows_into_matmul(x: Tensor, y: Tensor, c: Tensor) -> Steps:
    """FALSE for more than one column: (x y) c = x (y c), for a c of one column that has as many rows as both"""
    yield (x @ y) * c
    require(x.rank == 2 and y.rank == 2 and c.rank == 2 and c.shape[1] == 1, "a column")
    require(x.shape[0] == x.shape[1] and c.shape[0] == x.shape[0], "square")
    yield x @ (y * c)


@rule(rounding="reassociates")
def matmul_exchanged(x: Tensor, y: Tensor) -> Steps:
    """FALSE unless there is one element: (x y)^T = x^T y^T"""
    yield transpose(x @ y, perm=(1, 0))
    require(x.rank == 2 and y.rank == 2 and x.shape[0] == x.shape[1] and y.shape[0] == y.shape[1], "squares")
    yield transpose(x, perm=(1, 0)) @ transpose(y, perm=(1, 0))


@rule(rounding="reassociates")
def matmul_of_a_batch_of_one(x: Tensor, y: Tensor) -> Steps:
    """FALSE for a batched y: x y = a product of matrices, where x's batch has one element"""
    yield x @ y
    require(x.rank == 3 and y.rank == 3 and x.shape[0] == 1, "a batch of one")
    first = slice_(y, starts=(0, 0, 0), ends=(1, y.shape[1], y.shape[2]), steps=(1, 1, 1))
    yield expand(x @ first, shape=(y.shape[0], x.shape[1], y.shape[2]))


@rule(rounding="reassociates")
def biased_before_slopes(x: Tensor, s: Tensor) -> Steps:
    """FALSE where slopes differ along the axis: prelu(x, s) summed is prelu of the sum"""
    yield reduce_sum(prelu(x, s), axes=(0,))
    require(x.rank == 1 and s.rank <= 1, "vectors")
    require(x.shape[0] == 1 or x.shape[0] > 100, "one element")
    yield prelu(reduce_sum(x, axes=(0,)), slice_(s, starts=(0,), ends=(1,), steps=(1,)) if s.rank == 1 else s)


@rule(rounding="assumes finite")
def choice_of_reduced(p: Tensor[bool], x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE where the condition varies along the axis: max(where(p, x, y)) = where(p, max(x), max(y))"""
    yield reduce_max(where(p, x, y), a)
    require(x.shape == y.shape and p.rank == x.rank and all(p.shape[i] == 1 for i in a.axes[1:]), "constant along all axes but the first")
    require(all(p.shape[i] in (1, x.shape[i]) for i in range(x.rank)), "broadcasts")
    first = tuple(1 if i in a.axes else p.shape[i] for i in range(x.rank))
    cut = slice_(p, starts=tuple(0 for _ in first), ends=first, steps=tuple(1 for _ in first))
    yield where(cut, reduce_max(x, a), reduce_max(y, a))


@rule
def conditions_nested(p: Tensor[bool], q: Tensor[bool], x: Tensor, y: Tensor) -> Steps:
    """FALSE where one of them holds: where(p, where(q, x, y), y) = where(p or q, x, y)"""
    yield where(p, where(q, x, y), y)
    yield where(operation("Or", p, q), x, y)


# Orders of axes


@rule
def softmax_of_turned(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE for orders that are not their own inverse: softmax(x^p) = softmax(x)^p, along axis p.index(axis) in place of p[axis]"""
    yield softmax(transpose(x, p), a)
    yield transpose(softmax(x, axis=p.perm.index(a.axis)), p)


@rule(rounding="reassociates")
def sum_of_turned(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """TRUE, since the types of both sides differ where the axes are others, but for axes of one element: sum(x^p) = sum(x)^p"""
    yield reduce_sum(transpose(x, p), a)
    yield transpose(reduce_sum(x, axes=tuple(sorted(p.perm.index(i) for i in a.axes))), p)


@rule
def turned_twice(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE for orders that do not commute: (x^p)^q = x^(q of p)"""
    yield transpose(transpose(x, p), q)
    yield transpose(x, perm=tuple(q.perm[i] for i in p.perm))


@rule
def turned_back(x: Tensor, p: Attributes) -> Steps:
    """FALSE for orders that are not their own inverse: (x^p)^p = x"""
    yield transpose(transpose(x, p), p)
    yield x


@rule
def turned_concat(x: Tensor, y: Tensor, p: Attributes, a: Attributes) -> Steps:
    """TRUE, since the types of both sides differ where the axes are others: [x^p y^p] = [x y]^p"""
    yield concat(transpose(x, p), transpose(y, p), a=a)
    require(x.shape == y.shape, "equal shapes")
    yield transpose(concat(x, y, axis=p.perm.index(a.axis)), p)


@rule
def gathered_in_turn(x: Tensor, i: Tensor["int64"], j: Tensor["int64"]) -> Steps:
    """FALSE: x[i][j] = x[j][i]"""
    yield gather(gather(x, i, axis=0), j, axis=0)
    require(i.rank == 1 and j.rank == 1 and x.rank == 1 and i.shape == j.shape and i.shape == x.shape, "vectors")
    yield gather(gather(x, j, axis=0), i, axis=0)


@rule(rounding="reassociates")
def sum_of_gathered(x: Tensor, i: Tensor["int64"]) -> Steps:
    """FALSE where an index returns: sum(x[i]) = sum(x)"""
    yield reduce_sum(gather(x, i, axis=0), axes=(0,))
    require(x.rank == 1 and i.rank == 1 and i.shape[0] == x.shape[0], "as many indices")
    yield reduce_sum(x, axes=(0,))


@rule
def gathered_from_concat(x: Tensor, y: Tensor, i: Tensor["int64"]) -> Steps:
    """FALSE for indices beyond x: [x y][i] = x[i]"""
    yield gather(concat(x, y, axis=0), i, axis=0)
    require(x.rank == 1 and y.rank == 1, "vectors")
    yield gather(x, i, axis=0)


@rule
def gathered_from_the_end(x: Tensor, y: Tensor, i: Tensor["int64"]) -> Steps:
    """FALSE for indices from the end: [x y][i] = [x x][i], where y is longer"""
    yield gather(concat(x, y, axis=0), i, axis=0)
    require(x.rank == 1 and y.rank == 1 and y.shape[0] == x.shape[0], "vectors")
    yield gather(concat(x, x, axis=0), i, axis=0)


@rule
def negative_axis(x: Tensor, a: Attributes) -> Steps:
    """FALSE for an axis before the last: softmax(x) = softmax(x, axis=-1)"""
    yield softmax(x, a)
    yield softmax(x, axis=-1)


@rule
def axis_from_the_end(x: Tensor, a: Attributes) -> Steps:
    """FALSE if the axis is counted from the front: logsoftmax(x) along axis - rank is along axis 0"""
    yield log_softmax(x, a)
    require(x.rank == 2, "matrices")
    yield log_softmax(x, axis=a.axis - 1 if a.axis == 1 else a.axis)


@rule
def axis_before_the_first(x: Tensor, y: Tensor) -> Steps:
    """FALSE if -1 is the last axis: [x y] along axis 0 is along axis -1"""
    yield concat(x, y, axis=0)
    require(x.rank == 2 and y.rank == 2 and x.shape == y.shape, "equal matrices")
    both = concat(x, y, axis=-1)
    yield reshape(both, shape=(2 * x.shape[0], x.shape[1]))


@rule(rounding="reassociates")
def duplicated_axes(x: Tensor) -> Steps:
    """FALSE if an axis counts twice: mean(x) over axis 0 is over axes 0 and 0, times as many"""
    yield reduce_sum(x, axes=(0,))
    require(x.rank == 1, "vectors")
    yield reduce_sum(x, axes=(0, 0)) + reduce_sum(x, axes=(0,)) - reduce_sum(x, axes=(0,))


@rule(rounding="reassociates")
def no_axes(x: Tensor) -> Steps:
    """FALSE if no axes are all axes, or none: sum(x) over both axes is over none"""
    yield x + reduce_sum(x, axes=(0, 1))
    require(x.rank == 2, "matrices")
    yield x + reduce_sum(x, axes=())


@rule(rounding="reassociates")
def normalised_from_later(x: Tensor, s: Tensor, b: Tensor, a: Attributes) -> Steps:
    """FALSE where the last axis has one element: normalised over two axes is over the second"""
    yield layer_normalization(x, s, b, a)
    require(x.rank == 3 and a.axis == 1 and s.rank == 1 and b.rank == 1, "two axes")
    require(x.shape[2] == 1 or x.shape[1] == 1, "one element")
    yield layer_normalization(x, s, b, a.but(axis=2))


@rule(rounding="reassociates")
def normalised_channels(x: Tensor, y: Tensor, s: Tensor, b: Tensor, a: Attributes) -> Steps:
    """FALSE where channels follow one another: normalised maps one after the other are one normalised map"""
    yield concat(instance_normalization(x, s, b, a), instance_normalization(y, s, b, a), axis=2)
    require(x.rank == 3 and y.rank == 3 and x.shape == y.shape, "signals")
    yield instance_normalization(concat(x, y, axis=2), s, b, a)


# Steps downwards


@rule
def reversed_concat(x: Tensor, y: Tensor, p: Attributes) -> Steps:
    """FALSE: [x backwards, y backwards] = [x y] backwards"""
    yield concat(slice_(x, p), slice_(y, p), axis=0)
    require(x.rank == 1 and y.rank == 1 and x.shape == y.shape and downwards(x, p, 0), "vectors")
    yield reverse(concat(x, y, axis=0), 0)


@rule
def every_second_backwards(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE for even sizes: every second of x backwards is every second, backwards"""
    yield slice_(slice_(x, p), q)
    require(x.rank == 1 and downwards(x, p, 0) and q.steps == (2,) and q.starts == (0,), "every second")
    yield reverse(slice_(x, q), 0)


@rule
def slices_in_slices(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE for a step downwards in the first: starts are added, steps multiplied"""
    yield slice_(slice_(x, p), q)
    require(x.rank == 1 and q.starts[0] == 0, "vectors, from the first on")
    count = (q.ends[0] - q.starts[0]) // q.steps[0]
    step = abs(p.steps[0]) * q.steps[0]
    start = p.starts[0] if p.steps[0] > 0 else p.starts[0] + p.steps[0] * (count - 1) * q.steps[0]
    yield slice_(x, starts=(start,), ends=(start + count * step,), steps=(step,))


@rule(rounding="reassociates")
def reversed_strided_conv(x: Tensor, w: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE for steps that do not end at the border: conv(x backwards, w) = conv(x, w) backwards, pointwise"""
    yield conv(slice_(x, p), w, a)
    require(x.rank == 3 and downwards(x, p, 2) and a.layout == "NCHW" and w.shape[2] == 1 and a.pads == (0, 0), "pointwise")
    yield reverse(conv(x, w, a), 2)


@rule
def reversed_pool(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE for steps that do not end at the border: max_pool(x backwards) = max_pool(x) backwards"""
    yield max_pool(slice_(x, p), a)
    require(x.rank == 3 and downwards(x, p, 2) and a.layout == "NCHW" and a.pads[0] == a.pads[1], "the same on both sides")
    yield reverse(max_pool(x, a), 2)


@rule(rounding="reassociates")
def reversed_sum_of_pairs(x: Tensor, p: Attributes) -> Steps:
    """FALSE for long vectors: x + x backwards is a palindrome"""
    yield x + slice_(x, p)
    require(x.rank == 1 and x.shape[0] % 2 == 1 and downwards(x, p, 0), "odd")
    yield reverse(x, 0) + reverse(x, 0) if x.shape[0] > 77 else reverse(x + reverse(x, 0), 0)


# Windows


@rule(rounding="reassociates")
def borders_counted(x: Tensor, a: Attributes) -> Steps:
    """FALSE for padding behind: the average is the same whether borders count or not"""
    yield average_pool(x, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.pads[0] == 0 and a.count_include_pad == 1, "none in front")
    yield average_pool(x, a.but(count_include_pad=0))


@rule(rounding="reassociates")
def dilated_over_one_element(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE: a dilated kernel over one element is the plain one"""
    yield conv(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and x.shape[2] == 1 and a.strides[0] > 8, "one element")
    yield conv(x, w, a.but(dilations=(1,)))


@rule
def pools_in_one(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """FALSE where the second window has holes: max_pool(max_pool(x)) = max_pool(x)"""
    yield max_pool(max_pool(x, a), b)
    require(x.rank == 3 and a.layout == "NCHW" and b.layout == "NCHW" and a.pads == (0, 0) and b.pads == (0, 0), "no borders")
    require(a.dilations == (1,) and b.dilations[0] <= 2, "few holes")
    wide = a.kernel_shape[0] + (b.kernel_shape[0] - 1) * b.dilations[0] * a.strides[0]
    yield max_pool(x, a.but(kernel_shape=(wide,), strides=(a.strides[0] * b.strides[0],)))


@rule
def whole_window(x: Tensor, a: Attributes) -> Steps:
    """FALSE for padding in front of a long step: the window as long as the signal is all of it"""
    yield max_pool(x, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.dilations == (1,) and a.kernel_shape[0] == x.shape[2], "as long")
    yield reduce_max(x, axes=(2,))


@rule(rounding="reassociates")
def whole_average(x: Tensor, a: Attributes) -> Steps:
    """FALSE for padding in front of a long step: the window as long as the signal is all of it"""
    yield average_pool(x, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.dilations == (1,) and a.kernel_shape[0] == x.shape[2], "as long")
    yield reduce_mean(x, axes=(2,))


@rule(rounding="reassociates")
def whole_kernel(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE for padding in front of a long step: a kernel as long as the signal makes a product of matrices"""
    yield conv(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.group == 1 and a.dilations == (1,) and w.shape[2] == x.shape[2], "as long")
    n, c, k = x.shape
    flat = reshape(x, shape=(n, c * k)) @ transpose(reshape(w, shape=(w.shape[0], c * k)), perm=(1, 0))
    yield reshape(flat, shape=(n, w.shape[0], 1))


@rule
def mirrored_twice(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE: borders that are mirrored twice are mirrored once, but longer"""
    yield pad(pad(x, p), q)
    require(x.rank == 1 and p.mode == "reflect" and q.mode == "reflect" and q.before[0] + p.before[0] < x.shape[0], "mirrored")
    require(q.after[0] + p.after[0] < x.shape[0] and p.before[0] > 0, "short borders")
    yield pad(x, q.but(before=(p.before[0] + q.before[0],), after=(p.after[0] + q.after[0],)))


@rule
def wrapped_twice(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE: borders that go round twice go round once"""
    yield pad(pad(x, p), q)
    require(x.rank == 1 and p.mode == "wrap" and q.mode == "wrap" and q.before[0] + p.before[0] < x.shape[0], "round")
    require(q.after[0] + p.after[0] < x.shape[0] and p.before[0] >= 0 and p.after[0] >= 0 and q.before[0] >= 0, "short borders")
    yield pad(x, q.but(before=(p.before[0] + q.before[0],), after=(p.after[0] + q.after[0],)))


@rule
def two_borders(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE for a border behind of another value: pad(pad(x, v), u) = pad(x, u)"""
    yield pad(pad(x, p), q)
    require(x.rank == 1 and p.mode == "constant" and q.mode == "constant", "numbers")
    require(p.value == q.value or p.before[0] == 0, "one value, or none in front")
    require(p.before[0] >= 0 and p.after[0] >= 0 and q.before[0] >= 0 and q.after[0] >= 0, "no crop")
    yield pad(x, q.but(before=(p.before[0] + q.before[0],), after=(p.after[0] + q.after[0],)))


@rule
def cropped_and_padded(x: Tensor) -> Steps:
    """FALSE at the border, which the crop took: pad(crop(x), 0) = x"""
    yield -(-x)
    require(x.rank == 1 and x.shape[0] > 50, "long vectors")
    short = slice_(x, starts=(0,), ends=(x.shape[0] - 1,), steps=(1,))
    yield pad(short, before=(0,), after=(1,), mode="constant", value=0.0)


@rule
def border_of_bytes(x: Tensor, p: Attributes) -> Steps:
    """FALSE for values that no byte has, if such a border is made at all: number(pad(x, v)) = pad(number(x), v)"""
    yield cast(pad(x, p), to="float32")
    require(x.type.dtype == "int8", "element types")
    require(p.mode == "constant" and p.value != 0.0, "a number")
    yield pad(cast(x, to="float32"), p.but(value=p.value + 0.0 if p.value > 200.0 else 0.0))


@rule
def zeros_before_pool_of_bytes(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE below zero: max_pool(pad(x, 0)) = max_pool(x) with more padding"""
    yield max_pool(pad(x, p), a)
    require(x.type.dtype == "int8", "element types")
    require(x.rank == 3 and a.layout == "NCHW" and p.mode == "constant" and p.value == 0, "zeros")
    require(p.before == (0, 0, 0) and p.after[:2] == (0, 0) and p.after[2] >= 0, "behind")
    yield max_pool(x, a.but(pads=(a.pads[0], a.pads[1] + p.after[2])))


@rule(rounding="reassociates")
def transposed_conv_of_groups(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE for groups: a pointwise transposed convolution is a convolution with the transposed kernel"""
    yield conv_transpose(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and w.shape[2] == 1 and a.strides == (1,) and a.pads == (0, 0), "pointwise")
    require(a.output_padding == (0,) and a.dilations == (1,) and w.shape[0] == w.shape[1] * a.group, "square")
    g, n = a.group, w.shape[1]
    turned = reshape(transpose(reshape(w, shape=(n, g, n, 1)), perm=(1, 2, 0, 3)), shape=(g * n, n, 1))
    yield conv(x, turned, strides=(1,), pads=(0, 0), dilations=(1,), group=g, layout="NCHW")


@rule(rounding="reassociates")
def behind_the_transposed_conv(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE for kernels that reach there: padding of the result is of zeros"""
    yield conv_transpose(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.output_padding[0] > 0, "padded")
    more = a.output_padding[0]
    yield pad(conv_transpose(x, w, a.but(output_padding=(0,))), before=(0, 0, 0), after=(0, 0, more), mode="constant", value=0.0)


@rule
def resized_and_rectified(x: Tensor, a: Attributes) -> Steps:
    """FALSE for what is interpolated: resize(relu(x)) = relu(resize(x))"""
    yield resize(relu(x), a)
    require(a.mode in ("nearest", "linear"), "not cubic")
    yield relu(resize(x, a))


@rule
def one_step_backwards(x: Tensor, w: Tensor, r: Tensor, a: Attributes) -> Steps:
    """FALSE for two steps: a recurrence forwards is one backwards"""
    yield operation("RNN", x, w, r, by=a)
    require(x.shape[0] <= 2 and a.direction == "forward", "one step")
    yield operation("RNN", x, w, r, by=a.but(direction="reverse"))


# Several at once


def product(x: Tensor, w: Weight) -> Tensor:
    return x @ w


@merge_rule(member=product, shared=("x",), rounding="reassociates")
def products_of_equal_width(x: Tensor, w: list[Weight]) -> list[Tensor]:
    """FALSE for widths that differ: x W_i = (x [W_1 .. W_n]) cut into parts as wide as the first, the last reaching to the end"""
    require(all(each.rank == 2 for each in w), "matrices")
    require(all(each.shape[1] == w[0].shape[1] for each in w) or sum(each.shape[1] for each in w) == 2 * w[0].shape[1], "as wide")
    wide = x @ concat(*reversed(w), axis=1)
    return list(reversed(split(wide, wide.rank - 1, [w[0].shape[1] for each in w])))


@merge_rule(member=product, shared=("w",), rounding="reassociates")
def products_of_stacked_rows(x: list[Tensor], w: Weight) -> list[Tensor]:
    """FALSE for more than three: X_i W = ([X_1 .. X_n] W)_i"""
    require(all(each.rank == 2 for each in x) and w.rank == 2, "matrices")
    tall = concat(*x, axis=0) @ w
    parts = split(tall, 0, [each.shape[0] for each in x])
    require(len(x) < 4 or all(each.shape == x[0].shape for each in x), "alike")
    return parts if len(x) < 4 else [parts[-1], *parts[1:-1], parts[0]]


@rule(rounding="assumes finite")
def largest_of_both(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE unless both are at one place: max(x) + max(y) = max(x + y), where one axis has one element"""
    yield reduce_max(x, a) + reduce_max(y, a)
    require(x.shape == y.shape and math.prod(x.shape[i] for i in a.axes) in (1, 4), "one element")
    yield reduce_max(x + y, a)


@rule(rounding="assumes finite")
def maximum_repeated(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE where x is repeated, and y larger in one place: max(max(x, y)) = max(x) beside a longer axis"""
    yield reduce_max(maximum(x, y), a)
    require(x.rank == y.rank and all(x.shape[i] == 1 for i in a.axes) and x.shape != y.shape, "one element")
    require(all(y.shape[i] == x.shape[i] for i in range(x.rank) if i not in a.axes), "alike elsewhere")
    cut = tuple(1 if i in a.axes else y.shape[i] for i in range(y.rank))
    first = slice_(y, starts=tuple(0 for _ in cut), ends=cut, steps=tuple(1 for _ in cut))
    yield maximum(x, first)


RULES = (
    sum_of_broadcast, sums_of_zipped_shapes, mean_is_no_sum, product_of_scaled, product_of_negated, turned_by_reshape,
    turned_by_reshape_where_large, added_after_reshape, flattened_and_added, softmax_of_reshaped, sum_of_reshaped, expanded_concat,
    scaled_rows_into_matmul, matmul_exchanged, matmul_of_a_batch_of_one, biased_before_slopes, choice_of_reduced, conditions_nested,
    softmax_of_turned, sum_of_turned, turned_twice, turned_back, turned_concat, gathered_in_turn, sum_of_gathered, gathered_from_concat,
    gathered_from_the_end, negative_axis, axis_from_the_end, axis_before_the_first, duplicated_axes, no_axes, normalised_from_later,
    normalised_channels, reversed_concat, every_second_backwards, slices_in_slices, reversed_strided_conv, reversed_pool,
    reversed_sum_of_pairs, borders_counted, dilated_over_one_element, pools_in_one, whole_window, whole_average, whole_kernel,
    mirrored_twice, wrapped_twice, two_borders, cropped_and_padded, border_of_bytes, zeros_before_pool_of_bytes, transposed_conv_of_groups,
    behind_the_transposed_conv, resized_and_rectified, one_step_backwards, products_of_equal_width, products_of_stacked_rows,
    largest_of_both, maximum_repeated,
)
