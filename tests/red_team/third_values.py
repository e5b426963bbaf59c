"""The third red team: single values where an equation fails, ties, whole numbers, zeros' signs, NaN. FALSE in the class that each states."""

import math

from egraph.rule import Attributes, Equation, Steps, Tensor, Weight, operation, require, require_number, rule
from egraph.rule_operators import (
    absolute, cast, clip, dequantize, exp, gelu, hard_sigmoid, layer_normalization, leaky_relu, log, max_pool, maximum, minimum, power,
    quantize, reciprocal, reduce_mean, reduce_sum, relu, saturate, softmax, softplus, sqrt, where,
)


def floor(x):
    return operation("Floor", x)


def nearest(x):
    return operation("Round", x)


def sign(x):
    return operation("Sign", x)


def less(x, y):
    return operation("Less", x, y)


# The sign of a zero, infinities, NaN


@rule
def magnitude_as_maximum(x: Tensor) -> Equation:
    """FALSE bit for bit at -0.0: max(x, -x) = |x|"""
    return maximum(x, -x) == absolute(x)


@rule
def sign_times_magnitude(x: Tensor) -> Equation:
    """FALSE bit for bit at -0.0: sign(x) |x| = x"""
    return sign(x) * absolute(x) == x


@rule
def both_rectified(x: Tensor) -> Equation:
    """FALSE bit for bit at -0.0: relu(x) - relu(-x) = x"""
    return relu(x) - relu(-x) == x


@rule
def minimum_taken_away(x: Tensor) -> Equation:
    """FALSE bit for bit at infinities: x - min(x, -x) = x + |x| is infinity, but -infinity + infinity is NaN"""
    return x - minimum(x, -x) - x == absolute(x)


@rule
def choice_of_larger(x: Tensor, y: Tensor) -> Equation:
    """FALSE at NaN: where(x < y, y, x) = max(x, y)"""
    return where(less(x, y), y, x) == maximum(x, y)


@rule(rounding="reassociates")
def choice_of_smaller(x: Tensor, y: Tensor) -> Equation:
    """FALSE at NaN: where(y <= x, y, x) = min(x, y)"""
    return where(operation("LessOrEqual", y, x), y, x) == minimum(x, y)


@rule(rounding="reassociates")
def no_number_of_sum(x: Tensor, y: Tensor) -> Equation:
    """FALSE where infinities of both signs meet: isnan(x + y) = isnan(x) or isnan(y)"""
    return operation("IsNaN", x + y) == operation("Or", operation("IsNaN", x), operation("IsNaN", y))


@rule(rounding="reassociates")
def is_a_number(x: Tensor) -> Equation:
    """FALSE at infinity: not isnan(x) = (x - x == x - x)"""
    return operation("Not", operation("IsNaN", x)) == operation("Equal", x - x, x - x)


@rule(rounding="reassociates")
def floor_by_its_rest(x: Tensor, y: Tensor) -> Equation:
    """FALSE at infinity: max(floor(x), y) = max(x - (x - floor(x)), y)"""
    return maximum(floor(x), y) == maximum(x - (x - floor(x)), y)


@rule(rounding="reassociates")
def scaled_by_what_is_its_magnitude(x: Tensor, c: Weight) -> Steps:
    """FALSE at c = 0, x = -infinity: relu(x c) = relu(x) c"""
    yield relu(x * c)
    require(c.number is not None and abs(c.number) == c.number, "its own magnitude")
    yield relu(x) * c


@rule
def scaled_by_what_is_not_below_zero(x: Tensor, y: Tensor, c: Weight) -> Steps:
    """FALSE at c = infinity, x = 0, y = 1: max(x c, y c) = max(x, y) c"""
    yield maximum(x * c, y * c)
    require(c.number is not None and not c.number <= 0, "not below zero")
    yield maximum(x, y) * c


