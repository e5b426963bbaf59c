"""The second red team: equations that hold on the real numbers, or nearly. FALSE in the rounding class that they state."""

from egraph.rule import Attributes, Equation, Steps, Tensor, Weight, operation, require, require_number, rule
from egraph.rule_operators import (
    absolute, clip, exp, leaky_relu, log, maximum, minimum, power, reciprocal, reduce_max, reduce_mean, reduce_sum, relu, sigmoid,
    softmax, softplus, sqrt, tanh,
)


@rule
def exact_plus_zero(x: Tensor, z: Weight) -> Steps:
    """FALSE bit for bit at x = -0.0: x + 0 = x"""
    yield x + z
    require_number(z, 0.0)
    yield x


@rule
def exact_zero_minus(x: Tensor, z: Weight) -> Steps:
    """FALSE bit for bit at x = 0: 0 - x = -x"""
    yield z - x
    require_number(z, 0.0)
    yield -x


@rule
def exact_sevenfold(x: Tensor, c: Weight) -> Steps:
    """FALSE: 7 x = (x + x + x) + (x + x + x) + x rounds three times"""
    yield x * c
    require_number(c, 7.0)
    yield ((x + x + x) + (x + x + x)) + x


@rule
def exact_square_difference(x: Tensor, y: Tensor) -> Equation:
    """FALSE: (x + y) (x - y) = x x - y y rounds elsewhere"""
    return (x + y) * (x - y) == x * x - y * y


@rule
def exact_third(x: Tensor, c: Weight) -> Steps:
    """FALSE: x / 3 = x (1 / 3) rounds twice"""
    yield x / c
    require_number(c, 3.0)
    yield x * reciprocal(c)


@rule
def exact_half_of_sum(x: Tensor, y: Tensor, c: Weight) -> Steps:
    """FALSE: (x + y) / 2 = x / 2 + y / 2, not for subnormal numbers, nor where x + y overflows"""
    yield (x + y) * c
    require_number(c, 0.5)
    yield x * c + y * c


@rule
def exact_relu_as_mean(x: Tensor) -> Steps:
    """FALSE: relu(x) = (x + |x|) / 2, not at -infinity, nor for subnormal and huge numbers"""
    yield relu(x)
    yield (x + absolute(x)) * exp(x - x) / (exp(x - x) + exp(x - x))


@rule
def exact_magnitude(x: Tensor) -> Equation:
    """FALSE: sqrt(x x) = |x| rounds"""
    return sqrt(x * x) == absolute(x)


@rule
def exact_nothing(x: Tensor, z: Weight) -> Steps:
    """FALSE bit for bit below zero: 0 x = x - x"""
    yield x * z
    require_number(z, 0.0)
    yield x - x


@rule
def exact_added_and_taken(x: Tensor, y: Tensor) -> Equation:
    """FALSE: ((x + y) - y) y = x y rounds"""
    return ((x + y) - y) * y == x * y


@rule
def exact_exponential(x: Tensor, y: Tensor) -> Equation:
    """FALSE: exp(x) exp(y) = exp(x + y) rounds"""
    return exp(x) * exp(y) == exp(x + y)


