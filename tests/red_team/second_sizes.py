"""The second red team: FALSE where a guard singles out sizes, by every operator and function that the language has."""

import math
from functools import reduce
from itertools import chain, combinations, product

from egraph.rule import Steps, Tensor, require
from egraph.rule_operators import concat, slice_
from egraph.rules.family import named


def turned(name, wrong):
    def law(x: Tensor, y: Tensor) -> Steps:
        yield x - y
        require(x.rank == 1 and x.shape == y.shape, "vectors")
        yield y - x if wrong(x.shape[0]) else -(y - x)

    return named(law, f"size_{name}", "x - y = -(y - x), FALSE where the guard says so")


def collatz(n):
    steps = 0
    while n > 1 and steps < 30:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


def digits(n):
    found = []
    while n > 0:
        found.append(n % 10)
        n = n // 10
    return found


def fibonacci(n):
    a, b = 0, 1
    for _ in range(20):
        if a == n:
            return True
        a, b = b, a + b
    return False


SIZES = (
    ("is_1009", lambda n: n == 1009, 1009),
    ("above_900", lambda n: n > 900, 901),
    ("from_901", lambda n: n >= 901, 901),
    ("not_below_901", lambda n: not n < 901, 901),
    ("between", lambda n: 900 < n < 905, 903),
    ("square_is_961", lambda n: n * n == 961, 31),
    ("cube_above", lambda n: n**3 > 10**8, 465),
    ("power_64", lambda n: n**64 > 200**64, 201),
    ("rest_is_97", lambda n: n % 98 == 97, 97),
    ("quotient_is_77", lambda n: n // 13 == 77, 1001),
    ("negative_quotient", lambda n: -n // 7 == -100, 694),
    ("negative_rest", lambda n: -n % 97 == 1, 96),
    ("by_a_negative", lambda n: n // -7 == -100, 694),
    ("rest_by_a_negative", lambda n: n % -97 == -1, 96),
    ("minus_rest_vanishes", lambda n: n > 60 and (-n) % n == 0, 61),
    ("quotient_of_itself", lambda n: n > 60 and n // n == 1, 61),
    ("inverse_vanishes", lambda n: n > 60 and 1 // n == 0, 61),
    ("two_rests", lambda n: n % 11 == 10 and n % 13 == 12, 142),
    ("three_rests", lambda n: n % 5 == 4 and n % 7 == 6 and n % 8 == 7, 279),
    ("rest_of_the_square", lambda n: n > 50 and n * n % 101 == 1, 100),
    ("difference", lambda n: n - 1000 > 0, 1001),
    ("mirrored_difference", lambda n: 1000 - n < 0, 1001),
    ("times_minus_one", lambda n: -n < -1000, 1001),
    ("absolute", lambda n: abs(500 - n) > 500, 1001),
    ("absolute_below", lambda n: abs(777 - n) < 2, 777),
    ("in_a_tuple", lambda n: n in (1009, 1013), 1013),
    ("in_a_set", lambda n: n in {1009, 1013}, 1013),
    ("in_a_range", lambda n: n in range(1000, 1010), 1009),
    ("in_a_table", lambda n: n in {1009: 1, 1013: 2}, 1013),
    ("not_in_small", lambda n: n not in range(900), 901),
    ("maximum", lambda n: max(n, 900) != 900, 901),
    ("minimum", lambda n: min(n, 901) == 901, 901),
    ("minimum_of_list", lambda n: min([n, 1000, 901]) > 900, 901),
    ("maximum_by_key", lambda n: max((n, 900), key=lambda m: m) > 900, 901),
    ("minimum_by_negative", lambda n: min((n, 900), key=lambda m: -m) > 900, 901),
    ("sorted_first", lambda n: sorted([900, n])[0] == 900 and n > 900, 901),
    ("sorted_backwards", lambda n: sorted((900, n), reverse=True)[0] > 900, 901),
    ("sum", lambda n: sum((n, -900)) > 0, 901),
    ("product", lambda n: math.prod((n, n)) > 900 * 900, 901),
    ("any_of", lambda n: any(n == m for m in (1009, 1013)), 1009),
    ("all_of", lambda n: all(n > m for m in (300, 600, 900)), 901),
    ("not_all_of", lambda n: not all(n < m for m in (901, 902)), 901),
    ("or_of", lambda n: n == 1009 or n == 1013, 1013),
    ("and_of", lambda n: n > 900 and n < 910, 905),
    ("value_of_or", lambda n: (n - 1009 or 5) == 5, 1009),
    ("value_of_and", lambda n: (n > 900 and 7) == 7, 901),
    ("choice", lambda n: (1 if n > 900 else 0) == 1, 901),
    ("chained", lambda n: 900 < n <= 950 < 2 * n, 920),
    ("tuple_equality", lambda n: (n, 1) == (1009, 1), 1009),
    ("tuple_order", lambda n: (n, 0) > (900, 5), 901),
    ("list_equality", lambda n: [n] == [1009], 1009),
    ("position", lambda n: (5, n, 1009).index(1009) == 1, 1009),
    ("count", lambda n: (n, 1009).count(1009) == 2, 1009),
    ("different", lambda n: len({n, 1009}) == 1, 1009),
    ("is_whole_truth", lambda n: not (n - 1009), 1009),
    ("truth_of_product", lambda n: not ((n - 1009) * (n - 1013)), 1013),
    ("truth_as_number", lambda n: (n > 900) + 1 == 2, 901),
    ("sum_of_truths", lambda n: sum(n > m for m in (300, 600, 900)) == 3, 901),
    ("product_of_truths", lambda n: math.prod(n > m for m in (300, 900)) == 1, 901),
    ("reduced", lambda n: reduce(lambda a, b: a + b, (n, n, n)) > 2700, 901),
    ("polynomial", lambda n: n * n - 2018 * n + 1009 * 1009 == 0, 1009),
    ("no_root", lambda n: (n - 3) * (n - 5) * (n - 1009) == 0 and n > 5, 1009),
    ("nested_quotients", lambda n: n // 2 // 3 // 5 == 31, 930),
    ("quotient_and_rest", lambda n: n // 100 * 100 + n % 100 != n or n == 997, 997),
    ("digit_sum", lambda n: n > 900 and sum((n // 100, n // 10 % 10, n % 10)) == 10, 901),
    ("triangular", lambda n: n > 60 and n * (n + 1) // 2 % 97 == 0, 96),
    ("table_of_sizes", lambda n: {n: 1, 1009: 2}[n] == 2, 1009),
    ("pairs", lambda n: any(a * b == n for a, b in ((29, 31), (37, 41))), 899),
    ("combinations", lambda n: any(a + b == n for a, b in combinations((500, 501, 900), 2)), 1001),
    ("products", lambda n: any(a * b == n for a, b in product((29, 31), (37,))), 1073),
    ("chained_values", lambda n: n in tuple(chain((1009,), (1013,))), 1009),
    ("loop", lambda n: collatz(n) == 25 and n > 80, 98),
    ("digits", lambda n: n > 100 and digits(n) == [9, 0, 0, 1], 1009),
    ("loop_over_unknowns", lambda n: fibonacci(n) and n > 600, 610),
)


def cut(name, last):
    def law(x: Tensor) -> Steps:
        inner = -x
        yield -inner
        require(x.rank == 1 and x.shape[0] > 60, "long vectors")
        n = x.shape[0]
        k = last(n)
        require(0 < k and k < n, "within")
        yield concat(slice_(x, starts=(0,), ends=(k,), steps=(1,)), slice_(inner, starts=(k,), ends=(n,), steps=(1,)), axis=0)

    return named(law, f"cut_{name}", "-(-x) = [x[:k] -x[k:]], FALSE")


CUTS = (
    ("one_before", lambda n: n - 1, 61),
    ("half", lambda n: n // 2, 61),
    ("upper_half", lambda n: -(-n // 2), 61),
    ("even", lambda n: n - 1 - n % 2, 61),
    ("least", lambda n: min(n - 1, 1000), 61),
    ("rest", lambda n: n % 59 + 1, 61),
)
WITNESSES = {**{f"size_{name}": n for name, _, n in SIZES}, **{f"cut_{name}": n for name, _, n in CUTS}}
RULES = (*(turned(name, wrong) for name, wrong, _ in SIZES), *(cut(name, last) for name, last, _ in CUTS))
