"""Rules of XLA's algebraic simplifier with their guards, and the same rules with something wrong."""

from __future__ import annotations

from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, Weight, require, require_number, rule
from egraph.rule_operators import (
    absolute,
    average_pool,
    binary,
    concat,
    conv,
    exp,
    expand,
    log,
    max_pool,
    maximum,
    minimum,
    pad,
    power,
    reciprocal,
    reduce_max,
    reduce_mean,
    reduce_sum,
    relu,
    reshape,
    sigmoid,
    slice_,
    softmax,
    sqrt,
    transpose,
    unary,
    where,
)


def positive(c: Tensor, x: Tensor) -> Tensor:
    return binary("Greater", c, x)


def inverse(perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(perm.index(axis) for axis in range(len(perm)))


def reverses(x: Tensor, a: Attributes, axis: int) -> bool:
    """Whether a slice turns one axis round and keeps the rest."""
    return all(
        (a.starts[i], a.ends[i], a.steps[i]) == ((size - 1, -1, -1) if i == axis else (0, size, 1)) for i, size in enumerate(x.shape)
    )


def reverse(x: Tensor, axis: int) -> Tensor:
    return slice_(
        x,
        starts=tuple(size - 1 if i == axis else 0 for i, size in enumerate(x.shape)),
        ends=tuple(-1 if i == axis else size for i, size in enumerate(x.shape)),
        steps=tuple(-1 if i == axis else 1 for i in range(x.rank)),
    )


def pads_along(p: Attributes, axes: tuple[int, ...]) -> bool:
    """Whether nothing is padded along other axes."""
    return all(i in axes or (before == 0 and after == 0) for i, (before, after) in enumerate(zip(p.before, p.after, strict=True)))


# Arithmetic


@rule(rounding="assumes finite")
def divide_a_quotient(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """(x / y) / z = x / (y z)"""
    return x / y / z == x / (y * z)


@rule(rounding="assumes finite")
def divide_a_quotient_wrongly(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """(x / y) / z = x / (y / z)"""
    return x / y / z == x / (y / z)


@rule(rounding="assumes finite")
def divide_by_a_quotient(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """x / (y / z) = (x z) / y"""
    return x / (y / z) == x * z / y


@rule(rounding="assumes finite")
def divide_by_a_sum(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """x / (y + z) = x / y + x / z"""
    return x / (y + z) == x / y + x / z


@rule(rounding="assumes finite")
def multiply_exponentials(x: Tensor, y: Tensor) -> Equation:
    """exp(x) exp(y) = exp(x + y)"""
    return exp(x) * exp(y) == exp(x + y)


@rule
def multiply_exponentials_exactly(x: Tensor, y: Tensor) -> Equation:
    """exp(x) exp(y) = exp(x + y), which overflows elsewhere"""
    return exp(x) * exp(y) == exp(x + y)


@rule(rounding="assumes finite")
def add_exponentials(x: Tensor, y: Tensor) -> Equation:
    """exp(x) + exp(y) = exp(x + y)"""
    return exp(x) + exp(y) == exp(x + y)


@rule(rounding="assumes finite")
def divide_by_exponential(x: Tensor, y: Tensor) -> Equation:
    """x / exp(y) = x exp(-y)"""
    return x / exp(y) == x * exp(-y)


@rule(rounding="assumes finite")
def divide_by_exponential_wrongly(x: Tensor, y: Tensor) -> Equation:
    """x / exp(y) = x exp(y)"""
    return x / exp(y) == x * exp(y)


@rule(rounding="assumes finite")
def logarithm_of_exponential(x: Tensor) -> Equation:
    """log(exp(x)) = x"""
    return log(exp(x)) == x


@rule
def logarithm_of_exponential_exactly(x: Tensor) -> Equation:
    """log(exp(x)) = x, infinite where exp overflows"""
    return log(exp(x)) == x


@rule(rounding="assumes finite")
def exponential_of_logarithm(x: Tensor, one: Weight) -> Equation:
    """x = exp(log(x)), but not below zero"""
    return x * one == exp(log(x * one))


@rule(rounding="assumes finite")
def power_of_exponential(x: Tensor, y: Tensor) -> Equation:
    """exp(x) ** y = exp(x y)"""
    return power(exp(x), y) == exp(x * y)


@rule(rounding="assumes finite")
def power_of_power(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """(exp(x) ** y) ** z = exp(x) ** (y z)"""
    return power(power(exp(x), y), z) == power(exp(x), y * z)


@rule(rounding="assumes finite")
def power_of_power_of_anything(x: Tensor, y: Weight, z: Weight) -> Steps:
    """(x ** 2) ** 0.5 = x"""
    yield power(power(x, y), z)
    require_number(y, 2.0)
    require_number(z, 0.5)
    yield x


@rule(rounding="assumes finite")
def logarithm_of_power(x: Tensor, y: Tensor) -> Equation:
    """log(exp(x) ** y) = y x"""
    return log(power(exp(x), y)) == y * x


@rule(rounding="assumes finite")
def logarithm_of_square(x: Tensor) -> Equation:
    """log(x x) = log(x) + log(x)"""
    return log(x * x) == log(x) + log(x)


@rule(rounding="assumes finite")
def root_of_square(x: Tensor) -> Equation:
    """sqrt(x x) = |x|"""
    return sqrt(x * x) == absolute(x)


@rule(rounding="assumes finite")
def root_of_square_wrongly(x: Tensor) -> Equation:
    """sqrt(x x) = x"""
    return sqrt(x * x) == x


@rule(rounding="assumes finite")
def root_of_sum(x: Tensor, y: Tensor) -> Equation:
    """sqrt(x x + y y) = |x| + |y|"""
    return sqrt(x * x + y * y) == absolute(x) + absolute(y)


@rule(rounding="assumes finite")
def reciprocal_of_exponential(x: Tensor) -> Equation:
    """1 / exp(x) = exp(-x)"""
    return reciprocal(exp(x)) == exp(-x)


@rule
def absolute_of_square(x: Tensor) -> Equation:
    """|x x| = x x"""
    return absolute(x * x) == x * x


@rule(rounding="assumes finite")
def absolute_of_cube(x: Tensor) -> Equation:
    """|x x x| = x x x"""
    return absolute(x * x * x) == x * x * x


@rule
def absolute_of_negated(x: Tensor) -> Equation:
    """|-x| = |x|"""
    return absolute(-x) == absolute(x)


@rule(rounding="assumes finite")
def absolute_of_product(x: Tensor, y: Tensor) -> Equation:
    """|x| |y| = |x y|"""
    return absolute(x) * absolute(y) == absolute(x * y)


@rule(rounding="assumes finite")
def absolute_of_sum(x: Tensor, y: Tensor) -> Equation:
    """|x| + |y| = |x + y|"""
    return absolute(x) + absolute(y) == absolute(x + y)


@rule
def zero_times(x: Tensor, c: Weight) -> Steps:
    """x 0 = 0, but not for infinities"""
    yield x * c
    require_number(c, 0.0)
    require(c.rank == 0, "a number")
    yield expand(c, shape=x.shape)


@rule
def subtract_itself(x: Tensor, c: Weight) -> Steps:
    """(x - x) + c = c, but not for infinities"""
    yield (x - x) + c
    require(c.rank == 0, "a number")
    yield expand(c, shape=x.shape)


@rule
def divide_by_itself(x: Tensor, c: Weight) -> Steps:
    """(x / x) c = c, but not for zero"""
    yield (x / x) * c
    require(c.rank == 0, "a number")
    yield expand(c, shape=x.shape)


@rule
def add_in_another_order(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """(x + y) + z = x + (y + z), but not in floating point"""
    return (x + y) + z == x + (y + z)


@rule(rounding="reassociates")
def subtract_in_another_order(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """x - (y - z) = (x - y) - z"""
    return x - (y - z) == (x - y) - z


@rule(rounding="reassociates")
def subtract_a_difference(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """x - (y - z) = (x - y) + z"""
    return x - (y - z) == (x - y) + z


@rule
def largest_twice(x: Tensor, y: Tensor) -> Equation:
    """max(max(x, y), y) = max(x, y)"""
    return maximum(maximum(x, y), y) == maximum(x, y)


@rule(rounding="assumes finite")
def smallest_of_largest(x: Tensor, y: Tensor) -> Steps:
    """min(max(x, y), y) = y"""
    yield minimum(maximum(x, y), y)
    require(x.shape == y.shape, "one shape")
    yield y


@rule
def smallest_of_largest_exactly(x: Tensor, y: Tensor) -> Steps:
    """min(max(x, y), y) = y, but x may be no number"""
    yield minimum(maximum(x, y), y)
    require(x.shape == y.shape, "one shape")
    yield y


@rule(rounding="assumes finite")
def smallest_of_largest_wrongly(x: Tensor, y: Tensor) -> Steps:
    """min(max(x, y), y) = x"""
    yield minimum(maximum(x, y), y)
    require(x.shape == y.shape, "one shape")
    yield x


@rule
def negated_maximum(x: Tensor, y: Tensor) -> Equation:
    """-max(x, y) = min(-x, -y)"""
    return -maximum(x, y) == minimum(-x, -y)


@rule
def negated_maximum_wrongly(x: Tensor, y: Tensor) -> Equation:
    """-max(x, y) = max(-x, -y)"""
    return -maximum(x, y) == maximum(-x, -y)


@rule(rounding="reassociates")
def sum_of_maxima(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """max(x, y) + z = max(x + z, y + z)"""
    return maximum(x, y) + z == maximum(x + z, y + z)


@rule(rounding="reassociates")
def sum_of_maxima_wrongly(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Equation:
    """max(x + y, z + w) = max(x, z) + max(y, w)"""
    return maximum(x + y, z + w) == maximum(x, z) + maximum(y, w)


@rule(rounding="assumes finite")
def product_of_maxima(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """max(x, y) z = max(x z, y z), but z may be negative"""
    return maximum(x, y) * z == maximum(x * z, y * z)


@rule(rounding="assumes finite")
def logistic(x: Tensor, one: Weight) -> Steps:
    """1 / (1 + exp(-x)) = sigmoid(x)"""
    yield reciprocal(exp(-x) + one)
    require_number(one, 1.0)
    require(one.rank == 0, "a number")
    yield sigmoid(x)


@rule(rounding="assumes finite")
def logistic_wrongly(x: Tensor, one: Weight) -> Steps:
    """1 / (1 + exp(x)) = sigmoid(x)"""
    yield reciprocal(exp(x) + one)
    require_number(one, 1.0)
    require(one.rank == 0, "a number")
    yield sigmoid(x)


# Whole numbers


@rule(rounding="assumes finite")
def double_of_half(x: Tensor, two: Weight) -> Steps:
    """floor(x / 2) 2 = x, but not for odd x"""
    yield unary("Floor", x / two) * two
    require_number(two, 2.0)
    require(two.rank == 0, "a number")
    yield x


@rule(rounding="assumes finite")
def floor_of_sum(x: Tensor, y: Tensor) -> Equation:
    """floor(x) + floor(y) = floor(x + y)"""
    return unary("Floor", x) + unary("Floor", y) == unary("Floor", x + y)


@rule(rounding="assumes finite")
def floor_of_negated(x: Tensor) -> Equation:
    """-floor(x) = floor(-x), but only for whole x"""
    return -unary("Floor", x) == unary("Floor", -x)


@rule(rounding="assumes finite")
def ceiling_of_negated(x: Tensor) -> Equation:
    """-floor(x) = ceil(-x)"""
    return -unary("Floor", x) == unary("Ceil", -x)


@rule(rounding="assumes finite")
def ceiling_is_next(x: Tensor, one: Weight) -> Steps:
    """ceil(x) = floor(x) + 1, but not for whole x"""
    yield unary("Ceil", x * one)
    require_number(one, 1.0)
    require(one.rank == 0, "a number")
    yield unary("Floor", x) + one


@rule(rounding="assumes finite")
def round_is_floor(x: Tensor, half: Weight) -> Steps:
    """round(x + 0.5) = floor(x) + 1 ... at every half it goes to the even one"""
    yield unary("Floor", x + half)
    require_number(half, 0.5)
    require(half.rank == 0, "a number")
    yield unary("Round", x)


@rule(rounding="assumes finite")
def square_of_sign(x: Tensor, one: Weight) -> Steps:
    """sign(x) sign(x) = 1, but not at zero"""
    yield unary("Sign", x) * unary("Sign", x) * one
    require_number(one, 1.0)
    require(one.rank == 0, "a number")
    yield expand(one, shape=x.shape)


@rule(rounding="assumes finite")
def sign_times_absolute(x: Tensor) -> Equation:
    """sign(x) |x| = x"""
    return unary("Sign", x) * absolute(x) == x


# Comparison and choice


@rule
def choose_by_negation(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Equation:
    """where(not p, a, b) = where(p, b, a)"""
    return where(unary("Not", positive(x, y)), a, b) == where(positive(x, y), b, a)


@rule
def choose_by_negation_wrongly(x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Equation:
    """where(not p, a, b) = where(p, a, b)"""
    return where(unary("Not", positive(x, y)), a, b) == where(positive(x, y), a, b)


@rule(rounding="assumes finite")
def not_greater(x: Tensor, y: Tensor) -> Equation:
    """not (x > y) = x <= y"""
    return unary("Not", binary("Greater", x, y)) == binary("LessOrEqual", x, y)


@rule
def not_greater_exactly(x: Tensor, y: Tensor) -> Equation:
    """not (x > y) = x <= y, but either may be no number"""
    return unary("Not", binary("Greater", x, y)) == binary("LessOrEqual", x, y)


@rule(rounding="assumes finite")
def not_greater_wrongly(x: Tensor, y: Tensor) -> Equation:
    """not (x > y) = x < y, but they may be equal"""
    return unary("Not", binary("Greater", x, y)) == binary("Less", x, y)


@rule(rounding="assumes finite")
def maximum_is_at_least(x: Tensor, y: Tensor) -> Steps:
    """max(x, y) > y = x >= y, but not where they are equal"""
    yield binary("Greater", maximum(x, y), y)
    require(x.shape == y.shape, "one shape")
    yield binary("GreaterOrEqual", x, y)


@rule
def greater_is_less(x: Tensor, y: Tensor) -> Equation:
    """x > y = y < x"""
    return binary("Greater", x, y) == binary("Less", y, x)


@rule
def choose_equal(x: Tensor, a: Tensor, b: Tensor) -> Steps:
    """where(x = x, a, b) = a, but not for no number"""
    yield where(binary("Equal", x, x), a, b)
    require(x.shape == a.shape and a.shape == b.shape, "one shape")
    yield a


@rule
def maximum_by_choice(x: Tensor, y: Tensor) -> Equation:
    """where(x > y, x, y) = max(x, y), but not where x is no number"""
    return where(binary("Greater", x, y), x, y) == maximum(x, y)


@rule(rounding="assumes finite")
def maximum_by_finite_choice(x: Tensor, y: Tensor) -> Equation:
    """where(x > y, x, y) = max(x, y)"""
    return where(binary("Greater", x, y), x, y) == maximum(x, y)


@rule(rounding="assumes finite")
def minimum_by_choice(x: Tensor, y: Tensor) -> Equation:
    """where(x > y, x, y) = min(x, y)"""
    return where(binary("Greater", x, y), x, y) == minimum(x, y)


# Reductions


@rule(rounding="reassociates")
def sum_of_negated(x: Tensor, a: Attributes) -> Equation:
    """sum(-x) = -sum(x)"""
    return reduce_sum(-x, a) == -reduce_sum(x, a)


@rule
def maximum_of_negated(x: Tensor, a: Attributes) -> Equation:
    """max(-x) = -max(x)"""
    return reduce_max(-x, a) == -reduce_max(x, a)


@rule(rounding="reassociates")
def sum_of_sums(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """sum(x + y) = sum(x) + sum(y), of one shape"""
    yield reduce_sum(x + y, a)
    require(x.shape == y.shape, "neither may broadcast")
    yield reduce_sum(x, a) + reduce_sum(y, a)


@rule(rounding="reassociates")
def sum_of_broadcast_sums(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """sum(x + y) = sum(x) + sum(y), but one may broadcast"""
    yield reduce_sum(x + y, a)
    require(x.rank == y.rank, "the axes are the same")
    yield reduce_sum(x, a) + reduce_sum(y, a)


@rule(rounding="assumes finite")
def sum_of_products(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """sum(x y) = sum(x) sum(y)"""
    yield reduce_sum(x * y, a)
    require(x.shape == y.shape, "neither may broadcast")
    yield reduce_sum(x, a) * reduce_sum(y, a)


@rule(rounding="reassociates")
def maximum_of_shifted(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """max(x + c) = max(x) + c, for one number"""
    yield reduce_max(x + c, a)
    require(c.rank == 0, "a number")
    yield reduce_max(x, a) + c


@rule(rounding="reassociates")
def sum_of_shifted(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """sum(x + c) = sum(x) + c, but c is counted once"""
    yield reduce_sum(x + c, a)
    require(c.rank == 0, "a number")
    yield reduce_sum(x, a) + c


@rule(rounding="reassociates")
def maximum_of_scaled(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """max(x c) = max(x) c, but c may be negative"""
    yield reduce_max(x * c, a)
    require(c.rank == 0, "a number")
    yield reduce_max(x, a) * c


@rule
def maximum_of_expanded(x: Tensor, e: Attributes, a: Attributes) -> Steps:
    """max(expand(x)) = expand(x), over axes of size one in x"""
    yield reduce_max(expand(x, e), a)
    require(x.rank == len(e.shape), "no axis is added")
    require(all(x.shape[axis] == 1 for axis in a.axes), "only repeated numbers are reduced")
    yield expand(x, shape=tuple(1 if i in a.axes else size for i, size in enumerate(e.shape)))


@rule(rounding="reassociates")
def mean_of_expanded(x: Tensor, e: Attributes, a: Attributes) -> Steps:
    """mean(expand(x)) = expand(x), over axes of size one in x"""
    yield reduce_mean(expand(x, e), a)
    require(x.rank == len(e.shape), "no axis is added")
    require(all(x.shape[axis] == 1 for axis in a.axes), "only repeated numbers are reduced")
    yield expand(x, shape=tuple(1 if i in a.axes else size for i, size in enumerate(e.shape)))


@rule(rounding="reassociates")
def sum_of_expanded(x: Tensor, e: Attributes, a: Attributes) -> Steps:
    """sum(expand(x)) = expand(x), but every copy counts"""
    yield reduce_sum(expand(x, e), a)
    require(x.rank == len(e.shape), "no axis is added")
    require(all(x.shape[axis] == 1 for axis in a.axes), "only repeated numbers are reduced")
    yield expand(x, shape=tuple(1 if i in a.axes else size for i, size in enumerate(e.shape)))


@rule
def maximum_of_some_expanded(x: Tensor, e: Attributes, a: Attributes) -> Steps:
    """max(expand(x)) = max(x), but the axes of x are others"""
    yield reduce_max(expand(x, e), a)
    require(x.rank < len(e.shape) and all(axis < x.rank for axis in a.axes), "axes are added in front")
    yield expand(reduce_max(x, a), shape=tuple(1 if i in a.axes else size for i, size in enumerate(e.shape)))


@rule
def maximum_of_transposed(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """max(transpose(x), a) = transpose(max(x, p[a]))"""
    yield reduce_max(transpose(x, p), a)
    yield transpose(reduce_max(x, axes=tuple(sorted(p.perm[axis] for axis in a.axes))), p)


@rule
def maximum_of_wrongly_transposed(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """max(transpose(x), a) = transpose(max(x, a)) of equal sizes, but the axes move"""
    yield reduce_max(transpose(x, p), a)
    require(x.rank == 2 and p.perm == (1, 0) and a.axes == (0,), "columns of a matrix")
    yield transpose(transpose(reduce_max(x, a), p), p)


@rule
def maximum_of_joined(x: Tensor, y: Tensor, c: Attributes, a: Attributes) -> Steps:
    """max(concat(x, y)) = max(max(x), max(y)), along the axis"""
    yield reduce_max(concat(x, y, a=c), a)
    require(c.axis in a.axes, "the axis is reduced")
    yield maximum(reduce_max(x, a), reduce_max(y, a))


@rule
def maximum_of_joined_elsewhere(x: Tensor, y: Tensor, c: Attributes, a: Attributes) -> Steps:
    """max(concat(x, y)) = max(max(x), max(y)), but the axis may stay"""
    yield reduce_max(concat(x, y, a=c), a)
    require(x.shape == y.shape, "one shape")
    require(c.axis not in a.axes, "the axis stays")
    yield concat(maximum(reduce_max(x, a), reduce_max(y, a)), reduce_max(y, a), a=c)


@rule(rounding="reassociates")
def mean_of_joined(x: Tensor, y: Tensor, half: Weight, c: Attributes, a: Attributes) -> Steps:
    """mean(concat(x, y)) 0.5 = ..., but the parts may have different sizes"""
    yield reduce_mean(concat(x, y, a=c), a) * half
    require(c.axis in a.axes, "the axis is reduced")
    require_number(half, 2.0)
    require(half.rank == 0, "a number")
    yield reduce_mean(x, a) + reduce_mean(y, a)


@rule(rounding="reassociates")
def mean_of_equal_parts(x: Tensor, y: Tensor, half: Weight, c: Attributes, a: Attributes) -> Steps:
    """mean(concat(x, y)) 2 = mean(x) + mean(y), of equal sizes"""
    yield reduce_mean(concat(x, y, a=c), a) * half
    require(c.axis in a.axes and x.shape == y.shape, "the axis is reduced, in equal parts")
    require_number(half, 2.0)
    require(half.rank == 0, "a number")
    yield reduce_mean(x, a) + reduce_mean(y, a)


@rule(rounding="reassociates")
def sum_of_padded(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """sum(pad(x)) = sum(x), padded with zeros along what is reduced"""
    yield reduce_sum(pad(x, p), a)
    require(p.mode == "constant" and p.value == 0.0, "zeros")
    require(pads_along(p, a.axes), "along what is reduced")
    yield reduce_sum(x, a)


@rule(rounding="reassociates")
def sum_of_wrongly_padded(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """sum(pad(x)) = sum(x), but with any number"""
    yield reduce_sum(pad(x, p), a)
    require(p.mode == "constant", "numbers")
    require(pads_along(p, a.axes), "along what is reduced")
    yield reduce_sum(x, a)


@rule
def maximum_of_padded(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """max(pad(x)) = max(x), but all of x may be less than zero"""
    yield reduce_max(pad(x, p), a)
    require(p.mode == "constant" and p.value == 0.0, "zeros")
    require(pads_along(p, a.axes), "along what is reduced")
    yield reduce_max(x, a)


# Movement


@rule
def transposes_in_the_wrong_order(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """transpose(transpose(x, p), q) = transpose(x, q[p])"""
    yield transpose(transpose(x, p), q)
    yield transpose(x, perm=tuple(q.perm[axis] for axis in p.perm))


@rule
def reverse_twice(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """reverse(reverse(x)) = x"""
    yield slice_(slice_(x, a), b)
    require(x.rank == 1 and reverses(x, a, 0) and reverses(x, b, 0), "both turn the axis round")
    yield x


@rule
def reverse_of_joined(x: Tensor, y: Tensor, c: Attributes, a: Attributes) -> Steps:
    """reverse(concat(x, y)) = concat(reverse(y), reverse(x))"""
    whole = concat(x, y, a=c)
    yield slice_(whole, a)
    require(reverses(whole, a, c.axis), "the axis is turned round")
    yield concat(reverse(y, c.axis), reverse(x, c.axis), a=c)


@rule
def reverse_of_joined_wrongly(x: Tensor, y: Tensor, c: Attributes, a: Attributes) -> Steps:
    """reverse(concat(x, y)) = concat(reverse(x), reverse(y))"""
    whole = concat(x, y, a=c)
    yield slice_(whole, a)
    require(reverses(whole, a, c.axis), "the axis is turned round")
    yield concat(reverse(x, c.axis), reverse(y, c.axis), a=c)


@rule
def reverse_of_padded(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """reverse(pad(x)) = pad(reverse(x)), before and after exchanged"""
    padded = pad(x, p)
    yield slice_(padded, a)
    require(x.rank == 1 and p.mode == "constant" and reverses(padded, a, 0), "the axis is turned round")
    yield pad(reverse(x, 0), p.but(before=p.after, after=p.before))


@rule
def reverse_of_padded_wrongly(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """reverse(pad(x)) = pad(reverse(x)), before and after as they were"""
    padded = pad(x, p)
    yield slice_(padded, a)
    require(x.rank == 1 and p.mode == "constant" and reverses(padded, a, 0), "the axis is turned round")
    yield pad(reverse(x, 0), p)


@rule
def join_expanded(x: Tensor, e: Attributes, f: Attributes, c: Attributes) -> Steps:
    """concat(expand(x), expand(x)) = expand(x), along an axis of size one in x"""
    whole = concat(expand(x, e), expand(x, f), a=c)
    yield whole
    require(x.rank == len(e.shape) and x.shape[c.axis] == 1, "along a repeated axis")
    yield expand(x, shape=whole.shape)


@rule
def join_expanded_wrongly(x: Tensor, e: Attributes, f: Attributes, c: Attributes) -> Steps:
    """concat(expand(x), expand(x)) = expand(x), but along any axis"""
    whole = concat(expand(x, e), expand(x, f), a=c)
    yield whole
    require(x.rank == len(e.shape), "no axis is added")
    yield expand(x, shape=whole.shape)


@rule
def pad_by_joining(x: Tensor, c: Weight, e: Attributes, a: Attributes) -> Steps:
    """concat(x, expand(0)) = pad(x)"""
    yield concat(x, expand(c, e), a=a)
    require_number(c, 0.0)
    after = tuple(size if i == a.axis else 0 for i, size in enumerate(e.shape))
    yield pad(x, before=(0,) * x.rank, after=after, mode="constant", value=0.0)


@rule
def pad_by_joining_on_the_other_side(x: Tensor, c: Weight, e: Attributes, a: Attributes) -> Steps:
    """concat(x, expand(0)) = pad(x), but in front"""
    yield concat(x, expand(c, e), a=a)
    require_number(c, 0.0)
    before = tuple(size if i == a.axis else 0 for i, size in enumerate(e.shape))
    yield pad(x, before=before, after=(0,) * x.rank, mode="constant", value=0.0)


@rule
def pad_of_scaled(x: Tensor, c: Weight, p: Attributes) -> Steps:
    """pad(x c) = pad(x) c, with zeros and one number"""
    yield pad(x * c, p)
    require(c.rank == 0 and p.mode == "constant" and p.value == 0.0, "zeros")
    yield pad(x, p) * c


@rule(rounding="reassociates")
def pad_of_wrongly_scaled(x: Tensor, c: Weight, p: Attributes) -> Steps:
    """pad(x c) = pad(x) c, but with any number"""
    yield pad(x * c, p)
    require(c.rank == 0 and p.mode == "constant", "numbers")
    yield pad(x, p) * c


@rule
def pad_of_exponential(x: Tensor, p: Attributes) -> Steps:
    """pad(exp(x)) = exp(pad(x)), but the exponential of zero is one"""
    yield pad(exp(x), p)
    require(p.mode == "constant" and p.value == 0.0, "zeros")
    yield exp(pad(x, p))


@rule
def pad_of_rectified(x: Tensor, p: Attributes) -> Steps:
    """pad(relu(x)) = relu(pad(x)), with nothing negative"""
    yield pad(relu(x), p)
    require(p.mode != "constant" or p.value >= 0.0, "no negative number")
    yield relu(pad(x, p))


@rule
def pad_of_wrongly_rectified(x: Tensor, p: Attributes) -> Equation:
    """pad(relu(x)) = relu(pad(x)), but the padding may be negative"""
    return pad(relu(x), p) == relu(pad(x, p))


@rule
def even_elements_of_interleaved(x: Tensor, y: Tensor, c: Attributes, r: Attributes, a: Attributes) -> Steps:
    """Every second element of x and y interleaved is x"""
    yield slice_(reshape(concat(x, y, a=c), r), a)
    require(x.rank == 2 and x.shape[1] == 1 and x.shape == y.shape and c.axis == 1 and len(r.shape) == 1, "two columns")
    require(a.starts == (0,) and a.ends == r.shape and a.steps == (2,), "every second one, from the first")
    yield reshape(x, shape=(x.shape[0],))


@rule
def odd_elements_of_interleaved(x: Tensor, y: Tensor, c: Attributes, r: Attributes, a: Attributes) -> Steps:
    """Every second element of x and y interleaved is x, but it begins with the second"""
    yield slice_(reshape(concat(x, y, a=c), r), a)
    require(x.rank == 2 and x.shape[1] == 1 and x.shape == y.shape and c.axis == 1 and len(r.shape) == 1, "two columns")
    require(a.starts == (1,) and a.ends == r.shape and a.steps == (2,), "every second one, from the second")
    yield reshape(x, shape=(x.shape[0],))


@rule
def slice_of_reversed(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """slice(reverse(x)) = reverse(slice(x)), counted from the other end"""
    yield slice_(slice_(x, a), b)
    require(x.rank == 1 and reverses(x, a, 0) and b.steps == (1,), "the axis is turned round")
    size = x.shape[0]
    yield reverse(slice_(x, starts=(size - b.ends[0],), ends=(size - b.starts[0],), steps=(1,)), 0)


@rule
def slice_of_reversed_wrongly(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """slice(reverse(x)) = reverse(slice(x)), at the same place"""
    yield slice_(slice_(x, a), b)
    require(x.rank == 1 and reverses(x, a, 0) and b.steps == (1,), "the axis is turned round")
    yield reverse(slice_(x, b), 0)


# Products


@rule(rounding="reassociates")
def sum_of_columns(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """sum over columns of (x y) = x (sum over columns of y)"""
    yield reduce_sum(x @ y, a)
    require(x.rank == 2 and y.rank == 2 and a.axes == (1,), "over columns")
    yield x @ reduce_sum(y, a)


@rule(rounding="reassociates")
def sum_of_columns_wrongly(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """sum over columns of (x y) = (sum over columns of x) y"""
    yield reduce_sum(x @ y, a)
    require(x.rank == 2 and y.rank == 2 and a.axes == (0,) and x.shape[0] == x.shape[1] and y.shape[0] == y.shape[1], "square")
    yield expand(reduce_sum(y, a), shape=(1, y.shape[1]))


@rule(rounding="reassociates")
def transpose_a_product(x: Tensor, y: Tensor, p: Attributes) -> Steps:
    """(x y)^T = y^T x^T"""
    yield transpose(x @ y, p)
    require(x.rank == 2 and y.rank == 2 and p.perm == (1, 0), "matrices")
    yield transpose(y, p) @ transpose(x, p)


@rule(rounding="reassociates")
def transpose_a_product_wrongly(x: Tensor, y: Tensor, p: Attributes) -> Steps:
    """(x y)^T = x^T y^T, of square matrices"""
    yield transpose(x @ y, p)
    require(x.rank == 2 and y.rank == 2 and p.perm == (1, 0) and x.shape == y.shape, "matrices")
    yield transpose(x, p) @ transpose(y, p)


@rule(rounding="reassociates")
def product_commutes(x: Tensor, y: Tensor) -> Steps:
    """x y = y x, of square matrices"""
    yield x @ y
    require(x.rank == 2 and x.shape == y.shape, "square")
    yield y @ x


@rule(rounding="reassociates")
def scale_columns(x: Tensor, y: Tensor, c: Weight) -> Steps:
    """x (y c) = (x y) c, one number a column"""
    yield x @ (y * c)
    require(x.rank == 2 and y.rank == 2 and c.rank == 2 and c.shape[0] == 1, "one number a column")
    yield (x @ y) * c


@rule(rounding="reassociates")
def scale_rows_wrongly(x: Tensor, y: Tensor, c: Weight) -> Steps:
    """x (y c) = (x y) c, but one number a row"""
    yield x @ (y * c)
    require(x.rank == 2 and y.rank == 2 and c.rank == 2 and c.shape[1] == 1 and x.shape[0] == x.shape[1], "one number a row")
    yield (x @ y) * c


@rule(rounding="reassociates")
def product_of_parts(x: Tensor, y: Tensor, u: Tensor, v: Tensor, c: Attributes, d: Attributes) -> Steps:
    """[x y] [u; v] = x u + y v, but the parts may be cut elsewhere"""
    yield concat(x, y, a=c) @ concat(u, v, a=d)
    require(x.rank == 2 and u.rank == 2 and c.axis == 1 and d.axis == 0, "joined where they meet")
    require(x.shape[1] + y.shape[1] == u.shape[0] + v.shape[0] and x.shape == y.shape and u.shape == v.shape, "halves")
    yield x @ v + y @ u


@rule(rounding="reassociates")
def product_of_equal_parts(x: Tensor, y: Tensor, u: Tensor, v: Tensor, c: Attributes, d: Attributes) -> Steps:
    """[x y] [u; v] = x u + y v"""
    yield concat(x, y, a=c) @ concat(u, v, a=d)
    require(x.rank == 2 and u.rank == 2 and c.axis == 1 and d.axis == 0, "joined where they meet")
    require(x.shape[1] == u.shape[0], "cut at the same place")
    yield x @ u + y @ v


@rule(rounding="reassociates")
def convolution_of_padded(x: Tensor, w: Tensor, p: Attributes, a: Attributes) -> Steps:
    """conv(pad(x), w) = conv(x, w) with pads, but any number pads"""
    yield conv(pad(x, p), w, a)
    require(a.layout == "NCHW" and x.rank == 4 and p.mode == "constant", "numbers")
    require(p.before[:2] == (0, 0) and p.after[:2] == (0, 0), "along spatial axes")
    pads = tuple(own + more for own, more in zip(a.pads, (*p.before[2:], *p.after[2:]), strict=True))
    yield conv(x, w, a.but(pads=pads))


@rule(rounding="reassociates")
def convolution_of_zeros_around(x: Tensor, w: Tensor, p: Attributes, a: Attributes) -> Steps:
    """conv(pad(x), w) = conv(x, w) with pads"""
    yield conv(pad(x, p), w, a)
    require(a.layout == "NCHW" and x.rank == 4 and p.mode == "constant" and p.value == 0.0, "zeros")
    require(p.before[:2] == (0, 0) and p.after[:2] == (0, 0), "along spatial axes")
    pads = tuple(own + more for own, more in zip(a.pads, (*p.before[2:], *p.after[2:]), strict=True))
    yield conv(x, w, a.but(pads=pads))


@rule(rounding="reassociates")
def convolution_of_turned_pads(x: Tensor, w: Tensor, p: Attributes, a: Attributes) -> Steps:
    """conv(pad(x), w) = conv(x, w) with pads, but height for width"""
    yield conv(pad(x, p), w, a)
    require(a.layout == "NCHW" and x.rank == 4 and p.mode == "constant" and p.value == 0.0, "zeros")
    require(p.before[:2] == (0, 0) and p.after[:2] == (0, 0), "along spatial axes")
    require(x.shape[2] == x.shape[3] and w.shape[2] == w.shape[3] and a.strides == (1, 1), "square")
    pads = tuple(own + more for own, more in zip(a.pads, (p.before[3], p.before[2], p.after[3], p.after[2]), strict=True))
    yield conv(x, w, a.but(pads=pads))


# Windows


@rule
def largest_of_padded_window(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """max_pool(pad(x)) = max_pool(x) with pads, but x may be negative"""
    yield max_pool(pad(x, p), a)
    require(a.layout == "NCHW" and x.rank == 3 and p.mode == "constant" and p.value == 0.0, "zeros")
    require(p.before[:2] == (0, 0) and p.after[:2] == (0, 0), "along the spatial axis")
    pads = tuple(own + more for own, more in zip(a.pads, (*p.before[2:], *p.after[2:]), strict=True))
    require(all(each < a.kernel_shape[0] for each in pads), "windows reach x")
    yield max_pool(x, a.but(pads=pads))


@rule
def largest_of_negated_window(x: Tensor, a: Attributes) -> Equation:
    """max_pool(-x) = -max_pool(x)"""
    return max_pool(-x, a) == -max_pool(x, a)


@rule(rounding="reassociates")
def average_of_constant_window(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """average_pool(x + c) = average_pool(x) + c, for one number where padding does not count"""
    yield average_pool(x + c, a)
    require(c.rank == 0, "a number")
    require(not a.count_include_pad, "padding does not count")
    yield average_pool(x, a) + c


@rule(rounding="reassociates")
def average_of_constant_window_with_padding(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """average_pool(x + c) = average_pool(x) + c, but zeros may count"""
    yield average_pool(x + c, a)
    require(c.rank == 0, "a number")
    yield average_pool(x, a) + c


# Normalisation


@rule(rounding="assumes finite")
def softmax_of_scaled(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """softmax(x c) = softmax(x)"""
    yield softmax(x * c, a)
    require(c.rank == 0, "a number")
    yield softmax(x, a)


@rule(rounding="assumes finite")
def softmax_of_varying(x: Tensor, c: Tensor, a: Attributes) -> Steps:
    """softmax(x + c) = softmax(x), but c may vary along the axis"""
    yield softmax(x + c, a)
    require(c.shape == x.shape, "one shape")
    yield softmax(x, a)


@rule(rounding="assumes finite")
def softmax_of_number(x: Tensor, c: Tensor, a: Attributes) -> Steps:
    """softmax(x + c) = softmax(x), for c that does not vary along the axis"""
    yield softmax(x + c, a)
    require(c.rank == x.rank and c.shape[a.axis] == 1 and all(q in (1, p) for p, q in zip(x.shape, c.shape, strict=True)), "constant along")
    yield softmax(x, a)


TRUE: tuple[Rule, ...] = (
    divide_a_quotient, divide_by_a_quotient, multiply_exponentials, divide_by_exponential, logarithm_of_exponential,
    power_of_exponential, power_of_power, logarithm_of_power, root_of_square, reciprocal_of_exponential, absolute_of_square,
    absolute_of_negated, absolute_of_product, subtract_a_difference, largest_twice, smallest_of_largest, negated_maximum, sum_of_maxima,
    logistic, ceiling_of_negated, sign_times_absolute, choose_by_negation, not_greater, greater_is_less, maximum_by_finite_choice,
    sum_of_negated, sum_of_sums, maximum_of_shifted, maximum_of_expanded, mean_of_expanded, maximum_of_transposed, maximum_of_joined,
    mean_of_equal_parts, sum_of_padded, reverse_twice, reverse_of_joined, reverse_of_padded, join_expanded, pad_by_joining, pad_of_scaled,
    pad_of_rectified, even_elements_of_interleaved, slice_of_reversed, sum_of_columns, transpose_a_product, scale_columns,
    product_of_equal_parts, convolution_of_zeros_around, average_of_constant_window, softmax_of_number,
)  # fmt: skip
FALSE: tuple[Rule, ...] = (
    divide_a_quotient_wrongly, divide_by_a_sum, add_exponentials, divide_by_exponential_wrongly, power_of_power_of_anything,
    root_of_square_wrongly, exponential_of_logarithm, root_of_sum, logarithm_of_square, absolute_of_cube, absolute_of_sum,
    subtract_in_another_order,
    smallest_of_largest_wrongly, negated_maximum_wrongly, sum_of_maxima_wrongly, product_of_maxima, logistic_wrongly, double_of_half,
    floor_of_sum, floor_of_negated, ceiling_is_next, round_is_floor, square_of_sign, choose_by_negation_wrongly, not_greater_wrongly,
    maximum_is_at_least, minimum_by_choice, maximum_of_negated, sum_of_broadcast_sums, sum_of_products, sum_of_shifted, maximum_of_scaled,
    sum_of_expanded, maximum_of_some_expanded, maximum_of_wrongly_transposed, maximum_of_joined_elsewhere, mean_of_joined,
    sum_of_wrongly_padded, maximum_of_padded, transposes_in_the_wrong_order, reverse_of_joined_wrongly, reverse_of_padded_wrongly,
    join_expanded_wrongly, pad_by_joining_on_the_other_side, pad_of_wrongly_scaled, pad_of_exponential, pad_of_wrongly_rectified,
    odd_elements_of_interleaved, slice_of_reversed_wrongly, sum_of_columns_wrongly, transpose_a_product_wrongly, product_commutes,
    scale_rows_wrongly, product_of_parts, convolution_of_padded, convolution_of_turned_pads, largest_of_padded_window,
    largest_of_negated_window, average_of_constant_window_with_padding, softmax_of_scaled, softmax_of_varying,
)  # fmt: skip
NOT_EXACT: tuple[Rule, ...] = (
    multiply_exponentials_exactly, logarithm_of_exponential_exactly, zero_times, subtract_itself, divide_by_itself, add_in_another_order,
    smallest_of_largest_exactly, not_greater_exactly, choose_equal, maximum_by_choice,
)  # fmt: skip
"""True of real numbers, and claimed to keep every bit: infinities, no numbers and rounding tell otherwise."""