@rule
def exact_distributed(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """FALSE: x z + y z = (x + y) z rounds"""
    return x * z + y * z == (x + y) * z


@rule
def exact_square_of_sum(x: Tensor, y: Tensor) -> Equation:
    """FALSE: (x + y)^2 = x^2 + 2 x y + y^2 rounds"""
    return (x + y) * (x + y) == (x * x + x * y) + (x * y + y * y)


@rule
def exact_reciprocal_twice(x: Tensor, y: Tensor) -> Equation:
    """FALSE: y / (1 / x) = y x rounds"""
    return y / reciprocal(x) == y * x


@rule
def exact_reassociated_products(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """FALSE: (x y) z = x (y z) rounds"""
    return (x * y) * z == x * (y * z)


@rule
def exact_sums_apart(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE: sum(x) + sum(y) = sum(x + y) rounds elsewhere"""
    yield reduce_sum(x, a) + reduce_sum(y, a)
    require(x.shape == y.shape, "equal shapes")
    yield reduce_sum(x + y, a)


@rule
def exact_mean_of_scaled(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """FALSE: mean(3 x) = 3 mean(x) rounds elsewhere"""
    yield reduce_mean(x * c, a)
    require_number(c, 3.0)
    require(c.rank == 0, "a number")
    yield reduce_mean(x, a) * c


@rule
def exact_associated_matmul(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """FALSE: (X Y) Z = X (Y Z) rounds elsewhere"""
    return (x @ y) @ z == x @ (y @ z)


@rule(rounding="reassociates")
def r_power_of_logarithm(x: Tensor) -> Equation:
    """FALSE below zero, where the left side is NaN: exp(log(x)) = x"""
    return exp(log(x)) == x


@rule(rounding="reassociates")
def r_sigmoid_as_quotient(x: Tensor) -> Equation:
    """FALSE at infinity: sigmoid(x) = exp(x) / (exp(x) + exp(x - x)) is infinity by infinity"""
    return sigmoid(x) == exp(x) / (exp(x) + exp(x - x))


@rule(rounding="reassociates")
def r_tanh_as_quotient(x: Tensor) -> Equation:
    """FALSE at infinity: tanh(x) = (exp(x) - exp(-x)) / (exp(x) + exp(-x))"""
    return tanh(x) == (exp(x) - exp(-x)) / (exp(x) + exp(-x))


@rule(rounding="reassociates")
def r_softplus_mirrored(x: Tensor) -> Equation:
    """FALSE at -infinity: softplus(x) = x + softplus(-x) is -infinity + infinity"""
    return softplus(x) == x + softplus(-x)


@rule(rounding="reassociates")
def r_magnitude_divided(x: Tensor) -> Equation:
    """FALSE at zero: |x| = x x / |x|"""
    return absolute(x) == x * x / absolute(x)


@rule(rounding="reassociates")
def r_sign_divided(x: Tensor) -> Equation:
    """FALSE at zero: sign(x) = x / |x|"""
    return operation("Sign", x) == x / absolute(x)


@rule(rounding="reassociates")
def r_choice_as_sum(x: Tensor, y: Tensor) -> Equation:
    """FALSE at infinities: max(x, y) = y + relu(x - y)"""
    return maximum(x, y) == y + relu(x - y)


@rule(rounding="reassociates")
def r_relu_of_difference(x: Tensor, y: Tensor) -> Equation:
    """FALSE at x = -infinity, y = infinity: max(x, y) - y = relu(x - y)"""
    return maximum(x, y) - y == relu(x - y)


@rule(rounding="reassociates")
def r_logarithm_of_product(x: Tensor, y: Tensor) -> Equation:
    """FALSE where both are negative: log(x y) = log(x) + log(y)"""
    return log(x * y) == log(x) + log(y)


@rule(rounding="reassociates")
def r_divided_again(x: Tensor, y: Tensor) -> Equation:
    """FALSE at y = 0 and at infinities: (x y) / y + y = x + y"""
    return (x * y) / y + y == x + y


@rule(rounding="reassociates")
def r_softmax_unshifted(x: Tensor, a: Attributes) -> Steps:
    """FALSE at infinity: softmax(x) = exp(x) / sum(exp(x)) is 0 beside NaN"""
    yield softmax(x, a)
    yield exp(x) / reduce_sum(exp(x), axes=(a.axis,))


@rule(rounding="reassociates")
def r_softmax_shifted(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE at y = infinity: softmax(x + y) = softmax(x), y constant along the axis"""
    yield softmax(x + y, a)
    require(y.rank == x.rank and y.shape[a.axis] == 1, "y is constant along the axis")
    yield softmax(x, a)


@rule(rounding="reassociates")
def r_zeroed_sum(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE at infinity: sum(x - x) + y = y"""
    yield reduce_sum(x - x, a) + y
    require(y.rank == x.rank and all(y.shape[i] == (1 if i in a.axes else x.shape[i]) for i in range(x.rank)), "the shape of the sum")
    yield y


@rule(rounding="reassociates")
def r_power_two(x: Tensor, two: Weight) -> Steps:
    """FALSE below zero: x^2 = exp(2 log(x))"""
    yield power(x, two)
    require_number(two, 2.0)
    yield exp(two * log(x))


@rule(rounding="reassociates")
def r_scaled_by_any(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """FALSE at c = 0, x = infinity: max(x c) = max(x) c"""
    yield reduce_max(x * c, a)
    require(c.rank == 0 and c.number is not None and c.number >= 0.0, "not negative")
    yield reduce_max(x, a) * c


@rule(rounding="reassociates")
def r_compared_differences(x: Tensor, y: Tensor) -> Equation:
    """FALSE at equal infinities: x <= y is x - y <= y - y"""
    return operation("LessOrEqual", x, y) == operation("LessOrEqual", x - y, y - y)


@rule(rounding="reassociates")
def r_less_is_not_more(x: Tensor, y: Tensor) -> Equation:
    """FALSE at NaN: x <= y is not (y < x)"""
    return operation("LessOrEqual", x, y) == operation("Not", operation("Less", y, x))


@rule(rounding="assumes finite")
def f_multiplied_and_divided(x: Tensor, y: Tensor) -> Equation:
    """FALSE at y = 0: x + y = (x y) / y + y"""
    return x + y == (x * y) / y + y


@rule(rounding="assumes finite")
def f_roots(x: Tensor) -> Equation:
    """FALSE below zero: |x| = sqrt(x) sqrt(x)"""
    return absolute(x) == sqrt(x) * sqrt(x)


@rule(rounding="assumes finite")
def f_product_by_logarithms(x: Tensor, y: Tensor) -> Equation:
    """FALSE below zero: x y = exp(log(x) + log(y))"""
    return x * y == exp(log(x) + log(y))


@rule(rounding="assumes finite")
def f_quotients_compared(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """FALSE for z < 0: max(x / z, y / z) = max(x, y) / z"""
    return maximum(x / z, y / z) == maximum(x, y) / z


@rule(rounding="assumes finite")
def f_mean_in_exponent(x: Tensor, a: Attributes) -> Equation:
    """FALSE: mean(exp(x)) = exp(mean(x))"""
    return reduce_mean(exp(x), a) == exp(reduce_mean(x, a))


@rule(rounding="assumes finite")
def f_clip_moved(x: Tensor, c: Weight, a: Attributes) -> Steps:
    """FALSE for c != 0: clip(x + c) = clip(x) + c"""
    yield clip(x + c, a)
    require(c.number is not None and (c.number == 0.0 or c.number > 60.0), "one number")
    yield clip(x, a) + c


@rule(rounding="assumes finite")
def f_odd_root(x: Tensor, c: Weight) -> Steps:
    """FALSE below zero: x^3 = |x|^3"""
    yield power(x, c)
    require_number(c, 3.0)
    yield power(absolute(x), c)


@rule(rounding="assumes finite")
def f_tanh_doubled(x: Tensor, two: Weight) -> Steps:
    """FALSE: tanh(2 x) = 2 tanh(x)"""
    yield tanh(x * two)
    require_number(two, 2.0)
    yield tanh(x) * two


@rule(rounding="assumes finite")
def f_relu_of_product(x: Tensor, y: Tensor) -> Equation:
    """FALSE where both are negative: relu(x y) = relu(x) relu(y)"""
    return relu(x * y) == relu(x) * relu(y)


@rule(rounding="assumes finite")
def f_minimum_of_sums(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """FALSE: min(x + z, y) = min(x, y) + z"""
    return minimum(x + z, y) == minimum(x, y) + z


@rule(rounding="assumes finite")
def f_leaky_of_negative(x: Tensor, a: Attributes) -> Steps:
    """FALSE for alpha != 1: leaky(-x) = -leaky(x)"""
    yield leaky_relu(-x, a)
    require(a.alpha > 0.5 or a.alpha < 0.0, "steep")
    yield -leaky_relu(x, a)


@rule(rounding="assumes finite")
def f_maximum_of_maxima(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    """FALSE: max(x + y) = max(x) + max(y)"""
    yield reduce_max(x + y, a)
    require(x.shape == y.shape, "equal shapes")
    yield reduce_max(x, a) + reduce_max(y, a)


RULES = (
    exact_plus_zero, exact_zero_minus, exact_sevenfold, exact_square_difference, exact_third, exact_half_of_sum, exact_relu_as_mean,
    exact_magnitude, exact_nothing, exact_added_and_taken, exact_exponential, exact_distributed, exact_square_of_sum, exact_reciprocal_twice,
    exact_reassociated_products, exact_sums_apart, exact_mean_of_scaled, exact_associated_matmul, r_power_of_logarithm, r_sigmoid_as_quotient,
    r_tanh_as_quotient, r_softplus_mirrored, r_magnitude_divided, r_sign_divided, r_choice_as_sum, r_relu_of_difference, r_logarithm_of_product,
    r_divided_again, r_softmax_unshifted, r_softmax_shifted, r_zeroed_sum, r_power_two, r_scaled_by_any, r_compared_differences,
    r_less_is_not_more, f_multiplied_and_divided, f_roots, f_product_by_logarithms, f_quotients_compared, f_mean_in_exponent,
    f_clip_moved, f_odd_root, f_tanh_doubled, f_relu_of_product, f_minimum_of_sums, f_leaky_of_negative, f_maximum_of_maxima,
)