@rule
def below_one_by_maximum(x: Tensor, c: Weight) -> Steps:
    """FALSE at c = NaN, which max(1, c) leaves aside: max(exp(|x|), c) = exp(|x|)"""
    yield maximum(exp(absolute(x)), c)
    require(c.number is not None and max(1.0, c.number) == 1.0, "at most one")
    yield exp(absolute(x))


@rule
def below_one_by_minimum(x: Tensor, c: Weight) -> Steps:
    """FALSE at c = NaN, which min(c, 2) keeps and is not above: max(exp(|x|), c) = exp(|x|)"""
    yield maximum(exp(absolute(x)), c)
    require(c.number is not None and not min(c.number, 2.0) > 1.0, "at most one")
    yield exp(absolute(x))


@rule
def sorted_numbers(x: Tensor, c: Weight) -> Steps:
    """FALSE at c = NaN, which sorting leaves where it is: max(exp(|x|), c) = exp(|x|)"""
    yield maximum(exp(absolute(x)), c)
    require(c.number is not None and sorted((c.number, 1.0))[1] == 1.0, "at most one")
    yield exp(absolute(x))


@rule(rounding="reassociates")
def powers_of_magnitude(x: Tensor, c: Weight) -> Steps:
    """FALSE for odd c: x^c = |x|^c"""
    yield power(x, c)
    require(c.number is not None and c.number % 1 == 0, "whole")
    yield power(absolute(x), c)


@rule(rounding="reassociates")
def truncated_number(x: Tensor, c: Weight) -> Steps:
    """FALSE at 2.5: x c = x + x"""
    yield x * c
    require(c.number is not None and 2 <= c.number < 3, "about two")
    yield x + x


# Single values


@rule(rounding="assumes finite")
def softmax_of_one(x: Tensor, a: Attributes) -> Steps:
    """FALSE at 0: the softmax of one element is sign(x) sign(x)"""
    yield softmax(x, a)
    require(x.shape[a.axis] == 1, "one element")
    yield sign(x) * sign(x)


@rule(rounding="assumes finite")
def softmax_of_one_divided(x: Tensor, a: Attributes) -> Steps:
    """FALSE at 0: the softmax of one element is x / x"""
    yield softmax(x, a)
    require(x.shape[a.axis] == 1, "one element")
    yield x / x


@rule(rounding="assumes finite")
def equal_squares(x: Tensor, y: Tensor) -> Equation:
    """FALSE at x = -y: where(x x == y y, x, y) = y"""
    return where(operation("Equal", x * x, y * y), x, y) == y


@rule(rounding="assumes finite")
def strict_or_not(x: Tensor, y: Tensor) -> Equation:
    """FALSE at x = y: where(x < y, x + 1, y) with 1 = exp(x - x) is where(x <= y, ...)"""
    return where(less(x, y), x + exp(x - x), y) == where(operation("LessOrEqual", x, y), x + exp(x - x), y)


@rule(rounding="assumes finite")
def sign_squared(x: Tensor) -> Equation:
    """FALSE at 0: sign(x)^2 = exp(x - x)"""
    return sign(x) * sign(x) == exp(x - x)


@rule(rounding="assumes finite")
def step_at_zero(x: Tensor) -> Equation:
    """FALSE at 0: relu(sign(x)) + relu(sign(-x)) = cos(x - x)"""
    return relu(sign(x)) + relu(sign(-x)) == operation("Cos", x - x)


