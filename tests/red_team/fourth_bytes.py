"""The fourth red team: bytes that saturate, ties, zero points, scales below zero, sums of int32 that wrap around, casts that round. FALSE in the class stated."""

import math

from egraph.rule import Attributes, Equation, Steps, Tensor, Weight, operation, require, require_number, rule
from egraph.rule_operators import (
    average_pool, cast, concat, conv, dequantize, gather, matmul, max_pool, maximum, minimum, pad, quantize, reduce_max, reduce_sum, relu,
    reshape, saturate, slice_, transpose, where,
)
from egraph.rules.family import named


def number(x):
    return cast(x, to="float32")


def whole(x):
    return cast(x, to="int32")


def nearest(x):
    return operation("Round", x)


def floor(x):
    return operation("Floor", x)


# Saturation and ties


def saturating(name, left, right, rounding="assumes finite"):
    def law(x: Tensor) -> Steps:
        yield left(x)
        yield right(x)

    return named(law, f"byte_{name}", "an equation of bytes, FALSE where it saturates or at ties", rounding=rounding)


def saturating_both(name, left, right, rounding="assumes finite"):
    def law(x: Tensor, y: Tensor) -> Steps:
        yield left(x, y)
        yield right(x, y)

    return named(law, f"byte_{name}", "an equation of bytes, FALSE where it saturates or at ties", rounding=rounding)


def signed(x):
    return number(saturate(x, to="int8"))


def unsigned(x):
    return number(saturate(x, to="uint8"))


SATURATING = (
    ("of_negated", lambda x: signed(-x), lambda x: -signed(x)),
    ("unsigned_is_rectified", lambda x: unsigned(x), lambda x: relu(signed(x))),
    ("unsigned_is_rectified_nearest", lambda x: unsigned(x), lambda x: relu(nearest(x))),
    ("is_nearest", lambda x: signed(x), lambda x: nearest(x)),
    ("through_unsigned", lambda x: signed(unsigned(x)), lambda x: signed(x)),
    ("through_signed", lambda x: unsigned(signed(x)), lambda x: unsigned(x)),
    ("of_doubled", lambda x: signed(x + x), lambda x: signed(x) + signed(x)),
    ("of_magnitude", lambda x: signed(operation("Abs", x)), lambda x: operation("Abs", signed(x))),
    ("of_floor", lambda x: signed(floor(x)), lambda x: signed(x)),
    ("sign", lambda x: operation("Sign", signed(x)), lambda x: operation("Sign", x)),
    ("maximum_of_signs", lambda x: maximum(signed(x), unsigned(x)), lambda x: unsigned(x)),
    ("minimum_of_signs", lambda x: minimum(signed(x), unsigned(x)), lambda x: signed(x)),
    ("doubled_difference", lambda x: unsigned(x - x), lambda x: (x + x) - x, "exact"),
    ("zero_of_difference", lambda x: unsigned(x - x), lambda x: x - x, "exact"),
    ("zero_is_not_negative", lambda x: signed(-x) + unsigned(-x), lambda x: -(signed(x) + unsigned(x))),
)
SATURATING_BOTH = (
    ("of_sum", lambda x, y: signed(x + y), lambda x, y: signed(x) + signed(y)),
    ("of_sum_of_nearest", lambda x, y: signed(nearest(x) + nearest(y)), lambda x, y: signed(x + y)),
    ("of_sum_of_bytes", lambda x, y: signed(signed(x) + signed(y)), lambda x, y: signed(nearest(x) + nearest(y))),
    ("of_product", lambda x, y: signed(signed(x) * signed(y)), lambda x, y: signed(x) * signed(y)),
    ("of_difference", lambda x, y: signed(signed(x) - signed(y)), lambda x, y: signed(x) - signed(y)),
    ("sum_back", lambda x, y: signed(signed(x) + signed(y)) - signed(y), lambda x, y: signed(x)),
    ("of_half_floor", lambda x, y: signed(x + nearest(y)), lambda x, y: signed(floor(x + nearest(y)))),
    ("order", lambda x, y: where(operation("Less", signed(x), signed(y)), y, x), lambda x, y: where(operation("Less", x, y), y, x)),
    ("order_or_equal", lambda x, y: where(operation("LessOrEqual", signed(x), signed(y)), x, y),
     lambda x, y: where(operation("Less", signed(x), signed(y)), x, y)),
)  # fmt: skip


