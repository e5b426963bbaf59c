"""The fourth red team: loops that double what they computed before, in few steps. FALSE where the guard says so, and no proof may take all memory."""

from egraph.rule import Steps, Tensor, require
from egraph.rules.family import named


def turned(name, wrong):
    def law(x: Tensor, y: Tensor) -> Steps:
        yield x - y
        require(x.rank == 1 and x.shape == y.shape, "vectors")
        yield y - x if wrong(x.shape[0]) else -(y - x)

    return named(law, f"growth_{name}", "x - y = -(y - x), FALSE where the guard says so")


def greatest_divisor(a, b):
    while b > 0:
        a, b = b, a % b
    return a


def squared(n):
    for _ in range(40):
        n = n * n
    return n


def raised(n):
    for _ in range(20):
        n = n**60
    return n


def added_and_multiplied(n):
    a, b = n, n + 1
    for _ in range(60):
        a, b = a * b + a, a + b
    return a


def divided(n):
    a, b = n * n, n + 1
    for _ in range(40):
        a, b = a // b + n, a % b + 1
    return a


def joined(n):
    values = (n,)
    for _ in range(40):
        values = values + values
    return len(values)


RULES = (
    turned("squared", lambda n: squared(n) > 5), turned("raised", lambda n: raised(n) > 5),
    turned("added_and_multiplied", lambda n: added_and_multiplied(n) > 5), turned("divided", lambda n: divided(n) > 900),
    turned("joined", lambda n: joined(n) > n),
    turned("greatest_divisor", lambda n: n < 400 and greatest_divisor(n, 60) == 60 and n > 100),
)  # fmt: skip
