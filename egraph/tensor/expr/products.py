"""Scalars as sums of products, and the arithmetic that a sum of products takes when it is contracted factor by factor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from egraph.tensor.expr.bodies import used
from egraph.tensor.expr.digits import split_digits
from egraph.tensor.expr.index import Iterator, length
from egraph.tensor.expr.scope import Apply, Compare, Guarded, Number, Read, Scalar, Scope, Table, Tensor

MOST_TABLES = 5
"""The most tables of one product whose orders are compared; more tables are applied in the given order."""


@dataclass(frozen=True)
class Product:
    """coefficient * factors where the conditions hold, else 0"""

    coefficient: Fraction
    factors: tuple[Read | Table, ...] = ()
    conditions: tuple[Compare, ...] = ()


def sum_of_products(body: Scalar) -> list[Product] | None:
    """Return a body as a sum of products, None if it is not one."""
    match body:
        case Number(Fraction() as value):
            return [Product(value)]
        case Read(source=Tensor()) | Table():
            return [Product(Fraction(1), (body,))]
        case Guarded(conditions, then, Number(value)) if value == 0:
            inner = sum_of_products(then)
            return inner and [Product(p.coefficient, p.factors, p.conditions + conditions) for p in inner]
        case Apply("neg", (argument,)):
            return _scaled(sum_of_products(argument), -1)
        case Apply("add", (left, right)):
            return _joined(sum_of_products(left), sum_of_products(right))
        case Apply("sub", (left, right)):
            return _joined(sum_of_products(left), _scaled(sum_of_products(right), -1))
        case Apply("mul", (left, right)):
            first, second = sum_of_products(left), sum_of_products(right)
            if first is None or second is None or len(first) * len(second) > 1:
                return None
            return [
                Product(a.coefficient * b.coefficient, a.factors + b.factors, a.conditions + b.conditions) for a in first for b in second
            ]
    return None


def _scaled(products: list[Product] | None, by: int) -> list[Product] | None:
    return products and [Product(p.coefficient * by, p.factors, p.conditions) for p in products]


def _joined(left: list[Product] | None, right: list[Product] | None) -> list[Product] | None:
    return None if left is None or right is None else left + right


def contracted_operations(scope: Scope) -> float | None:
    """Return the number of multiplications and additions of a sum of products whose tables are applied one after the other.

    None if the scope is not a sum of products. A table entry of zero costs nothing, an entry of one costs an addition.
    """
    if scope.reduction != "sum":
        return None
    digits = split_digits(scope)
    products = sum_of_products(digits.body)
    if products is None:
        return None
    outer = set(digits.outer)
    return math.fsum(_operations(product, outer) for product in products)


def _operations(product: Product, outer: set[Iterator]) -> float:
    tables = [factor for factor in product.factors if isinstance(factor, Table)]
    reads = [used(factor) for factor in product.factors if isinstance(factor, Read)]
    start = set[Iterator]().union(*reads)
    orders = itertools.permutations(tables) if len(tables) <= MOST_TABLES else (tables,)
    return min(_in_order(start, len(reads), order, outer) for order in orders)


def _in_order(start: set[Iterator], reads: int, tables: Sequence[Table], outer: set[Iterator]) -> float:
    current, total = start, 2.0 * max(0, reads - 1) * _points(start)
    for position, table in enumerate(tables):
        axes = used(table)
        total += _points(current | axes) * _entry_cost(table)
        later = set[Iterator]().union(*map(used, tables[position + 1 :]))
        current = {i for i in current | axes if i in outer or i in later or i not in axes}
    return total + _points(start) * (reads == 1 and not tables and not start <= outer)


def _entry_cost(table: Table) -> float:
    """Return the mean operations of one entry: none if it is zero, one addition if it is one, else two operations."""
    return sum(0.0 if value == 0 else 1.0 if abs(value) == 1 else 2.0 for value in table.values) / len(table.values)


def _points(iterators: set[Iterator]) -> float:
    return float(math.prod(map(length, iterators)))