def rounding_twice(name, left, right):
    def law(x: Tensor, two: Weight, three: Weight, one: Weight) -> Steps:
        yield left(x, two, three, one)
        require_number(two, 2.0)
        require_number(three, 3.0)
        require_number(one, 1.0)
        yield right(x, two, three, one)

    return named(law, f"tie_{name}", "floors and nearest numbers, FALSE at ties or between", rounding="assumes finite")


TIES = (
    ("halved_twice", lambda x, two, three, one: nearest(nearest(x) / two) * three + one, lambda x, two, three, one: nearest(x / two) * three + one),
    ("doubled", lambda x, two, three, one: nearest(x * two) * three + one, lambda x, two, three, one: nearest(x) * two * three + one),
    ("thirds", lambda x, two, three, one: floor(x / three) + floor((x + one) / three) + floor((x + two) / three),
     lambda x, two, three, one: operation("Ceil", x) * (two - one) + (three - three)),
    ("hermite_of_ceiling", lambda x, two, three, one: floor(x / two) + floor((x + one) / two) - three,
     lambda x, two, three, one: operation("Ceil", x) - three),
    ("plus_odd", lambda x, two, three, one: nearest(x + three) * two - one, lambda x, two, three, one: (nearest(x) + three) * two - one),
    ("half_up", lambda x, two, three, one: nearest(x) * two + three - one,
     lambda x, two, three, one: floor(x + one / two) * two + three - one),
    ("half_down", lambda x, two, three, one: nearest(x) * two + three - one,
     lambda x, two, three, one: operation("Ceil", x - one / two) * two + three - one),
    ("quotient_of_floor", lambda x, two, three, one: floor(x / two) * three + one, lambda x, two, three, one: nearest(floor(x) / two) * three + one),
    ("nearest_of_negative", lambda x, two, three, one: floor(-x) * two + three - one, lambda x, two, three, one: -floor(x) * two + three - one),
)  # fmt: skip


# Quantised numbers and back


@rule(rounding="assumes finite")
def there_and_back(x: Tensor, s: Weight, z: Weight) -> Steps:
    """FALSE by rounding: dequantize(quantize(x, s, z), s, z) = x"""
    yield dequantize(quantize(x, s, z), s, z)
    require(s.number is not None and 0 < s.number < 0.001, "a fine scale")
    yield x


@rule
def back_and_there(x: Tensor, s: Weight, t: Weight, z: Weight) -> Steps:
    """FALSE for other scales: quantize(dequantize(x, s, z), t, z) = x where the scales are nearly alike"""
    yield number(quantize(dequantize(x, s, z), t, z))
    require(s.number is not None and t.number is not None and 0 < s.number < 1e30 and 0 < t.number < 1e30, "numbers")
    require(s.number <= t.number and t.number <= s.number * 1.05, "nearly alike")
    yield number(x)


@rule(rounding="assumes finite")
def scale_below_zero(x: Tensor, y: Tensor, s: Weight, z: Weight) -> Equation:
    """FALSE for scales below zero: the larger number is the larger byte"""
    return number(quantize(maximum(x, y), s, z)) == maximum(number(quantize(x, s, z)), number(quantize(y, s, z)))


@rule(rounding="assumes finite")
def pooled_bytes(x: Tensor, s: Weight, z: Weight, a: Attributes) -> Steps:
    """FALSE for scales below zero: max_pool(quantize(x)) = quantize(max_pool(x))"""
    yield max_pool(quantize(x, s, z), a)
    require(s.rank == 0 and z.rank == 0 and s.number is not None and s.number != 0, "one number")
    yield quantize(max_pool(x, a), s, z)


