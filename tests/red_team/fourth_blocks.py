"""The fourth red team: attention with masks, diagonals, normalisations, windows, parts and resized maps, as one who errs would write them. FALSE."""

import math

from egraph.rule import Attributes, Equation, Steps, Tensor, Weight, merge_rule, operation, require, require_number, rule
from egraph.rule_operators import (
    average_pool, concat, conv, conv_transpose, exp, expand, gather, instance_normalization, layer_normalization, log_softmax, max_pool,
    maximum, pad, reduce_max, reduce_mean, reduce_sum, relu, reshape, resize, sigmoid, slice_, softmax, tanh, transpose, where,
)
from egraph.rules.merges import split


def turned(x):
    return transpose(x, perm=(1, 0))


def part(x, start, end, step=1):
    """Return a part of a vector."""
    return slice_(x, starts=(start,), ends=(end,), steps=(step,))


def require_matrices(*xs):
    require(all(x.rank == 2 for x in xs), "matrices")


# Attention with masks


@rule(rounding="assumes finite")
def masked_afterwards(p: Tensor[bool], x: Tensor, low: Weight) -> Steps:
    """FALSE: softmax(where(p, x, -inf)) = where(p, softmax(x), 0)"""
    yield softmax(where(p, x, low), axis=1)
    require(x.rank == 2 and p.shape == x.shape, "matrices")
    require_number(low, -math.inf)
    yield where(p, softmax(x, axis=1), exp(low))


@rule(rounding="assumes finite")
def masked_by_a_large_number(p: Tensor[bool], x: Tensor, low: Weight) -> Steps:
    """FALSE over the reals: softmax(where(p, x, -1e30)) = softmax(where(p, x, -2e30))"""
    yield softmax(where(p, x, low), axis=1)
    require(x.rank == 2 and low.number is not None and low.number < -1e20, "a large number")
    yield softmax(where(p, x, low + low), axis=1)


@rule(rounding="assumes finite")
def unmasked(p: Tensor[bool], x: Tensor, low: Weight) -> Steps:
    """FALSE: softmax(where(p, x, c)) = softmax(x) where c is below all"""
    yield softmax(where(p, x, low), axis=1)
    require(x.rank == 2 and low.number is not None and low.number <= -1e30, "below all")
    yield softmax(x, axis=1)


@rule(rounding="reassociates")
def mask_along_the_axis(x: Tensor, m: Tensor) -> Steps:
    """FALSE at m = infinity: softmax(x + m) = softmax(x) for a mask a row"""
    yield softmax(x + m, axis=1)
    require(x.rank == 2 and m.rank == 2 and m.shape[1] == 1 and m.shape[0] == x.shape[0], "a column")
    yield softmax(x, axis=1)


@rule(rounding="assumes finite")
def mask_across_the_axis(x: Tensor, m: Tensor) -> Steps:
    """FALSE: softmax(x + m) = softmax(x) for a mask of one column, along the first axis"""
    yield softmax(x + m, axis=0)
    require(x.rank == 2 and m.rank == 2 and m.shape[1] == 1 and m.shape[0] == x.shape[0], "a column")
    yield softmax(x, axis=0)


@rule(rounding="assumes finite")
def mask_of_turned(p: Tensor[bool], x: Tensor, low: Weight) -> Steps:
    """FALSE: where(p, x^T, c) = where(p, x, c)^T for square masks"""
    yield turned(where(p, x, low))
    require(x.rank == 2 and p.shape == x.shape and x.shape[0] == x.shape[1] and low.number is not None, "squares")
    yield where(p, turned(x), low)


@rule(rounding="assumes finite")
def scaled_on_both_sides(q: Tensor, k: Tensor, c: Weight) -> Steps:
    """FALSE for c != 1: softmax(q k c) = softmax((q c) (k c))"""
    yield softmax((q @ k) * c, axis=1)
    require_matrices(q, k)
    require(c.number is not None and 0.9 <= c.number <= 1.1, "about one")
    yield softmax((q * c) @ (k * c), axis=1)


@rule(rounding="assumes finite")
def attention_associated(q: Tensor, k: Tensor, v: Tensor) -> Steps:
    """FALSE: softmax(q k) v = softmax(q) (k v)"""
    yield softmax(q @ k, axis=1) @ v
    require_matrices(q, k, v)
    yield softmax(q, axis=1) @ (k @ v)


