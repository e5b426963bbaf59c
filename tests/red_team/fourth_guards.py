"""The fourth red team: FALSE where quotients, rests, texts of sizes and ranks single out shapes, of vectors, matrices and of numbers without axes."""

import math
from functools import reduce
from itertools import pairwise

from egraph.rule import Attributes, Steps, Tensor, Weight, operation, require, rule
from egraph.rule_operators import absolute, concat, expand, gather, reduce_max, reduce_mean, reduce_sum, relu, reshape, slice_, softmax, transpose
from egraph.rules.family import named


def turned(name, wrong):
    def law(x: Tensor, y: Tensor) -> Steps:
        yield x - y
        require(x.rank == 1 and x.shape == y.shape, "vectors")
        yield y - x if wrong(x.shape[0]) else -(y - x)

    return named(law, f"quotient_{name}", "x - y = -(y - x), FALSE where the guard says so")


def gcd_by_rests(a, b):
    while b > 0:
        a, b = b, a % b
    return a


QUOTIENTS = (
    ("floor_is_no_ceiling", lambda n: n > 300 and n // 7 != -(-n // 7), 302),
    ("ceiling_beyond", lambda n: -(-n // 64) * 64 - n == 63 and n > 200, 257),
    ("negative_by_negative", lambda n: -n // -64 == 16 and n % 64 == 1, 1025),
    ("rest_of_negative_by_negative", lambda n: -n % -89 == -88, 88),
    ("truncation_is_no_floor", lambda n: n > 200 and (5 - n) // 16 * 16 != 5 - n and (5 - n) // 16 == -((n - 5) // 16) - 1 and n % 97 == 0, 291),
    ("quotients_of_a_sum", lambda n: n > 100 and n // 2 + n // 3 + n // 6 == n - 2 and n % 6 == 5, 101),
    ("quotient_of_a_product", lambda n: n > 60 and n * 3 // 7 - n // 7 * 3 == 2, 61),
    ("quotients_in_turn", lambda n: n // 3 // 5 // 7 == n // 105 and n // 105 == 9, 945),
    ("quotients_in_turn_of_negative", lambda n: -n // 3 // 5 == -60 and -n // 3 == -296, 887),
    ("rest_of_rest", lambda n: n % 60 % 7 == 3 and n % 60 > 57, 59),
    ("rests_of_neighbours", lambda n: n % 31 + (n + 1) % 31 == 30 and n > 100, 123),
    ("rest_of_a_square", lambda n: n * n % 16 == 9 and n % 8 == 5 and n > 200, 205),
    ("rest_of_a_power", lambda n: n**5 % 11 == 10 and n > 200 and n % 11 == 2, 211),
    ("rest_by_itself", lambda n: (n + 7) % n == 7 and n > 100, 101),
    ("quotient_by_a_quotient", lambda n: n // (n // 16 + 1) == 15 and n > 230, 240),
    ("rest_by_a_rest", lambda n: n % (n % 10 + 1) == 9 and n > 100, 109),
    ("quotient_of_what_is_left", lambda n: (n - n % 25) // 25 == 17, 425),
    ("quotient_by_a_maximum", lambda n: 1000 // max(n, 125) == 7, 126),
    ("quotient_of_a_minimum", lambda n: min(n, 150) // 50 == 3, 150),
    ("rest_is_one_of", lambda n: n % 77 in (75, 76), 75),
    ("rests_by_all", lambda n: all(n % m == m - 1 for m in (3, 4, 5, 7)), 419),
    ("quotients_by_any", lambda n: any(n // m == 37 and n % m == m - 1 for m in (4, 5, 6)), 151),
    ("number_of_blocks", lambda n: len(range(0, n, 32)) == 9 if n < 400 else False, 257),
    ("chinese_rests", lambda n: (n % 9, n % 10) == (8, 9), 89),
    ("rest_as_truth", lambda n: n > 130 and not n % 131, 131),
    ("signs_of_a_difference", lambda n: (n - 200 > 0) - (n - 200 < 0) == 0, 200),
    ("truths_as_exponents", lambda n: (n // 128 > 0) * 2 == 2, 128),
    ("parabola", lambda n: (n - 128) * (128 - n) >= 0, 128),
    ("half_of_a_product", lambda n: n * (n - 1) // 2 == 7140, 120),
    ("square_between", lambda n: 14400 <= n * n < 14641 and n * n % 2 == 0, 120),
    ("greatest_divisor", lambda n: math.gcd(n, 128) == 128, 128),
    ("divisor_by_hand", lambda n: n < 400 and gcd_by_rests(n, 60) == 60 and n > 100, 120),
    ("powers_of_two", lambda n: n > 100 and n in tuple(2**k for k in range(11)), 128),
    ("reduced_rests", lambda n: reduce(lambda a, m: a * (n % m), (2, 3, 5, 7, 11), 1) == 480, 2309),
    ("steps_between", lambda n: all(b - a > 60 for a, b in pairwise((0, n // 3, n // 3 * 2 + 1))), 183),
    ("balanced", lambda n: n > 150 and abs(n // 2 * 2 - n) + abs(n // 3 * 3 - n) == 3, 155),
    ("nearest_multiple", lambda n: (n + 32) // 64 * 64 - n == 32 and n > 90, 96),
    ("rest_of_the_opposite", lambda n: n % 48 + -n % 48 == 0 and n > 90, 96),
    ("distance", lambda n: max(n - 150, 150 - n) <= 1, 150),
    ("middle_of_three", lambda n: sorted((100, n, 200))[1] == n, 150),
)  # fmt: skip
"""A name, where the sides differ, and a size where they do."""


def blocks(name, right):
    """x[:] of a matrix in two parts: FALSE for some sizes."""

    def law(x: Tensor, s: Attributes) -> Steps:
        yield reshape(x, s)
        require(x.rank == 2 and len(s.shape) == 2, "matrices")
        yield right(x, s.shape)

    return named(law, f"blocks_{name}", "reshape(x) is another order of the same elements, FALSE")


def turned_where(wrong):
    def right(x, shape):
        require(shape == x.shape, "as it is")
        m, n = shape
        return transpose(reshape(x, shape=(n, m)), perm=(1, 0)) if wrong(m, n) else x

    return right


BLOCKS = (
    ("by_turns", turned_where(lambda m, n: m * n > 144)),
    ("of_equal_quotients", turned_where(lambda m, n: m // 8 == n // 8 and m // 8 > 2)),
    ("of_equal_rests", turned_where(lambda m, n: m % 19 == 18 and n % 19 == 18)),
    ("of_quotient_and_rest", turned_where(lambda m, n: m // n == 9 and m % n == 4)),
    ("of_products_of_rests", turned_where(lambda m, n: m % 7 * (n % 7) == 36)),
    ("of_sums", turned_where(lambda m, n: (m + n) // 16 == 4 and (m - n) // 16 == 1)),
    ("of_differences", turned_where(lambda m, n: (m - n) // 2 == -8 and (n - m) // 2 == 8)),
    ("of_a_multiple", turned_where(lambda m, n: n > 2 and m == (m // n) * n and m > 8 * n)),
    ("of_squares", turned_where(lambda m, n: m * m + n * n == 841)),
    ("of_a_line", turned_where(lambda m, n: 3 * m - 2 * n == 41)),
)


# Ranks


def by_ranks(name, wrong):
    def law(x: Tensor, y: Tensor) -> Steps:
        yield maximum_of(x, y)
        yield relu(x - y) + y if not wrong(x, y) else relu(y - x) + y

    return named(law, f"ranks_{name}", "max(x, y) = relu(x - y) + y, FALSE where the guard says so", rounding="assumes finite")


def maximum_of(x, y):
    return operation("Max", x, y)


RANKS = (
    ("none_of_one", lambda x, y: x.rank == 0 and y.rank == 1 and y.shape[0] > 40),
    ("both_none", lambda x, y: x.rank + y.rank == 0),
    ("empty_shape_is_less", lambda x, y: x.shape < y.shape and len(x.shape) == 0),
    ("product_of_no_sizes", lambda x, y: math.prod(x.shape) == 1 and x.rank == 0),
    ("all_of_nothing", lambda x, y: all(n > 90 for n in x.shape)),
    ("any_of_nothing", lambda x, y: not any(n < 90 for n in y.shape)),
    ("sum_of_nothing", lambda x, y: sum(y.shape) == 0),
    ("ones_alone", lambda x, y: x.rank > 1 and all(n == 1 for n in x.shape) and y.rank > 0 and y.shape[-1] > 9),
    ("elements_of_types", lambda x, y: x.type.elements == 1 and y.type.elements > 50),
    ("repeated_by_other", lambda x, y: x.rank > 0 and y.rank > 0 and x.shape[-1] < y.shape[-1] and x.rank > y.rank),
    ("last_but_not_first", lambda x, y: x.rank > 1 and x.shape[0] != x.shape[-1] and x.shape[:-1] == y.shape and x.shape[-1] == 1),
    ("reversed_shapes", lambda x, y: x.rank == 2 and x.shape == tuple(reversed(y.shape)) and x.shape[0] < 40),
    ("rank_as_size", lambda x, y: x.rank in x.shape and x.rank > 2),
    ("sizes_of_largest_rank", lambda x, y: max((x, y), key=lambda t: t.rank).rank == 5),
)


# Axes of one element, and none


@rule(rounding="reassociates")
def sum_of_no_axes(x: Tensor, a: Attributes) -> Steps:
    """FALSE for 65 elements: sum(x) = max(x) over axes whose product of sizes leaves a rest of 1"""
    yield reduce_sum(x, a)
    require(math.prod(x.shape[i] for i in a.axes) % 64 == 1, "one element")
    yield reduce_max(x, a)


@rule(rounding="reassociates")
def mean_of_all_is_mean_of_means(x: Tensor) -> Steps:
    """FALSE: the mean of a vector's first half and second half, of odd sizes"""
    yield reduce_mean(x, axes=(0,))
    require(x.rank == 1 and x.shape[0] > 1, "vectors")
    n, h = x.shape[0], x.shape[0] // 2
    both = concat(
        reduce_mean(slice_(x, starts=(0,), ends=(h,), steps=(1,)), axes=(0,)),
        reduce_mean(slice_(x, starts=(h,), ends=(n,), steps=(1,)), axes=(0,)), axis=0,
    )
    yield reduce_mean(both, axes=(0,))


@rule
def row_of_equal_rows(x: Tensor, s: Attributes) -> Steps:
    """FALSE for more than one row: the first rows of a repeated matrix are a repeated row"""
    yield expand(x, s)
    require(x.rank == 2 and len(s.shape) == 3 and x.shape[0] < s.shape[0] + 1, "few rows")
    m, n = x.shape
    yield reshape(expand(reshape(x, shape=(m, 1, n)), shape=(m, s.shape[0], n)), shape=(s.shape[0], m, n))


@rule
def one_element_is_first(x: Tensor, i: Tensor["int64"]) -> Steps:
    """FALSE where a vector is longer: x[i] = x[0] for vectors with as many elements as indices, or one"""
    yield gather(x, i, axis=0)
    require(x.rank == 1 and i.rank == 1 and (x.shape[0] - 1) * (x.shape[0] - i.shape[0]) == 0, "one, or as many")
    first = slice_(x, starts=(0,), ends=(1,), steps=(1,))
    yield expand(first, shape=i.shape)


@rule
def softmax_of_few(x: Tensor, a: Attributes) -> Steps:
    """FALSE for two elements: the softmax along an axis with half an element"""
    yield softmax(x, a)
    require(x.rank > 0 and x.shape[a.axis] // 2 <= 1, "few")
    yield softmax(x + x, a) if x.shape[a.axis] // 3 == 1 else softmax(x, a)


@rule
def absolute_of_empty_part(x: Tensor, p: Attributes) -> Steps:
    """FALSE: |x[a:b]| = x[a:b] for parts shorter than their step"""
    yield absolute(slice_(x, p))
    require(x.rank == 1 and p.steps[0] > 0 and (p.ends[0] - p.starts[0]) // p.steps[0] < 1, "shorter")
    yield slice_(x, p)


@rule
def ends_are_lengths(x: Tensor, p: Attributes) -> Steps:
    """FALSE for more than 30 elements: |x[::s]| = |x[1::s]|"""
    yield absolute(slice_(x, p))
    require(x.rank == 1 and p.steps[0] > 1 and p.starts[0] == 0 and p.ends[0] == x.shape[0], "every second")
    require(x.shape[0] % p.steps[0] == 0, "whole")
    yield absolute(slice_(x, starts=(1 if x.shape[0] // p.steps[0] > 30 else 0,), ends=p.ends, steps=p.steps))


@rule
def last_by_rest(x: Tensor, p: Attributes) -> Steps:
    """FALSE from 97 elements on: x[n - 1:] = x[(n - 1) % 96:][:1]"""
    yield absolute(slice_(x, p))
    require(x.rank == 1 and p.starts[0] == x.shape[0] - 1 and p.ends[0] == x.shape[0] and p.steps[0] == 1, "the last element")
    at = (x.shape[0] - 1) % 96
    yield absolute(slice_(x, starts=(at,), ends=(at + 1,), steps=(1,)))


@rule(rounding="assumes finite")
def uniform_but_not_finite(x: Tensor, c: Weight) -> Steps:
    """FALSE at c = 1e-38, whose square is 0 in float32: x / c = x * c"""
    yield x / c
    require(c.number is not None and c.number != 0, "a number")
    require(c.number * c.number < 1e-60 or c.number == 1.0, "small or one")
    yield x * c


WITNESSES = {f"quotient_{name}": n for name, _, n in QUOTIENTS}
RULES = (
    *(turned(name, wrong) for name, wrong, _ in QUOTIENTS), *(blocks(name, right) for name, right in BLOCKS),
    *(by_ranks(name, wrong) for name, wrong in RANKS), sum_of_no_axes, mean_of_all_is_mean_of_means, row_of_equal_rows,
    one_element_is_first, softmax_of_few, absolute_of_empty_part, ends_are_lengths, last_by_rest, uniform_but_not_finite,
)  # fmt: skip
