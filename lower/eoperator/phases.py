"""Split strided scatters into phases: where only every s-th term of a sum meets an element, the others are not computed.

    sum_k {(i + c - k) % s == 0} a[(i + c - k) // s] w[k]   is   sum_u a[x + (r + c) // s - u] w[s u + (r + c) % s]   with i = s x + r

A transposed convolution is such a sum along each of its axes. (EinNet derives a product and an offset sum for it; here nothing is stored
in between.) All phases run the same code: r is one more iterator of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import gcd

from egraph.tensor.expr.index import Index, Iterator, Modulo, Size, Symbol, index, known, length
from egraph.tensor.expr.laws import affine
from egraph.tensor.expr.scope import Compare, Reduction
from lower.eoperator.terms import Term, Terms, subterms

Space = tuple[tuple[Iterator, ...], Term, Index]
"""The iterators of a result, its term, and where its elements lie."""


def split_phases(table: Terms, iterators: tuple[Iterator, ...], root: Term, offset: Index) -> Space:
    """Split iterators of the result, and of sums, whose differences a guard tests for multiples of a stride that divides the result."""
    space = iterators, root, offset
    while (split := _split(table, *space)) is not None:
        space = split
    return space


def has_phases(outputs: int, taps: int, stride: int, dilation: int) -> bool:
    """Return whether so many outputs are split by the stride: into equal phases of more than one place, each with other taps."""
    return stride > 1 and outputs % stride == 0 and outputs > stride and taps >= stride and gcd(dilation, stride) == 1


def _split(table: Terms, iterators: tuple[Iterator, ...], root: Term, offset: Index) -> Space | None:
    """Split by the first guard for which it can be done; None where there is none."""
    for term in subterms((root,)):
        if term.kind != "reduce" or term.data[0] != Reduction.SUM:
            continue
        for condition in required(table, term.children[0]):
            step = _step(condition, iterators, term.data[1])
            if step is None:
                continue
            outer, summed, stride, phase = step
            position = iterators.index(outer)
            places, rest = table.fresh(outer.name, length(outer) // stride), table.fresh(outer.name, stride)
            split: dict[Iterator | Symbol, Size] = {outer: index(places) * stride + rest}
            taps = table.fresh(summed.name, -(-length(summed) // stride))
            number = table.index(phase, split)
            tap = index(taps) * stride + number - number // stride * stride
            body = table.substitute(term.children[0], {**split, summed: tap})
            if length(summed) % stride:
                body = _guarded(table, Compare(tap, "<", index(length(summed))), body)
            replaced = table.reduce(Reduction.SUM, tuple(taps if i is summed else i for i in term.data[1]), body)
            changed = table.substitute(table.exchange(root, {term: replaced}), split)
            return (*iterators[:position], places, rest, *iterators[position + 1 :]), changed, table.index(offset, split)
    return None


def _guarded(table: Terms, condition: Compare, body: Term) -> Term:
    """Return a summand that is zero where a condition fails, as one guard."""
    zero = table.number(Fraction(0))
    if body.kind == "guard" and body.children[1] is zero:
        return table.guard((condition, *body.data), body.children[0], zero)
    return table.guard((condition,), body, zero)


def required(table: Terms, body: Term) -> list[Compare]:
    """Return conditions without which a summand is zero."""
    if body.kind == "guard" and body.children[1] is table.number(Fraction(0)):
        return [*body.data, *required(table, body.children[0])]
    if body.kind == "apply" and body.data == "mul":
        return [condition for factor in body.children for condition in required(table, factor)]
    return []


def _step(
    condition: Compare, iterators: Sequence[Iterator], summed: Sequence[Iterator]
) -> tuple[Iterator, Iterator, int, Index] | None:
    """Return (i, k, s, e) where a condition says that k % s == e % s, and e is of i alone; None where it says something else."""
    remainder = condition.left - condition.right
    sign = 1 if remainder.atom is not None else -1
    atom = (remainder * sign).atom
    if condition.operator != "==" or not isinstance(atom, Modulo):
        return None
    stride, linear = atom.divisor.constant, affine(atom.numerator)
    if stride is None or linear is None or len(linear[1]) != 2:
        return None
    constant, slopes = linear
    outer, inner = next((i for i in slopes if i in iterators), None), next((k for k in slopes if k in summed), None)
    if outer is None or inner is None or known(outer.low) or known(inner.low):
        return None
    if not has_phases(length(outer), length(inner), stride, slopes[inner]):
        return None
    inverse = pow(-slopes[inner], -1, stride)
    return outer, inner, stride, index(outer) * (slopes[outer] * inverse % stride) + constant * inverse % stride
