"""Cases share a name exactly if they are equal up to names and the order of axes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import pytest

from egraph.rules import rule_named
from egraph.tensor.expr.index import Iterator, RealSymbol, Size, Symbol, index
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Reduction, Scalar, Scope, Tensor
from verify.assumptions import Assumptions
from verify.cases import Case, cases
from verify.equality import prove_equal
from verify.isomorphism import Names
from verify.outcome import Equal

N, M, K = (Symbol(name) for name in "nmk")


def traversal(*sizes: Symbol) -> tuple[Iterator, ...]:
    return tuple(Iterator(f"i{axis}", 0, index(size)) for axis, size in enumerate(sizes))


def read(name: str, shape: Sequence[Size], *places: object) -> Read:
    return Read(Tensor(name, tuple(shape)), tuple(map(index, places)))


def pointwise(sizes: Sequence[Symbol], body: Scalar) -> Scope:
    return Scope.pointwise(traversal(*sizes), body)


def plain(names: Names, left: Scope, right: Scope, *conditions: Compare) -> int:
    return names.of(conditions, (left,), (right,))


def reduced(sizes: Sequence[Symbol], over: Symbol, along: int, name: str = "k") -> Scope:
    """Return a tensor of ``sizes`` and ``over``, summed along the axis ``along``."""
    outer, inner = traversal(*sizes), Iterator(name, 0, index(over))
    places: list[Iterator] = list(outer)
    places.insert(along, inner)
    shape = [place.high for place in places]
    return Scope(outer, (inner,), Reduction.SUM, read("x", shape, *places))


def test_names_of_symbols_and_iterators_and_the_order_of_axes_do_not_matter() -> None:
    names = Names()
    i, j = traversal(N, M)
    straight = pointwise((N, M), read("x", (index(N), index(M)), i, j))
    turned = pointwise((N, M), read("x", (index(M), index(N)), j, i))
    assert plain(names, straight, straight) == plain(names, turned, turned)
    assert plain(names, reduced((N,), M, 0), reduced((N,), M, 0)) == plain(names, reduced((K,), N, 1, "j"), reduced((K,), N, 1, "j"))
    above = Compare(index(3), "<=", index(N))
    other = Compare(index(3), "<=", index(M))
    assert plain(names, straight, straight, above) == plain(names, straight, straight, other)


def test_what_is_not_the_same_has_another_name() -> None:
    """Cases that differ in one thing have different names; if two shared a name, the proof of one would be taken for the other."""
    names = Names()
    i, j = traversal(N, N)
    square = (index(N), index(N))
    straight, turned = (pointwise((N, N), read("x", square, *places)) for places in ((i, j), (j, i)))
    two = Symbol("n", 2)
    real, whole = Apply("add", (read("x", square, i, j), IndexNumber(index(RealSymbol("c"))))), IndexNumber(index(N))
    distinct = [
        (straight, straight, ()), (straight, turned, ()),
        (straight, straight, (Compare(index(2), "<=", index(N)),)), (straight, straight, (Compare(index(3), "<=", index(N)),)),
        (straight, straight, (Compare(index(2), "<", index(N)),)),
        (pointwise((N, M), read("x", (index(N), index(M)), *traversal(N, M))),) * 2 + ((),),
        (pointwise((two, two), read("x", (index(two),) * 2, *traversal(two, two))),) * 2 + ((),),
        (straight, pointwise((N, N), read("y", square, i, j)), ()),
        (straight, pointwise((N, N), real), ()), (straight, pointwise((N, N), Apply("add", (read("x", square, i, j), whole))), ()),
        (straight, pointwise((N, N), read("x", square, i, index(j) * 2 // 2 + 0 * index(i) + index(i) % 2)), ()),
        (straight, pointwise((N, N), Guarded((Compare(index(i), "<", index(j)),), read("x", square, i, j), Number(0.0))), ()),
        (straight, pointwise((N, N), Guarded((Compare(index(i), "<=", index(j)),), read("x", square, i, j), Number(0.0))), ()),
        (straight, pointwise((N, N), Guarded((Compare(index(i), "<=", index(j)),), read("x", square, i, j), Number(-0.0))), ()),
        (reduced((N,), N, 0), reduced((N,), N, 0), ()), (reduced((N,), N, 0), reduced((N,), N, 1), ()),
        (reduced((N,), M, 0), reduced((N,), M, 0), ()),
    ]  # fmt: skip
    assert len({plain(names, left, right, *conditions) for left, right, conditions in distinct}) == len(distinct)


def test_sides_whose_axes_are_turned_apart_are_told_apart() -> None:
    """Both equations transpose x in the two operands of a product, but one of them transposes it once too often."""
    names = Names()
    i, j = traversal(N, N)
    square = (index(N), index(N))

    def product(first: tuple[Iterator, Iterator], second: tuple[Iterator, Iterator]) -> Scope:
        return pointwise((N, N), Apply("mul", (read("x", square, *first), read("y", square, *second))))

    assert plain(names, product((i, j), (j, i)), product((i, j), (j, i))) != plain(names, product((i, j), (i, j)), product((i, j), (j, i)))
    assert plain(names, product((i, j), (j, i)), product((i, j), (j, i))) == plain(names, product((j, i), (i, j)), product((j, i), (i, j)))


def test_graphs_of_one_form_that_differ_keep_their_names() -> None:
    """Leaves count as one in a form, so these differ only in their colours; the first is written down when the second is seen."""
    names = Names()
    i, j, k = traversal(N, N, N)
    cube = (index(N),) * 3

    def equation(*places: Iterator) -> int:
        return plain(names, pointwise((N, N, N), read("x", cube, i, j, k)), pointwise((N, N, N), read("x", cube, *places)))

    first = equation(j, i, k)
    assert equation(j, k, i) != first, "a swap of two axes is no rotation of three"
    assert equation(i, k, j) == first == equation(j, i, k) and equation(k, i, j) == equation(j, k, i)


RANKS = (0, 1, 2, 3)
"""Ranks up to which nearly all names of these rules have several cases."""


@pytest.mark.parametrize("name", ["slice_into_add", "transpose_out_of_reduce_mean", "concat_of_mul_with_constants", "scale_into_conv"])
def test_cases_of_one_name_are_proved_alike(name: str) -> None:
    """The first and the last case of a shared name are both proved, for shipped rules; the first names are those of few axes."""
    names, by_name = Names(), defaultdict[int, list[Case]](list)
    for case in cases(rule_named(name), ranks=RANKS):
        if not (case.left_out or case.ill_typed or case.failure):
            by_name[names.of(case.assumptions.conditions, case.left, case.right)].append(case)
    shared = [several for several in by_name.values() if len(several) > 1]
    assert shared
    for several in shared[:6]:
        for case in (several[0], several[-1]):
            for left, right in zip(case.left, case.right, strict=True):
                assert isinstance(prove_equal(left, right, Assumptions().assume(*case.assumptions.conditions)), Equal)


def test_both_kinds_of_bytes_are_one_type_and_no_other_is() -> None:
    names = Names()

    def of(dtype: str) -> int:
        side = pointwise((N,), Read(Tensor("x", (index(N),), dtype), (index(traversal(N)[0]),)))
        return plain(names, side, side)

    assert of("int8") == of("uint8")
    assert len({of(dtype) for dtype in ("uint8", "int32", "bool", "float32")}) == 4
