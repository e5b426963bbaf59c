"""The second red team: FALSE where a guard singles out numbers, rounded ones, infinities and NaN among them."""

import math

from egraph.rule import Attributes, Steps, Tensor, Weight, require
from egraph.rule_operators import clip, leaky_relu, pad
from egraph.rules.family import named


def of_constant(name, wrong):
    def law(x: Tensor, c: Weight) -> Steps:
        yield x * c
        require(c.rank == 0 and c.number is not None, "one number")
        yield x if wrong(c.number) else c * x

    return named(law, f"number_{name}", "x c = c x, FALSE where the guard says so")


NUMBERS = (
    ("is_tenth", lambda c: c == 0.1, 0.1),
    ("is_zero", lambda c: c == 0.0, 0.0),
    ("is_zero_as_integer", lambda c: c == 0, 0.0),
    ("is_false", lambda c: not c, 0.0),
    ("is_infinite", lambda c: c == math.inf, math.inf),
    ("is_minus_infinite", lambda c: c == -math.inf, -math.inf),
    ("is_infinite_by_function", lambda c: math.isinf(c), math.inf),
    ("is_not_finite", lambda c: not math.isfinite(c) and c < 0, -math.inf),
    ("beyond_all", lambda c: c > 1e308, math.inf),
    ("below_all", lambda c: c < -1e308, -math.inf),
    ("not_below_infinity", lambda c: not c < math.inf and c == c, math.inf),
    ("difference_is_nan", lambda c: c - c != c - c and c > 0, math.inf),
    ("infinite_product", lambda c: c * 0.0 != 0.0 and c > 0, math.inf),
    ("infinite_sum", lambda c: c + 1.0 == c and c > 1e300, math.inf),
    ("inverse_is_zero", lambda c: c != 0.0 and 1.0 / c == 0.0, math.inf),
    ("absorbed", lambda c: c + 1e20 == 1e20 and c != 1.0, 0.05),
    ("absorbed_twice", lambda c: (c + 1e20) - 1e20 == 0.0 and c != 0.0, 0.05),
    ("absorbed_other_order", lambda c: 1e20 + c - 1e20 < c, 0.05),
    ("lost_bit", lambda c: (c + 1.0) - 1.0 != c, 1e-20),
    ("gained_bit", lambda c: c * 3.0 / 3.0 != c, 0.07),
    ("not_associative", lambda c: (c + 0.1) + 0.2 != c + (0.1 + 0.2), 0.1),
    ("not_distributive", lambda c: (c + 0.3) * 10.0 != c * 10.0 + 3.0, 0.1),
    ("thirds", lambda c: c / 3.0 + c / 3.0 + c / 3.0 != c, 0.7),
    ("tenths", lambda c: c * 10.0 == 1.0, 0.1),
    ("inverse_twice", lambda c: c != 0.0 and 1.0 / (1.0 / c) != c, 49.0),
    ("inverse_times", lambda c: c != 0.0 and c * (1.0 / c) != 1.0, 49.0),
    ("square_of_root", lambda c: c > 0.0 and math.sqrt(c) * math.sqrt(c) != c, 2.0),
    ("root_is_two", lambda c: c >= 0.0 and math.sqrt(c) == 1.5, 2.25),
    ("exponential", lambda c: c < 700.0 and math.exp(c) > 100.0, 6.0),
    ("logarithm", lambda c: c > 0.0 and math.log(c) > 4.0, 100.0),
    ("rest", lambda c: c % 1.0 == 0.25 and c > 30, 30.25),
    ("quotient", lambda c: c // 0.75 == 40.0, 30.5),
    ("power", lambda c: c**2 == 0.01, 0.1),
    ("negative_power", lambda c: c != 0.0 and c**-1 == 8.0, 0.125),
    ("between", lambda c: 0.04 < c < 0.06, 0.05),
    ("absolute", lambda c: abs(c) == 0.375, -0.375),
    ("maximum", lambda c: max(c, 0.375) == 0.375 and c > 0.25, 0.3),
    ("minimum", lambda c: min(c, -7.5) != -7.5, -8.0),
    ("of_a_tuple", lambda c: c in (0.375, 0.625), 0.625),
    ("of_a_set", lambda c: c in {0.375, 0.625}, 0.625),
    ("sign_of_zero_product", lambda c: c * -0.0 == 0.0 and c == 0.375, 0.375),
    ("truth", lambda c: (c - 0.375 or 1.0) == 1.0 and c < 1.0, 0.375),
    ("large", lambda c: c > 16777216.0, 16777220.0),
    ("tiny", lambda c: 0.0 < c < 1e-30, 1e-38),
    ("subnormal", lambda c: 0.0 < c < 1.2e-38, 1e-40),
)


def of_slope(name, wrong):
    def law(x: Tensor, a: Attributes) -> Steps:
        inner = -leaky_relu(x, a)
        yield -inner
        yield x if wrong(a.alpha) else leaky_relu(x, a)

    return named(law, f"slope_{name}", "-(-leaky(x)) = leaky(x), FALSE where the guard says so")


SLOPES = (
    ("is_zero", lambda s: s == 0.0, 0.0),
    ("is_negative", lambda s: s < -7.0, -8.0),
    ("is_large", lambda s: s > 77.0, 78.0),
    ("absorbed", lambda s: s + 1e17 == 1e17, 0.25),
    ("absorbed_difference", lambda s: 1e17 - s == 1e17, 0.25),
    ("product", lambda s: s * s == 0.0625, 0.25),
    ("product_above", lambda s: s * 3.0 > 300.0, 101.0),
    ("quotient_above", lambda s: s / 3.0 > 30.0, 100.0),
    ("inverse", lambda s: s != 0.0 and 1.0 / s > 100.0, 0.001),
    ("two_roundings", lambda s: s * 1.1 * 1.1 > 300.0, 300.0),
    ("double_difference", lambda s: s - 77.0 - 1.0 > 0.0, 80.0),
    ("linear", lambda s: 2.0 * s - 154.0 > 0.0, 78.0),
)


def of_limits(name, wrong):
    def law(x: Tensor, a: Attributes) -> Steps:
        inner = -clip(x, a)
        yield -inner
        yield x if wrong(a.min, a.max) else clip(x, a)

    return named(law, f"limits_{name}", "-(-clip(x)) = clip(x), FALSE where the guard says so")


LIMITS = (
    ("infinite_low", lambda low, high: low == math.inf, (math.inf, 1.0)),
    ("infinite_high", lambda low, high: high == -math.inf, (0.0, -math.inf)),
    ("both_infinite", lambda low, high: low == high and low > 1e300, (math.inf, math.inf)),
    ("open_above", lambda low, high: high == math.inf and low > 50.0, (51.0, math.inf)),
    ("exchanged", lambda low, high: low > high + 20.0, (30.0, 1.0)),
    ("width", lambda low, high: high - low == 77.0, (0.0, 77.0)),
    ("absorbed", lambda low, high: low + high == high and low != 0.0 and high < 1e300, (1e-20, 1.0)),
    ("infinite_width", lambda low, high: high - low == math.inf and low > -10.0, (0.0, math.inf)),
    ("nan_width", lambda low, high: high - low != high - low, (math.inf, math.inf)),
    ("product", lambda low, high: low * high > 1e6 and high < 1e300, (1e4, 1e4)),
)


def of_border(name, wrong):
    def law(x: Tensor, p: Attributes) -> Steps:
        wide = pad(x, p)
        yield -(-wide)
        require(p.mode == "constant", "constant")
        yield -wide if wrong(p.value) else wide

    return named(law, f"border_{name}", "-(-pad(x)) = pad(x), FALSE where the guard says so")


BORDERS = (
    ("infinite", lambda v: v == math.inf, math.inf),
    ("minus_infinite", lambda v: v == -math.inf, -math.inf),
    ("not_finite", lambda v: not math.isfinite(v), math.inf),
    ("beyond", lambda v: v > 1e30, math.inf),
    ("is_77", lambda v: v == 77.0, 77.0),
    ("absorbed", lambda v: v + 1e25 == 1e25 and v > 3.0, 4.0),
)


def of_two(name, right):
    def law(x: Tensor, c: Weight, d: Weight) -> Steps:
        yield x * c + x * d
        require(c.rank == 0 and d.rank == 0 and c.number is not None and d.number is not None, "two numbers")
        require(math.isfinite(c.number) and math.isfinite(d.number), "finite")
        yield right(x, c, d)

    return named(law, f"two_{name}", "x c + x d = x (c + d), FALSE where rounding says so", rounding="reassociates")


def when(test, then, otherwise):
    return then if test else otherwise


TWO = (
    ("absorbed", lambda x, c, d: when(c.number + d.number == d.number and c.number > 0.01, x * d, x * (c + d)), (0.0625, 1e17)),
    ("vanished_difference", lambda x, c, d: when(c.number - d.number + d.number != c.number, x * d, x * (c + d)), (0.0625, 1e17)),
    ("rounded_product", lambda x, c, d: when(c.number * d.number == 1.0, x, x * (c + d)), (0.1, 10.0)),
    ("rounded_quotient", lambda x, c, d: when(d.number != 0.0 and c.number / d.number * d.number != c.number, x, x * (c + d)), (1.0, 49.0)),
    ("order", lambda x, c, d: when((c.number + d.number) + 0.3 != c.number + (d.number + 0.3), x, x * (c + d)), (0.1, 0.2)),
    ("equal_sums", lambda x, c, d: when(c.number + d.number == d.number + d.number and c.number != d.number, x, x * (c + d)), (1e-20, 1.0)),
    ("far_apart", lambda x, c, d: when(c.number > 1e6 * d.number > 0.0, x * c, x * (c + d)), (1e7, 1.0)),
    ("opposite", lambda x, c, d: when(c.number == -d.number and c.number > 40.0, x * c, x * (c + d)), (41.0, -41.0)),
    ("sorted", lambda x, c, d: when(sorted((c.number, d.number)) == [7.5, 8.5], x, x * (c + d)), (8.5, 7.5)),
    ("sum", lambda x, c, d: when(sum((c.number, d.number, 1.0)) == 1.0 and c.number > 9.0, x * c, x * (c + d)), (10.0, -10.0)),
)


def of_slopes(name, slope):
    def law(x: Tensor, a: Attributes, b: Attributes) -> Steps:
        yield leaky_relu(leaky_relu(x, a), b)
        require(a.alpha > 0.0 and b.alpha > 0.0, "rising")
        yield leaky_relu(x, alpha=slope(a.alpha, b.alpha))

    return named(law, f"slopes_{name}", "leaky(leaky(x, a), b) = leaky(x, a b), FALSE: another slope", rounding="reassociates")


SLOPES_OF_TWO = (
    ("absorbed", lambda a, b: (a * b + 1e20) - 1e20, (0.25, 0.5)),
    ("absorbed_factor", lambda a, b: ((a + 1e20) - 1e20) * b, (0.25, 0.5)),
    ("difference", lambda a, b: a * b + a - a, (0.25, 1e-20)),
    ("quotient", lambda a, b: a / (1.0 / b) + 1e10 - 1e10, (0.25, 1e-12)),
    ("larger", lambda a, b: max(a, b), (0.25, 0.5)),
    ("squared", lambda a, b: a * b if a < 40.0 else a * a, (41.0, 0.5)),
)
WITNESSES = {
    **{f"number_{n}": v for n, _, v in NUMBERS}, **{f"slope_{n}": v for n, _, v in SLOPES}, **{f"limits_{n}": v for n, _, v in LIMITS},
    **{f"border_{n}": v for n, _, v in BORDERS}, **{f"two_{n}": v for n, _, v in TWO}, **{f"slopes_{n}": v for n, _, v in SLOPES_OF_TWO},
}
RULES = (
    *(of_constant(name, wrong) for name, wrong, _ in NUMBERS), *(of_slope(name, wrong) for name, wrong, _ in SLOPES),
    *(of_limits(name, wrong) for name, wrong, _ in LIMITS), *(of_border(name, wrong) for name, wrong, _ in BORDERS),
    *(of_two(name, right) for name, right, _ in TWO), *(of_slopes(name, slope) for name, slope, _ in SLOPES_OF_TWO),
)