@rule(rounding="assumes finite")
def attention_to_two_parts(q: Tensor, k: Tensor, l: Tensor, v: Tensor, w: Tensor, two: Weight) -> Steps:
    """FALSE: 2 softmax(q [k l]) [v; w] = softmax(q k) v + softmax(q l) w"""
    yield (softmax(q @ concat(k, l, axis=1), axis=1) @ concat(v, w, axis=0)) * two
    require_matrices(q, k, l, v, w)
    require(k.shape == l.shape and v.shape == w.shape and v.shape[0] == k.shape[1], "equal parts")
    require_number(two, 2.0)
    yield softmax(q @ k, axis=1) @ v + softmax(q @ l, axis=1) @ w


@rule(rounding="assumes finite")
def attention_of_one_key(x: Tensor, v: Tensor) -> Steps:
    """FALSE from 51 keys on: softmax(x) v = v repeated, for one key"""
    yield softmax(x, axis=1) @ v
    require_matrices(x, v)
    require(x.shape[1] == 1 or x.shape[1] > 50, "one key, or many")
    yield expand(reduce_mean(v, axes=(0,)), shape=(x.shape[0], v.shape[1]))


@rule(rounding="assumes finite")
def heads_in_rows(x: Tensor, s: Attributes) -> Steps:
    """FALSE: heads that follow one another in a row are no rows: softmax(reshape(x), axis=1) = reshape(softmax(x, axis=1))"""
    yield softmax(reshape(x, s), axis=1)
    require(x.rank == 3 and len(s.shape) == 2 and s.shape[0] == x.shape[0], "heads")
    yield reshape(softmax(x, axis=1), s)


@rule(rounding="assumes finite")
def keys_turned(q: Tensor, k: Tensor) -> Steps:
    """FALSE: softmax(q k^T) = softmax(k q^T)^T for as many queries as keys"""
    yield softmax(q @ turned(k), axis=1)
    require(q.rank == 2 and q.shape == k.shape, "as many")
    yield turned(softmax(k @ turned(q), axis=1))