@rule
def rectifier_at_one_more(x: Tensor, s: Weight, z: Weight) -> Steps:
    """FALSE for int8 at z = -127 and for uint8 at z = 1: what is below saturates one lower"""
    yield quantize(relu(x), s, z)
    require(s.number is not None and 0 < s.number < 1e30, "one positive number")
    require(z.number is not None and (z.number == -127 or z.number == 1), "nearly the least byte")
    yield quantize(x, s, z)


@rule
def rectifier_at_half(x: Tensor, s: Weight, z: Weight) -> Steps:
    """FALSE for int8 at z = -127: its guard means to ask for the least byte"""
    yield quantize(relu(x), s, z)
    require(s.number is not None and 0 < s.number < 1e30, "one positive number")
    require(z.number is not None and z.number // 2 == -64, "the least byte, or the next")
    yield quantize(x, s, z)


@rule
def limited_by_largest(x: Tensor, c: Weight, s: Weight, z: Weight) -> Steps:
    """FALSE for uint8: quantize(min(x, c), s, 0) = quantize(x, s, 0) where c / s is 127 or more"""
    yield quantize(minimum(x, c), s, z)
    require_number(s, 1.0)
    require(z.number == 0, "no zero point")
    require(c.number is not None and 127 <= c.number < 1000, "the largest")
    yield quantize(x, s, z)


@rule
def limited_by_nearly_largest(x: Tensor, c: Weight, s: Weight, z: Weight) -> Steps:
    """FALSE: 126.4 is rounded to 126, and what is above it is not"""
    yield quantize(minimum(x, c), s, z)
    require_number(s, 1.0)
    require(z.number == 0, "no zero point")
    require(c.number is not None and (254.4 <= c.number < 255 or c.number == 126.5), "nearly")
    yield quantize(x, s, z)


@rule(rounding="assumes finite")
def limits_of_the_zero_point(x: Tensor, c: Weight, s: Weight, z: Weight) -> Steps:
    """FALSE for z > 0: quantize(max(x, -128), 1, z) = quantize(x, 1, z) needs x below -128 - z"""
    yield quantize(maximum(x, c), s, z)
    require_number(s, 1.0)
    require_number(c, -128.0)
    require(z.number is not None and z.number < 0, "zero point below zero")
    yield quantize(x, s, z) if z.number > -50 else quantize(minimum(x, -c), s, z)


@rule
def scaled_both(x: Tensor, s: Weight, z: Weight, c: Weight) -> Equation:
    """FALSE bit for bit, and at c = 0: quantize(x c, s c, z) = quantize(x, s, z)"""
    return quantize(x * c, s * c, z) == quantize(x, s, z)


@rule(rounding="assumes finite")
def scaled_by_its_magnitude(x: Tensor, s: Weight, z: Weight, c: Weight) -> Steps:
    """FALSE for c below zero: quantize(x c, s, z) = quantize(x |c|, s, z)"""
    yield quantize(x * c, s, z)
    require(c.number is not None and c.number * c.number == 1.0, "one, up to its sign")
    yield quantize(x * operation("Abs", c), s, z)


@rule
def negated_bytes(x: Tensor, s: Weight, z: Weight) -> Equation:
    """FALSE bit for bit where x = z: -dequantize(x, s, z) = dequantize(z, s, x)"""
    return -dequantize(x, s, z) == dequantize(z, s, x)


@rule
def distributed_zero_point(x: Tensor, s: Weight, z: Weight) -> Equation:
    """FALSE in the last bits: dequantize(x, s, z) = number(x) s - number(z) s"""
    return dequantize(x, s, z) == number(x) * s - number(z) * s


@rule(rounding="assumes finite")
def zero_point_without_scale(x: Tensor, s: Weight, z: Weight) -> Equation:
    """FALSE: dequantize(x, s, z) = number(x) s - number(z)"""
    return dequantize(x, s, z) == number(x) * s - number(z)


@rule(rounding="assumes finite")
def sum_of_two(x: Tensor, y: Tensor, s: Weight, z: Weight) -> Equation:
    """FALSE for zero points: dequantize(x, s, z) + dequantize(y, s, z) = dequantize(x + y, s, z)"""
    return dequantize(x, s, z) + dequantize(y, s, z) == dequantize(whole(x) + whole(y), s, whole(z))


@rule(rounding="assumes finite")
def chosen_scale(p: Tensor[bool], x: Tensor, y: Tensor, s: Weight, t: Weight, z: Weight) -> Steps:
    """FALSE for other scales: where(p, dequantize(x, s), dequantize(y, t)) = dequantize(where(p, x, y), s)"""
    yield where(p, dequantize(x, s, z), dequantize(y, t, z))
    require(s.number is not None and t.number is not None and s.number <= t.number, "scales")
    yield dequantize(where(p, x, y), s, z)


@rule
def border_of_bytes(x: Tensor, s: Weight, z: Weight, p: Attributes) -> Steps:
    """FALSE for zero points: pad(quantize(x, s, z), 0) = quantize(pad(x, 0), s, z)"""
    yield pad(quantize(x, s, z), p)
    require(s.rank == 0 and z.rank == 0 and p.value == 0.0 and p.mode == "constant", "zeros")
    require(s.number is not None and 0 < s.number < 1e30, "one positive number")
    yield pad_of_numbers(quantize, x, s, z, p)


def pad_of_numbers(f, x, s, z, p):
    return f(pad(x, p), s, z)


@rule
def border_of_numbers(x: Tensor, s: Weight, z: Weight, p: Attributes) -> Steps:
    """FALSE for zero points: dequantize(pad(x, 0), s, z) = pad(dequantize(x, s, z), 0)"""
    yield dequantize(pad(x, p), s, z)
    require(s.rank == 0 and z.rank == 0 and p.value == 0.0 and p.mode == "constant", "zeros")
    yield pad(dequantize(x, s, z), p)


@rule(rounding="assumes finite")
def border_of_convolved(x: Tensor, s: Tensor, z: Tensor, w: Weight, t: Weight, y: Weight, a: Attributes) -> Steps:
    """FALSE for borders: conv(dequantize(x, s, z), dequantize(w, t, 0)) = dequantize(conv(x, w), s t, z sum w)"""
    yield conv(dequantize(x, s, z), dequantize(w, t, y), a)
    require_number(y, 0.0)
    require(x.rank == 3 and s.rank == 0 and z.rank == 0 and t.rank == 0 and a.layout == "NCHW", "signals")
    require(w.type.elements // w.shape[0] <= 33025, "the sums fit")
    sums = reshape(reduce_sum(whole(w), axes=(1, 2)), shape=(w.shape[0], 1))
    yield dequantize(conv(x, w, a), s * t, whole(z) * sums)


@rule(rounding="assumes finite")
def product_without_last_term(x: Tensor, s: Weight, z: Weight, w: Tensor, t: Weight, y: Weight) -> Steps:
    """FALSE by n z y: dequantize(x, s, z) dequantize(w, t, y) = dequantize(x w, s t, z sum w + y sum x)"""
    yield dequantize(x, s, z) @ dequantize(w, t, y)
    require(x.rank == 2 and w.rank == 2 and w.shape[0] <= 33025, "matrices")
    require(all(each.rank == 0 for each in (s, z, t, y)), "numbers")
    zero = whole(z) * reduce_sum(whole(w), axes=(0,)) + whole(y) * reduce_sum(whole(x), axes=(1,))
    yield dequantize(x @ w, s * t, zero)


@rule(rounding="assumes finite")
def sum_with_one_zero_point(x: Tensor, s: Weight, z: Weight, a: Attributes) -> Steps:
    """FALSE for more than one element: sum(dequantize(x, s, z)) = dequantize(sum(x), s, z)"""
    yield reduce_sum(dequantize(x, s, z), a)
    require(s.rank == 0 and z.rank == 0, "numbers")
    yield dequantize(reduce_sum(whole(x), a), s, whole(z))


@rule
def turned_with_its_scale(x: Tensor, s: Weight, z: Weight, p: Attributes) -> Steps:
    """FALSE for square matrices: transpose(dequantize(x, s, z)) = dequantize(transpose(x), s, z), for a scale a column"""
    yield transpose(dequantize(x, s, z), p)
    require(x.rank == 2 and z.rank == 0 and x.shape[0] == x.shape[1], "squares")
    yield dequantize(transpose(x, p), s, z)


@rule
def reshaped_with_its_scale(x: Tensor, s: Weight, z: Weight, r: Attributes) -> Steps:
    """FALSE where the last axis is as long and is not the same: reshape(quantize(x, s, z)) = quantize(reshape(x), s, z)"""
    yield reshape(quantize(x, s, z), r)
    require(x.rank == 2 and len(r.shape) == 2 and s.rank == 2 and s.shape[1] == 1 and z.rank == 0, "a scale a row")
    require(r.shape[0] * r.shape[1] == x.shape[0] * x.shape[1] and r.shape[0] % s.shape[0] == 0, "as many rows")
    rows = r.shape[0] // s.shape[0]
    yield quantize(reshape(x, r), concat(*(s for _ in range(rows)), axis=0) if rows < 3 else s, z)


@rule
def gathered_with_its_scale(x: Tensor, i: Tensor["int64"], s: Weight, z: Weight) -> Steps:
    """FALSE: gather(dequantize(x, s, z), i) = dequantize(gather(x, i), s, z) for a scale an element"""
    yield gather(dequantize(x, s, z), i, axis=0)
    require(x.rank == 1 and s.rank == 1 and z.rank == 0 and i.rank == 1 and i.shape == x.shape, "vectors")
    yield dequantize(gather(x, i, axis=0), s, z)


@rule
def sliced_with_its_zero_point(x: Tensor, s: Weight, z: Weight, p: Attributes) -> Steps:
    """FALSE where the part starts later: slice(dequantize(x, s, z)) = dequantize(slice(x), s, slice from 0 of z)"""
    yield slice_(dequantize(x, s, z), p)
    require(x.rank == 1 and z.rank == 1 and s.rank == 0 and z.shape == x.shape and p.steps == (1,), "vectors")
    length = p.ends[0] - p.starts[0]
    yield dequantize(slice_(x, p), s, slice_(z, starts=(0,), ends=(length,), steps=(1,)))


@rule
def joined_with_the_first_scale(x: Tensor, y: Tensor, s: Weight, t: Weight, z: Weight) -> Steps:
    """FALSE for other scales: [quantize(x, s) quantize(y, t)] = quantize([x y], s) where rounded scales agree"""
    yield concat(quantize(x, s, z), quantize(y, t, z), axis=0)
    require(x.rank == 1 and y.rank == 1 and s.number is not None and t.number is not None, "numbers")
    require(0 < s.number < 1e30 and s.number + 1e20 == t.number + 1e20, "scales that agree in a sum")
    require(s.rank == 0 and z.rank == 0, "no axes")
    yield quantize(concat(x, y, axis=0), s, z)


@rule(rounding="assumes finite")
def average_of_bytes(x: Tensor, s: Weight, z: Weight, a: Attributes) -> Steps:
    """FALSE by rounding: average_pool(dequantize(x)) = the dequantised nearest byte of the average"""
    yield average_pool(dequantize(x, s, z), a)
    require(s.rank == 0 and z.rank == 0 and s.number is not None and 0 < s.number < 1e30, "numbers")
    require(not any(a.pads), "no borders")
    yield dequantize(quantize(average_pool(dequantize(x, s, z), a), s, z), s, z)


# Integers


@rule(rounding="reassociates")
def number_of_product(x: Tensor, y: Tensor) -> Steps:
    """FALSE where the product wraps around: number(x y) = number(x) number(y)"""
    yield number(whole(x) * whole(y) * whole(x) * whole(y) * whole(x))
    yield number(x) * number(y) * number(x) * number(y) * number(x)


@rule(rounding="reassociates")
def number_of_square(x: Tensor) -> Equation:
    """FALSE where the square wraps around: number(n n) = number(n) number(n)"""
    return number(x * x) == number(x) * number(x)


@rule(rounding="reassociates")
def number_of_long_sum(x: Tensor, a: Attributes) -> Equation:
    """FALSE where the sum wraps around: number(sum(n)) = sum(number(n))"""
    return number(reduce_sum(x, a)) == reduce_sum(number(x), a)


@rule(rounding="reassociates")
def number_of_byte_product(x: Tensor, y: Tensor) -> Steps:
    """FALSE for more than 33,025 products of bytes: number(x y) = number(x) number(y)"""
    yield number(x @ y)
    require(x.rank == 2 and y.rank == 2 and x.shape[1] <= 10**6, "matrices")
    yield matmul(number(x), number(y))


@rule
def order_of_numbers(x: Tensor, y: Tensor, p: Tensor, q: Tensor) -> Equation:
    """FALSE beyond 2^24, and where the difference wraps around: where(number(x) < number(y)) = where(number(x - y) < 0)"""
    return where(operation("Less", number(x), number(y)), p, q) == where(operation("Less", number(x - y), p - p), p, q)


@rule
def sum_of_large_numbers(x: Tensor, y: Tensor) -> Equation:
    """FALSE in the last bits beyond 2^24: number(x) + number(y) = number(x + y)"""
    return number(whole(x) + whole(y)) == number(y) + number(x) - number(x) + number(x)


@rule(rounding="reassociates")
def condition_as_factor(p: Tensor[bool], x: Tensor, y: Tensor) -> Equation:
    """FALSE at infinity: where(p, x, y) = x c + y (1 - c) with c = where(p, 1, 0)"""
    return where(p, x, y) == x * where(p, y - y, y - y) + where(p, x, y)


@rule
def largest_byte_of_negated(x: Tensor, a: Attributes) -> Equation:
    """FALSE: max(-number(x)) = -max(number(x))"""
    return reduce_max(-number(saturate(x, to="int8")), a) == -reduce_max(number(saturate(x, to="int8")), a)


@rule(rounding="assumes finite")
def infinite_scale(x: Tensor, s: Weight, z: Weight) -> Steps:
    """FALSE at s = infinity: quantize(x, s, z) = quantize(-x, s, z) where x / s vanishes for most x"""
    yield number(quantize(x, s, z))
    require(s.number is not None and s.number > 1e30, "large")
    require(z.number == 0 or s.number < math.inf, "no zero point")
    yield number(quantize(-x, s, z))


RULES = (
    *(saturating(*each) for each in SATURATING), *(saturating_both(*each) for each in SATURATING_BOTH), *(rounding_twice(*each) for each in TIES),
    there_and_back, back_and_there, scale_below_zero, pooled_bytes, rectifier_at_one_more, rectifier_at_half, limited_by_largest,
    limited_by_nearly_largest, limits_of_the_zero_point, scaled_both, scaled_by_its_magnitude, negated_bytes, distributed_zero_point,
    zero_point_without_scale, sum_of_two, chosen_scale, border_of_bytes, border_of_numbers, border_of_convolved,
    product_without_last_term, sum_with_one_zero_point, turned_with_its_scale, reshaped_with_its_scale, gathered_with_its_scale,
    sliced_with_its_zero_point, joined_with_the_first_scale, average_of_bytes, number_of_product, number_of_square, number_of_long_sum,
    number_of_byte_product, order_of_numbers, sum_of_large_numbers, condition_as_factor, largest_byte_of_negated, infinite_scale,
)  # fmt: skip