@rule(rounding="assumes finite")
def powers_added(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """FALSE below zero at y = z = 1/2: x^(y + z) = x^y x^z"""
    return power(x, y + z) == power(x, y) * power(x, z)


@rule(rounding="assumes finite")
def powers_of_products(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """FALSE where both are negative, z = 1/2: (x y)^z = x^z y^z"""
    return power(x * y, z) == power(x, z) * power(y, z)


@rule(rounding="assumes finite")
def root_of_square(x: Tensor, two: Weight, half: Weight) -> Steps:
    """FALSE below zero: (x^2)^(1/2) = x"""
    yield power(power(x, two), half)
    require_number(two, 2.0)
    require_number(half, 0.5)
    yield x


@rule(rounding="assumes finite")
def power_of_nothing(x: Tensor, z: Weight) -> Steps:
    """FALSE at 0: x^0 = x / x"""
    yield power(x, z)
    require_number(z, 0.0)
    yield x / x


@rule(rounding="assumes finite")
def modular_law(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """FALSE for z > y: max(min(x, y), z) = min(max(x, z), y)"""
    return maximum(minimum(x, y), z) == minimum(maximum(x, z), y)


@rule(rounding="assumes finite")
def bounds_exchanged(x: Tensor, low: Weight, high: Weight) -> Steps:
    """FALSE for bounds in the wrong order: max(min(x, h), l) = min(max(x, l), h)"""
    yield maximum(minimum(x, high), low)
    require(low.number is not None and high.number is not None, "numbers")
    require(low.number < high.number or low.number > 100.0, "in order")
    yield minimum(maximum(x, low), high)


@rule(rounding="assumes finite")
def clip_above_zero(x: Tensor, a: Attributes) -> Steps:
    """FALSE for a.max < 0: relu(clip(x)) = clip(x) from 0 on"""
    yield relu(clip(x, a))
    yield clip(x, a.but(min=max(a.min, 0.0)))


@rule(rounding="assumes finite")
def products_of_doubled(x: Tensor, y: Tensor) -> Equation:
    """FALSE by half: sin(x) sin(y) = cos(x - y) - cos(x + y)"""
    return operation("Sin", x) * operation("Sin", y) == operation("Cos", x - y) - operation("Cos", x + y)


@rule(rounding="assumes finite")
def gelu_by_tanh(x: Tensor) -> Equation:
    """FALSE by less than a thousandth: gelu(x) is about its own approximation"""
    return gelu(x, approximate="none") == gelu(x, approximate="tanh")


@rule(rounding="assumes finite")
def steep_softplus(x: Tensor, c: Weight) -> Steps:
    """FALSE at 0, by log(2): softplus(10^30 x) = relu(10^30 x)"""
    yield softplus(x * c)
    require(c.number is not None and 9e29 < c.number < 2e30, "steep")
    yield relu(x * c)


@rule(rounding="assumes finite")
def logarithm_of_magnitude(x: Tensor) -> Equation:
    """FALSE at 0, where the right side lacks a value: sqrt(x x) = exp(log(|x|))"""
    return sqrt(x * x) == exp(log(absolute(x)))


@rule(rounding="assumes finite")
def reciprocal_of_maximum(x: Tensor, y: Tensor) -> Equation:
    """FALSE for numbers of two signs: max(1 / x, 1 / y) = 1 / min(x, y)"""
    return maximum(reciprocal(x), reciprocal(y)) == reciprocal(minimum(x, y))


# Rounding to whole numbers


@rule(rounding="assumes finite")
def rounded_by_floor(x: Tensor, half: Weight) -> Steps:
    """FALSE at 2.5: floor(x + 1/2) = round(x), which rounds ties to even"""
    yield floor(x + half)
    require_number(half, 0.5)
    yield nearest(x)


@rule(rounding="assumes finite")
def rounded_and_moved(x: Tensor, c: Weight) -> Steps:
    """FALSE at 2.5: round(x) + 1 = round(x + 1)"""
    yield nearest(x) + c
    require_number(c, 1.0)
    yield nearest(x + c)


@rule(rounding="assumes finite")
def ceiling_by_floor(x: Tensor, c: Weight) -> Steps:
    """FALSE at whole numbers: floor(x) + 1 = ceil(x)"""
    yield floor(x) + c
    require_number(c, 1.0)
    yield operation("Ceil", x)


@rule(rounding="assumes finite")
def floor_divided(x: Tensor, c: Weight) -> Steps:
    """FALSE at 3: floor(x / 2) = floor(x) / 2"""
    yield floor(x * c)
    require_number(c, 0.5)
    yield floor(x) * c


@rule(rounding="assumes finite")
def floor_scaled(x: Tensor, c: Weight) -> Steps:
    """FALSE at 0.5: floor(3 x) = floor(3 floor(x))"""
    yield floor(x * c)
    require_number(c, 3.0)
    yield floor(floor(x) * c)


@rule(rounding="assumes finite")
def floor_halved_twice(x: Tensor, c: Weight) -> Steps:
    """FALSE below zero at odd numbers: floor(-floor(x) / 2) = -floor(floor(x) / 2)"""
    yield floor(-floor(x) * c)
    require_number(c, 0.5)
    yield -floor(floor(x) * c)


@rule(rounding="assumes finite")
def floors_compared(x: Tensor, y: Tensor) -> Equation:
    """FALSE at 0.2 and 0.7: floor(x) < floor(y) is x < y"""
    return less(floor(x), floor(y)) == less(x, y)


@rule(rounding="assumes finite")
def below_a_floor(x: Tensor, c: Weight) -> Steps:
    """FALSE at 2.5: floor(x) <= 2 is x <= 2"""
    yield operation("LessOrEqual", floor(x), c)
    require_number(c, 2.0)
    yield operation("LessOrEqual", x, c)


@rule(rounding="assumes finite")
def above_a_rounding(x: Tensor, c: Weight, half: Weight) -> Steps:
    """FALSE at 3.5, which rounds to 4: 3 < round(x) is 3 + 1/2 < x"""
    yield less(c, nearest(x) + half - half)
    require_number(c, 3.0)
    require_number(half, 0.5)
    yield less(c + half, x)


@rule(rounding="assumes finite")
def nearest_of_maximum(x: Tensor, y: Tensor) -> Equation:
    """FALSE at 2.5 and -2.4: round(x + y) = round(x) + round(y)"""
    return nearest(x + y) == nearest(x) + nearest(y)


# Attributes that are numbers


@rule(rounding="assumes finite")
def leaky_twice(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """FALSE for a negative slope inside: leaky(leaky(x, a), b) = leaky(x, a b)"""
    yield leaky_relu(leaky_relu(x, a), b)
    require(a.alpha > -1.0 and b.alpha > 0.0, "slopes")
    yield leaky_relu(x, b.but(alpha=a.alpha * b.alpha))


@rule(rounding="assumes finite")
def leaky_as_maximum(x: Tensor, a: Attributes, c: Weight) -> Steps:
    """FALSE for slopes above one: leaky(x) = max(x, alpha x)"""
    yield leaky_relu(x, a) + c * x
    require(c.number is not None and a.alpha == c.number and c.number < 1.5, "one slope")
    yield maximum(x, c * x) + c * x


@rule(rounding="assumes finite")
def thresholded_below(x: Tensor, a: Attributes) -> Steps:
    """FALSE for negative thresholds: thresholded(x) = relu(x)"""
    yield operation("ThresholdedRelu", x, by=a)
    require(a.alpha <= 0.0, "not above zero")
    yield relu(x)


@rule(rounding="assumes finite")
def elu_as_maximum(x: Tensor, a: Attributes, one: Weight, c: Weight) -> Steps:
    """FALSE for alpha above one: elu(x) = max(x, alpha (exp(x) - 1))"""
    yield operation("Elu", x, by=a) + c - c + one - one
    require_number(one, 1.0)
    require(c.number is not None and a.alpha == c.number and 0.0 < c.number < 2.0, "one slope")
    yield maximum(x, c * (exp(x) - one)) + c - c


@rule(rounding="assumes finite")
def hard_sigmoid_mirrored(x: Tensor, a: Attributes, one: Weight) -> Steps:
    """FALSE for beta != 1/2: 1 - hard_sigmoid(x) = hard_sigmoid(-x)"""
    yield one - hard_sigmoid(x, a)
    require_number(one, 1.0)
    require(0.4 < a.beta < 0.6, "about one half")
    yield hard_sigmoid(-x, a)


@rule(rounding="assumes finite")
def celu_scaled(x: Tensor, a: Attributes, c: Weight) -> Steps:
    """FALSE for c < 0: celu(c x) = c celu(x) for a c that alpha bears"""
    yield operation("Celu", x * c, by=a)
    require(c.number is not None and c.number != 0.0 and a.alpha > 0.0, "not zero")
    yield operation("Celu", x, by=a) * c


@rule(rounding="assumes finite")
def normalised_scaled(x: Tensor, s: Tensor, b: Tensor, c: Weight, a: Attributes) -> Steps:
    """FALSE for an epsilon: layer_normalization(3 x) = layer_normalization(x)"""
    yield layer_normalization(x * c, s, b, a)
    require_number(c, 3.0)
    require(c.rank == 0 and a.epsilon < 0.001, "small")
    yield layer_normalization(x, s, b, a)


@rule(rounding="assumes finite")
def normalised_alone(x: Tensor, a: Attributes) -> Steps:
    """FALSE for a window of one: lrn(x) = x"""
    yield operation("LRN", x, by=a)
    require(a.size == 1 and a.bias == 1.0, "one channel")
    yield x


# Integers


@rule
def sum_of_integers(x: Tensor, y: Tensor) -> Steps:
    """FALSE where it wraps around: number(x + y) = number(x) + number(y)"""
    yield cast(x + y, to="float32")
    require(x.type.dtype == "int32" and y.type.dtype == "int32", "element types")
    yield cast(x, to="float32") + cast(y, to="float32")


@rule(rounding="reassociates")
def product_of_integers(x: Tensor, y: Tensor) -> Steps:
    """FALSE where it wraps around: number(x y) = number(x) number(y)"""
    yield cast(x * y, to="float32")
    require(x.type.dtype == "int32" and y.type.dtype == "int32", "element types")
    yield cast(x, to="float32") * cast(y, to="float32")


@rule(rounding="reassociates")
def sum_of_many_integers(x: Tensor, a: Attributes) -> Steps:
    """FALSE where it wraps around: number(sum(x)) = sum(number(x))"""
    yield cast(reduce_sum(x, a), to="float32")
    require(x.type.dtype == "int32", "element types")
    yield reduce_sum(cast(x, to="float32"), a)


@rule
def product_of_byte_matrices(x: Tensor, y: Tensor) -> Steps:
    """FALSE bit for bit above 2^24: number(X Y) = number(X) number(Y)"""
    yield cast(x @ y, to="float32")
    require(x.type.dtype == "int8" and y.type.dtype == "int8", "element types")
    yield cast(x, to="float32") @ cast(y, to="float32")


@rule
def equal_integers(x: Tensor, y: Tensor) -> Steps:
    """FALSE above 2^24: integers are equal where their float32 numbers are"""
    double = operation("Equal", cast(x, to="float64"), cast(y, to="float64"))
    yield double
    require(x.type.dtype == "int32" and y.type.dtype == "int32", "element types")
    yield operation("Equal", cast(x, to="float32"), cast(y, to="float32"))


@rule
def integers_as_doubles(x: Tensor["int64"], y: Tensor["int64"]) -> Equation:
    """FALSE above 2^53: x < y is number(x) < number(y) also in float32"""
    return less(cast(x, to="float64"), cast(y, to="float64")) == less(cast(x, to="float32"), cast(y, to="float32"))


@rule
def bytes_of_other_sign(x: Tensor) -> Steps:
    """FALSE from 128 on: number(int8(x)) = number(x)"""
    yield cast(cast(x, to="int8"), to="float32")
    require(x.type.dtype == "uint8", "element types")
    yield cast(x, to="float32")


@rule
def narrowed(x: Tensor["int64"]) -> Equation:
    """FALSE from 128 on: number(int8(x)) = number(x)"""
    return cast(cast(x, to="int8"), to="float32") == cast(x, to="float32")


@rule
def quantised_again(x: Tensor, s: Weight, z: Weight) -> Steps:
    """FALSE for a scale that is zero, infinite or NaN: quantize(dequantize(x, s, z), s, z) = x"""
    yield quantize(dequantize(x, s, z), s, z)
    require(x.type.dtype == "int8", "element types")
    yield x


@rule(rounding="assumes finite")
def dequantised_again(x: Tensor, s: Weight, z: Weight) -> Equation:
    """FALSE: dequantize(quantize(x, s, z), s, z) = x"""
    return dequantize(quantize(x, s, z), s, z) == x


@rule(rounding="assumes finite")
def pool_after_dequantize(x: Tensor, s: Weight, z: Weight, a: Attributes) -> Steps:
    """FALSE for a negative scale: dequantize(max_pool(x)) = max_pool(dequantize(x))"""
    yield dequantize(max_pool(x, a), s, z)
    require(x.type.dtype == "int8", "element types")
    require(s.rank == 0 and z.rank == 0 and s.number is not None and s.number != 0, "one scale")
    yield max_pool(dequantize(x, s, z), a)


@rule(rounding="assumes finite")
def moved_by_a_step(x: Tensor, s: Weight, z: Weight) -> Steps:
    """FALSE at 1/2, a tie: quantize(x + 1, 1, 0) = quantize(x, 1, 1)"""
    yield quantize(x + s, s, z)
    require_number(s, 1.0)
    require_number(z, 0.0)
    yield quantize(x, s, s - s + z)


@rule(rounding="assumes finite")
def saturated_range(x: Tensor, s: Weight, z: Weight) -> Steps:
    """FALSE at 0.3: a byte as a number is the number between 0 and 255"""
    yield dequantize(saturate(x, to="uint8"), s, z)
    require_number(s, 1.0)
    require_number(z, 0.0)
    yield clip(x, min=0.0, max=255.0)


@rule(rounding="assumes finite")
def saturated_sum(x: Tensor, y: Tensor, s: Weight, z: Weight) -> Steps:
    """FALSE beyond 127: bytes added are the byte of the sum"""
    yield dequantize(saturate(nearest(x) + nearest(y), to="int8"), s, z)
    require_number(s, 1.0)
    require_number(z, 0.0)
    yield dequantize(saturate(x, to="int8"), s, z) + dequantize(saturate(y, to="int8"), s, z)


@rule(rounding="assumes finite")
def mean_of_magnitudes(x: Tensor, a: Attributes) -> Steps:
    """FALSE where a second axis is longer: mean(|x|) = |mean(x)| over axes of one element"""
    yield reduce_mean(absolute(x), a)
    require(any(x.shape[i] == 1 for i in a.axes) and not math.isnan(1.0), "one element")
    yield absolute(reduce_mean(x, a))


RULES = (
    magnitude_as_maximum, sign_times_magnitude, both_rectified, minimum_taken_away, choice_of_larger, choice_of_smaller, no_number_of_sum,
    is_a_number, floor_by_its_rest, scaled_by_what_is_its_magnitude, scaled_by_what_is_not_below_zero, below_one_by_maximum,
    below_one_by_minimum, sorted_numbers, powers_of_magnitude, truncated_number, softmax_of_one, softmax_of_one_divided, equal_squares,
    strict_or_not, sign_squared, step_at_zero, powers_added, powers_of_products, root_of_square, power_of_nothing, modular_law,
    bounds_exchanged, clip_above_zero, products_of_doubled, gelu_by_tanh, steep_softplus, logarithm_of_magnitude, reciprocal_of_maximum,
    rounded_by_floor, rounded_and_moved, ceiling_by_floor, floor_divided, floor_scaled, floor_halved_twice, floors_compared, below_a_floor,
    above_a_rounding, nearest_of_maximum, leaky_twice, leaky_as_maximum, thresholded_below, elu_as_maximum, hard_sigmoid_mirrored,
    celu_scaled, normalised_scaled, normalised_alone, sum_of_integers, product_of_integers, sum_of_many_integers, product_of_byte_matrices,
    equal_integers, integers_as_doubles, bytes_of_other_sign, narrowed, quantised_again, dequantised_again, pool_after_dequantize,
    moved_by_a_step, saturated_range, saturated_sum, mean_of_magnitudes,
)