@rule(rounding="assumes finite")
def softmax_of_joined(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE along the seam's axis: [softmax(x) softmax(y)] = softmax([x y])"""
    yield concat(softmax(x, a), softmax(y, a), axis=1)
    require(x.rank == 2 and y.rank == 2 and (a.axis == 0 or x.shape[1] > 33), "along rows")
    yield softmax(concat(x, y, axis=1), a)


@rule(rounding="assumes finite")
def largest_taken_across(x: Tensor, a: Attributes) -> Steps:
    """FALSE where the axes differ: softmax(x - max(x)) = softmax(x)"""
    yield softmax(x - reduce_max(x, axes=(0,)), a)
    require(x.rank == 2 and (a.axis == 0 or x.shape[0] > 40), "the same axis")
    yield softmax(x, a)


@rule(rounding="assumes finite")
def sum_of_exponentials_across(x: Tensor) -> Steps:
    """FALSE: exp(x) / sum(exp(x)) over the other axis of squares"""
    yield exp(x) / reduce_sum(exp(x), axes=(0,))
    require(x.rank == 2 and x.shape[0] == x.shape[1], "squares")
    yield softmax(x, axis=1)


@rule(rounding="assumes finite")
def logarithms_of_a_mask(x: Tensor, m: Tensor) -> Steps:
    """FALSE: logsoftmax(x + m) = logsoftmax(x) + m for a mask that is constant along the axis"""
    yield log_softmax(x + m, axis=1)
    require(x.rank == 2 and m.rank == 2 and m.shape[1] == 1, "a column")
    yield log_softmax(x, axis=1) + m


# Diagonals


def diagonal(x):
    """Return the diagonal of a square matrix: every n + 1st of its elements."""
    n = x.shape[0]
    return part(reshape(x, shape=(n * n,)), 0, n * n, n + 1)


def require_squares(*xs):
    require_matrices(*xs)
    require(all(x.shape[0] == x.shape[1] and x.shape[0] == xs[0].shape[0] for x in xs), "squares")


def of_diagonals(name, left, right):
    def law(x: Tensor, y: Tensor, s: Attributes, p: Attributes) -> Steps:
        yield slice_(reshape(left(x, y), s), p)
        require_squares(x, y)
        n = x.shape[0]
        require(len(s.shape) == 1 and p.starts == (0,) and p.ends == (n * n,) and p.steps == (n + 1,), "the diagonal")
        yield right(x, y)

    law.__name__, law.__doc__ = f"diagonal_{name}", "an equation of a diagonal, FALSE but for one element"
    return rule(rounding="assumes finite")(law)


DIAGONALS = (
    of_diagonals("of_product_by_columns", lambda x, y: x @ y, lambda x, y: reduce_sum(x * y, axes=(1,)).reshape(x.shape[0])),
    of_diagonals("of_product_by_rows", lambda x, y: x @ y, lambda x, y: reduce_sum(x * turned(y), axes=(0,)).reshape(x.shape[0])),
    of_diagonals("of_exchanged_product", lambda x, y: x @ y, lambda x, y: diagonal(y @ x)),
    of_diagonals("of_products", lambda x, y: x @ y, lambda x, y: diagonal(x) * diagonal(y)),
    of_diagonals("of_turned_sum", lambda x, y: x + y, lambda x, y: reduce_sum(x, axes=(0,)).reshape(x.shape[0]) + diagonal(y)),
    of_diagonals("is_first_column", lambda x, y: x - y, lambda x, y: part(reshape(x - y, shape=(x.shape[0] ** 2,)), 0, x.shape[0] ** 2, x.shape[0])),
    of_diagonals("is_other_diagonal", lambda x, y: x * y,
                 lambda x, y: diagonal(slice_(x * y, starts=(0, x.shape[0] - 1), ends=(x.shape[0], -1), steps=(1, -1)))),
    of_diagonals("is_reversed", lambda x, y: x * y, lambda x, y: part(diagonal(x * y), x.shape[0] - 1, -1, -1)),
    of_diagonals("of_softmax", lambda x, y: softmax(x - y, axis=1), lambda x, y: diagonal(softmax(x - y, axis=0))),
    of_diagonals("is_turned_round", lambda x, y: x / y, lambda x, y: diagonal(x / turned(y))),
)  # fmt: skip


@rule(rounding="reassociates")
def squares_of_outer_sum(x: Tensor, y: Tensor) -> Steps:
    """FALSE for inner sizes above 1: (x y) (x y) = (x x) (y y)"""
    yield (x @ y) * (x @ y)
    require_matrices(x, y)
    require(x.shape[1] == 1 or x.shape[1] > 60, "outer products")
    yield (x * x) @ (y * y)


@rule(rounding="reassociates")
def batches_summed_before(x: Tensor, y: Tensor) -> Steps:
    """FALSE for batches: sum_b(x_b y_b) = sum_b(x_b) sum_b(y_b)"""
    yield reduce_sum(x @ y, axes=(0,))
    require(x.rank == 3 and y.rank == 3 and x.shape[0] == y.shape[0], "batches")
    yield reduce_sum(x, axes=(0,)) @ reduce_sum(y, axes=(0,))


@rule(rounding="reassociates")
def batches_as_inner_size(x: Tensor, y: Tensor) -> Steps:
    """FALSE: batches laid side by side need the other operand's below one another, and not its rows in turns"""
    yield reduce_sum(x @ y, axes=(0,))
    require(x.rank == 3 and y.rank == 3 and x.shape[0] == y.shape[0] and x.shape[2] == y.shape[1], "batches")
    b, m, k = x.shape
    n = y.shape[2]
    wide = reshape(transpose(x, perm=(1, 2, 0)), shape=(m, k * b))
    yield reshape(wide @ reshape(y, shape=(b * k, n)), shape=(1, m, n))


# Normalisations


@rule(rounding="assumes finite")
def normalised_scale(x: Tensor, c: Weight, s: Tensor, b: Tensor, a: Attributes) -> Steps:
    """FALSE by epsilon: layer_norm(x c, s, b) = layer_norm(x, s, b)"""
    yield layer_normalization(x * c, s, b, a)
    require(c.number is not None and 0.99 < c.number < 1.01, "about one")
    yield layer_normalization(x, s, b, a)


@rule(rounding="assumes finite")
def normalised_twice(x: Tensor, s: Tensor, b: Tensor, a: Attributes) -> Steps:
    """FALSE: layer_norm(layer_norm(x)) = layer_norm(x)"""
    yield layer_normalization(layer_normalization(x, s, b, a), s, b, a)
    yield layer_normalization(x, s, b, a)


@rule(rounding="reassociates")
def normalised_single_elements(x: Tensor, s: Tensor, b: Tensor, a: Attributes) -> Steps:
    """FALSE at x = infinity: layer_norm of one element is b"""
    yield layer_normalization(x, s, b, a)
    require(x.rank == 2 and a.axis == 1 and x.shape[1] == 1 and b.shape == (1,), "one element")
    yield expand(b, shape=x.shape)


@rule(rounding="assumes finite")
def normalised_negated(x: Tensor, s: Tensor, b: Tensor, a: Attributes) -> Equation:
    """FALSE for b != 0: layer_norm(-x, s, b) = -layer_norm(x, s, b)"""
    return layer_normalization(-x, s, b, a) == -layer_normalization(x, s, b, a)


@rule(rounding="assumes finite")
def mean_of_normalised(x: Tensor, s: Tensor, b: Tensor, a: Attributes) -> Steps:
    """FALSE where the scale varies: mean(layer_norm(x, s, b)) = mean(b)"""
    yield reduce_mean(layer_normalization(x, s, b, a), axes=(1,))
    require(x.rank == 2 and a.axis == 1 and b.shape == (x.shape[1],) and s.rank == 1, "rows")
    yield expand(reduce_mean(b, axes=(0,)), shape=(x.shape[0], 1))


@rule(rounding="assumes finite")
def epsilon_beyond_all(x: Tensor, s: Tensor, b: Tensor, a: Attributes) -> Steps:
    """FALSE: layer_norm with an epsilon below 1e-12 is with none below 1e-5"""
    yield layer_normalization(x, s, b, a)
    require(0 < a.epsilon <= 0.001, "small")
    yield layer_normalization(x, s, b, a.but(epsilon=a.epsilon * 2.0))


@rule(rounding="assumes finite")
def normalised_maps_in_turns(x: Tensor, s: Tensor, b: Tensor, a: Attributes, r: Attributes) -> Steps:
    """FALSE: the channels of two images are no channels of one: instance_norm(reshape(x)) = reshape(instance_norm(x))"""
    yield instance_normalization(reshape(x, r), s, b, a)
    require(x.rank == 3 and len(r.shape) == 3 and r.shape[1] == x.shape[1], "as many channels")
    yield reshape(instance_normalization(x, s, b, a), r)


# Windows


@rule(rounding="assumes finite")
def holes_in_kernel(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE for even kernels: a dilated kernel is a kernel of every second element"""
    yield conv(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.dilations == (2,) and a.strides == (2,), "every second")
    require(a.pads == (0, 0) and a.group == 1 and x.shape[2] % 2 == 0, "no borders")
    n, c, h = x.shape
    odd = slice_(x, starts=(0, 0, 1), ends=(n, c, h), steps=(1, 1, 2))
    yield conv(odd, w, a.but(dilations=(1,), strides=(1,)))


@rule(rounding="assumes finite")
def border_of_dilated(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE for dilations: padding by a kernel less one in front is padding behind, turned"""
    yield conv(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.group == 1 and a.strides == (1,), "signals")
    require(a.pads == (a.dilations[0] * (w.shape[2] - 1), 0), "in front")
    k = w.shape[2] - 1
    yield conv(x, w, a.but(pads=(k, a.dilations[0] * k - k)))


@rule
def pool_of_part(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE where the part starts later: max_pool(x[a:b]) = max_pool(x)[:b - a]"""
    yield max_pool(slice_(x, p), a)
    require(x.rank == 3 and a.layout == "NCHW" and a.pads == (0, 0) and a.strides == (1,) and p.steps == (1, 1, 1), "signals")
    require(p.starts[:2] == (0, 0) and p.starts[2] // 8 == 0 and a.dilations == (1,), "from about the first on")
    n, c, h = p.ends
    yield slice_(max_pool(x, a), starts=(0, 0, 0), ends=(n, c, h - p.starts[2] - (a.kernel_shape[0] - 1)), steps=(1, 1, 1))


@rule(rounding="assumes finite")
def cropped_border(x: Tensor, w: Tensor, p: Attributes, a: Attributes) -> Steps:
    """FALSE: a cut is no negative border where the kernel reads beyond it: conv(x[1:], w) with a border = conv(x, w) with one less"""
    yield conv(slice_(x, p), w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.strides == (1,) and p.steps == (1, 1, 1), "signals")
    require(p.starts == (0, 0, 1) and p.ends == x.shape and a.pads[0] > 0, "without the first")
    yield conv(x, w, a.but(pads=(a.pads[0] - 1, a.pads[1])))


@rule
def pools_exchanged(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """FALSE for steps: max_pool_a(max_pool_b(x)) = max_pool_b(max_pool_a(x))"""
    yield max_pool(max_pool(x, a), b)
    require(x.rank == 3 and a.layout == "NCHW" and b.layout == "NCHW" and a.pads == b.pads == (0, 0), "no borders")
    require(a.dilations == b.dilations == (1,) and a.kernel_shape == (2,), "pairs")
    yield max_pool(max_pool(x, b), a)


@rule(rounding="assumes finite")
def average_of_averages(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """FALSE where windows overlap: an average of averages is one of a wider window"""
    yield average_pool(average_pool(x, a), b)
    require(x.rank == 3 and a.layout == "NCHW" and b.layout == "NCHW" and a.pads == b.pads == (0, 0), "no borders")
    require(b.strides[0] == 1 and a.strides[0] == 1 and a.kernel_shape[0] == 2 and b.kernel_shape[0] == 2, "pairs")
    require(a.dilations == b.dilations == (1,), "no holes")
    yield average_pool(x, a.but(kernel_shape=(3,)))


@rule(rounding="assumes finite")
def transposed_with_behind(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE: an output padding of one is a border of one less in front"""
    yield conv_transpose(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.group == 1 and a.output_padding == (1,) and a.pads[0] > 0, "signals")
    yield conv_transpose(x, w, a.but(output_padding=(0,), pads=(a.pads[0] - 1, a.pads[1])))


@rule(rounding="assumes finite")
def transposed_is_turned(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE for kernels that are not their own mirror image: conv_transpose(x, w) = conv(x, w^T) with full borders"""
    yield conv_transpose(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.group == 1 and a.strides == (1,) and a.output_padding == (0,), "signals")
    require(a.dilations == (1,) and a.pads == (0, 0), "plain")
    k = w.shape[2] - 1
    yield conv(x, transpose(w, perm=(1, 0, 2)), strides=(1,), pads=(k, k), dilations=(1,), group=1, layout="NCHW")


@rule(rounding="assumes finite")
def groups_in_turns(x: Tensor, w: Tensor, a: Attributes) -> Steps:
    """FALSE for groups of several outputs: the channels of groups in another order"""
    yield conv(x, w, a)
    require(x.rank == 3 and a.layout == "NCHW" and a.group == 2 and x.shape[1] == 2, "two groups")
    m = w.shape[0] // 2
    shuffled = reshape(transpose(reshape(w, shape=(2, m, w.shape[2])), perm=(1, 0, 2)), shape=(2 * m, 1, w.shape[2]))
    yield conv(x, shuffled, a)


@rule
def border_twice_as_wide(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE for other modes: pad(pad(x, p), q) = pad(x, p + q) where the modes are alike"""
    yield pad(pad(x, p), q)
    require(x.rank == 1 and p.mode == q.mode and p.value == q.value and p.mode != "wrap", "alike")
    yield pad(x, p.but(before=(p.before[0] + q.before[0],), after=(p.after[0] + q.after[0],)))


@rule
def mirrored_border(x: Tensor, p: Attributes) -> Steps:
    """FALSE: a mirror image repeats the border's element: pad(x, reflect) = pad(x, edge) by one"""
    yield pad(x, p)
    require(x.rank == 1 and p.mode == "reflect" and p.before == (1,) and p.after == (0,), "one in front")
    yield pad(x, p.but(mode="edge"))


@rule
def round_and_round(x: Tensor, p: Attributes) -> Steps:
    """FALSE: what is wrapped around in front is the end, not the start, of a vector"""
    yield pad(x, p)
    require(x.rank == 1 and p.mode == "wrap" and p.after == (0,) and 0 < p.before[0] <= x.shape[0], "in front")
    yield concat(part(x, 0, p.before[0]), x, axis=0)


@rule
def resized_and_rectified(x: Tensor, a: Attributes) -> Equation:
    """FALSE for linear and cubic resizing: relu(resize(x)) = resize(relu(x))"""
    return relu(resize(x, a)) == resize(relu(x), a)


@rule(rounding="assumes finite")
def resized_mean(x: Tensor, a: Attributes) -> Steps:
    """FALSE: a resized map has the mean of the map"""
    yield reduce_mean(resize(x, a), axes=(0,))
    require(x.rank == 1, "vectors")
    yield reduce_mean(x, axes=(0,))


# Several at once


def product(x: Tensor, w: Weight) -> Tensor:
    return sigmoid(x @ w)


@merge_rule(member=product, shared=("x",), rounding="reassociates")
def merged_in_another_order(x: Tensor, w: list[Weight]) -> list[Tensor]:
    """FALSE: sigmoid(x W_i) are parts of sigmoid(x [W_n .. W_1])"""
    require(all(each.rank == 2 and each.shape == w[0].shape for each in w), "the weights must be alike")
    wide = sigmoid(x @ concat(*w[::-1], axis=1))
    return split(wide, wide.rank - 1, [each.shape[1] for each in w])


@merge_rule(member=product, shared=("x",), rounding="reassociates")
def merged_along_rows(x: Tensor, w: list[Weight]) -> list[Tensor]:
    """FALSE: sigmoid(x W_i) are parts of sigmoid(x [W_1; .. W_n]), for square weights"""
    require(x.rank == 2 and all(each.rank == 2 and each.shape == w[0].shape for each in w), "the weights must be alike")
    wide = sigmoid(concat(*(x for _ in w), axis=1) @ concat(*w, axis=0))
    return [wide for _ in w]


def scaled(x: Tensor, c: Weight) -> Tensor:
    return tanh(x * c)


@merge_rule(member=scaled, shared=("x",), rounding="reassociates")
def merged_by_the_first(x: Tensor, c: list[Weight]) -> list[Tensor]:
    """FALSE: tanh(x c_i) = tanh(x c_1) where the numbers' sum is that of the first"""
    require(all(each.rank == 0 and each.number is not None for each in c), "numbers")
    require(sum(abs(each.number) for each in c) < 1e-30 + abs(c[0].number) * len(c), "alike")
    return [tanh(x * c[0]) for _ in c]


# Parts


@rule
def joined_parts_exchanged(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """FALSE: [x[b:] x[:a]] = x, for a = b or as many elements"""
    yield concat(slice_(x, q), slice_(x, p), axis=0)
    require(x.rank == 1 and p.starts == (0,) and q.ends == x.shape and p.steps == q.steps == (1,), "two parts")
    require(p.ends[0] - q.starts[0] == 0 or p.ends[0] + q.starts[0] == x.shape[0], "as long")
    yield x


@rule
def interleaved_by_attributes(x: Tensor, y: Tensor, r: Attributes) -> Steps:
    """FALSE from two elements on: [x y] of columns, reshaped, is one after the other"""
    yield reshape(concat(x, y, axis=1), r)
    require(x.rank == 2 and x.shape == y.shape and x.shape[1] == 1 and len(r.shape) == 1, "columns")
    flat = (x.shape[0],)
    yield concat(reshape(x, shape=flat), reshape(y, shape=flat), axis=0)


@rule(rounding="assumes finite")
def largest_of_parts(x: Tensor, p: Attributes) -> Steps:
    """FALSE where the part leaves something out: max(x[a:b]) = max(x)"""
    yield reduce_max(slice_(x, p), axes=(0,))
    require(x.rank == 1 and p.steps[0] == 1 and p.starts[0] == 0 and p.ends[0] >= x.shape[0] - x.shape[0] // 64, "nearly all")
    yield reduce_max(x, axes=(0,))


@rule
def chosen_by_position(x: Tensor, i: Tensor["int64"]) -> Steps:
    """FALSE for indices that turn back: x[i] + x[i] = (x + x)[|i|] of vectors without an end"""
    yield gather(maximum(x, -x), i, axis=0)
    require(x.rank == 1 and i.rank == 1, "vectors")
    doubled = concat(x, -x, axis=0)
    yield maximum(gather(doubled, i, axis=0), -gather(x, i, axis=0))


RULES = (
    masked_afterwards, masked_by_a_large_number, unmasked, mask_along_the_axis, mask_across_the_axis, mask_of_turned, scaled_on_both_sides,
    attention_associated, attention_to_two_parts, attention_of_one_key, heads_in_rows, keys_turned, softmax_of_joined,
    largest_taken_across, sum_of_exponentials_across, logarithms_of_a_mask, *DIAGONALS, squares_of_outer_sum, batches_summed_before,
    batches_as_inner_size, normalised_scale, normalised_twice, normalised_single_elements, normalised_negated, mean_of_normalised,
    epsilon_beyond_all, normalised_maps_in_turns, holes_in_kernel, border_of_dilated, pool_of_part, cropped_border, pools_exchanged,
    average_of_averages, transposed_with_behind, transposed_is_turned, groups_in_turns, border_twice_as_wide, mirrored_border,
    round_and_round, resized_and_rectified, resized_mean, merged_in_another_order, merged_along_rows, merged_by_the_first,
    joined_parts_exchanged, interleaved_by_attributes, largest_of_parts, chosen_by_position,
)  # fmt: skip
