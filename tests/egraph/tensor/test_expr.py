"""The expression language: index algebra, evaluation in two fields, composition."""

from __future__ import annotations

import copy
import dataclasses
import gc
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egraph.tensor.expr.compose import inline
from egraph.tensor.expr.evaluate import EvaluationError, Evaluator, evaluate
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.index import Index, Iterator, RealSymbol, Symbol, bounds, index, substitute
from egraph.tensor.expr.printing import format_scope
from egraph.tensor.expr.scope import ZERO, Apply, Guarded, Number, Read, Reduction, Scope, Tensor, apply, inside, number

ROW, COLUMN = Iterator("i", 0, 6), Iterator("j", -3, 4)


@pytest.mark.parametrize("atom", [ROW, Iterator("i", index(1), index(Symbol("n")) - 1), Symbol("n"), Symbol("n", 0), RealSymbol("n")])
def test_equal_atoms_are_one_object_however_they_are_made(atom: Iterator | Symbol | RealSymbol) -> None:
    assert pickle.loads(pickle.dumps(atom)) is atom
    assert copy.deepcopy(atom) is atom
    assert dataclasses.replace(atom) is atom
    assert atom != dataclasses.replace(atom, name="other")


def test_a_hash_is_not_taken_to_another_process() -> None:
    """An unpickled scope computes its own hash because hashes of texts differ between processes."""
    scope = Scope.pointwise((ROW,), apply("add", Read(Tensor("0", (6,)), (index(ROW),)), ZERO))
    assert hash(scope) == hash(dataclasses.replace(scope))
    assert scope.__reduce__() == (Scope, (scope.traversal, scope.summation, scope.reduction, scope.body))
    assert pickle.loads(pickle.dumps(scope)) == scope


def test_the_ends_of_an_iterator_are_plain_integers() -> None:
    low: Any = np.int64(0)
    assert type(Iterator("of numpy's integers", low, 3).low) is int
    assert len({Symbol("n"), RealSymbol("n")}) == 2
    assert Symbol("n") is Symbol("n", 1)


@st.composite
def index_trees(draw: st.DrawFn, depth: int = 3) -> tuple[Index, Callable[[int, int], int]]:
    """Draw an index expression and the same computation as a Python function of (i, j)."""
    if depth == 0 or draw(st.booleans()):
        match draw(st.integers(0, 2)):
            case 0:
                value = draw(st.integers(-9, 9))
                return index(value), lambda i, j: value
            case 1:
                return index(ROW), lambda i, j: i
            case _:
                return index(COLUMN), lambda i, j: j
    left, f = draw(index_trees(depth - 1))
    right, g = draw(index_trees(depth - 1))
    divisor = draw(st.integers(1, 7))
    match draw(st.sampled_from("+-*/%")):
        case "+":
            return left + right, lambda i, j: f(i, j) + g(i, j)
        case "-":
            return left - right, lambda i, j: f(i, j) - g(i, j)
        case "*":
            return left * right, lambda i, j: f(i, j) * g(i, j)
        case "/":
            return left // divisor, lambda i, j: f(i, j) // divisor
        case _:
            return left % divisor, lambda i, j: f(i, j) % divisor


@given(index_trees())
@settings(max_examples=200, deadline=None)
def test_simplified_index_equals_plain_arithmetic(tree: tuple[Index, Callable[[int, int], int]]) -> None:
    """Every simplification of an index holds for all values of its iterators, and its bounds contain them."""
    expression, plain = tree
    limits = bounds(expression)
    for i in range(6):
        for j in range(-3, 4):
            value = substitute(expression, {ROW: i, COLUMN: j}).constant
            assert value == plain(i, j)
            assert limits is not None and limits[0] <= value <= limits[1]


def test_factor_laws() -> None:
    i, j = Iterator("i", 0, 8), Iterator("j", 0, 4)
    merged = index(i) * 4 + index(j)
    assert merged // 4 == index(i) and merged % 4 == index(j)
    assert (index(Iterator("k", 0, 60)) // 5) // 4 == index(Iterator("k", 0, 60)) // 20
    n = Symbol("n")
    assert index(n) * 2 - index(n) == index(n)


def convolution(height: int, width: int, channels: int, filters: int, kernel: int, pad: int) -> Scope:
    f, h, w = Iterator("f", 0, filters), Iterator("h", 0, height), Iterator("w", 0, width)
    c, r, s = Iterator("c", 0, channels), Iterator("r", 0, kernel), Iterator("s", 0, kernel)
    y, x = index(h) + r - pad, index(w) + s - pad
    image = Tensor("0", (channels, height, width))
    weights = Tensor("1", (filters, channels, kernel, kernel))
    product = apply("mul", Read(image, (index(c), y, x)), Read(weights, (index(f), index(c), index(r), index(s))))
    return Scope((f, h, w), (c, r, s), Reduction.SUM, Guarded(inside(y, 0, height) + inside(x, 0, width), product, ZERO))


def test_evaluates_a_padded_convolution_in_both_fields() -> None:
    scope = convolution(5, 4, 3, 2, 3, 1)
    random = np.random.default_rng(0)
    image, weights = random.integers(0, 50, (3, 5, 4)), random.integers(0, 50, (2, 3, 3, 3))
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    expected = sum(
        np.einsum("chw,fc->fhw", padded[:, r : r + 5, s : s + 4], weights[:, :, r, s]) for r in range(3) for s in range(3)
    )
    real = evaluate(scope, {"0": image.astype(float), "1": weights.astype(float)})
    np.testing.assert_array_equal(real, expected)
    exact = evaluate(scope, {"0": image.astype(np.int64), "1": weights.astype(np.int64)}, "prime")
    np.testing.assert_array_equal(exact, np.asarray(expected) % PRIME)


@pytest.mark.parametrize(("chunk", "largest"), [(1, 36), (60, 54), (10_000, 144)])
def test_a_large_sum_is_evaluated_in_parts(monkeypatch: pytest.MonkeyPatch, chunk: int, largest: int) -> None:
    """A large sum is evaluated in parts because one array for all results would use memory without need.

    The scope has eight groups of channels, each of which gathers its own data.
    """
    f, w, r = Iterator("f", 0, 8), Iterator("w", 0, 6), Iterator("r", 0, 3)
    x = index(w) + r - 1
    product = apply("mul", Read(Tensor("0", (4, 6)), (index(f) // 2, x)), Read(Tensor("1", (8, 3)), (index(f), index(r))))
    scope = Scope((w, f), (r,), Reduction.SUM, Guarded(inside(x, 0, 6), product, ZERO))
    random = np.random.default_rng(0)
    signal, taps = random.normal(size=(4, 6)), random.normal(size=(8, 3))
    gathered: list[int] = []

    def counted(evaluator: Evaluator, *arguments: Any) -> np.ndarray:
        value = elements(evaluator, *arguments)
        gathered.append(value.size)
        return value

    elements = Evaluator.elements
    monkeypatch.setattr("egraph.tensor.expr.evaluate.CHUNK_ELEMENTS", chunk)
    monkeypatch.setattr(Evaluator, "elements", counted)
    result = evaluate(scope, {"0": signal, "1": taps})
    padded = np.pad(signal, ((0, 0), (1, 1)))[np.arange(8) // 2]
    np.testing.assert_allclose(result.T, sum(padded[:, k : k + 6] * taps[:, k, None] for k in range(3)), rtol=1e-12)
    assert max(gathered) == largest


def test_a_read_outside_without_a_guard_is_an_error() -> None:
    i = Iterator("i", 0, 4)
    with pytest.raises(EvaluationError, match=r"outside 0\.\.2"):
        evaluate(Scope.pointwise((i,), Read(Tensor("0", (3,)), (index(i),))), {"0": np.zeros(3)})


def test_padding_wins_over_values_that_are_not_finite() -> None:
    scope = convolution(2, 2, 1, 1, 3, 1)
    result = evaluate(scope, {"0": np.array([[[np.inf, 1.0], [1.0, 1.0]]]), "1": np.zeros((1, 1, 3, 3)) + 1.0})
    assert np.isinf(result).all() and not np.isnan(result).any()


def test_division_is_exact_in_the_prime_field() -> None:
    i = Iterator("i", 0, 3)
    third = Scope.pointwise((i,), apply("mul", apply("div", Read(Tensor("0", (3,)), (index(i),)), number(3)), number(3)))
    np.testing.assert_array_equal(evaluate(third, {"0": np.array([1, 2, 5])}, "prime"), [1, 2, 5])


def test_inlining_a_producer_keeps_the_value() -> None:
    """Inlining relu(conv(x)) into a shifted, guarded consumer keeps the value."""
    scope = convolution(5, 4, 3, 2, 3, 1)
    f, h, w = Iterator("f", 0, 2), Iterator("h", 0, 5), Iterator("w", 0, 6)
    source = Tensor("y", (2, 5, 4))
    padded = Scope.pointwise((f, h, w), Guarded(inside(index(w) - 1, 0, 4), Read(source, (index(f), index(h), index(w) - 1)), number(7)))
    relu = Scope.pointwise((f, h, w), Apply("max", (Read(Tensor("p", (2, 5, 6)), (index(f), index(h), index(w))), ZERO)))
    fused = inline(relu, {"p": inline(padded, {"y": scope})})
    random = np.random.default_rng(1)
    operands = {"0": random.normal(size=(3, 5, 4)), "1": random.normal(size=(2, 3, 3, 3))}
    middle = np.pad(evaluate(scope, operands), ((0, 0), (0, 0), (1, 1)), constant_values=7)
    np.testing.assert_allclose(evaluate(fused, operands), np.maximum(middle, 0), rtol=1e-12)


def test_ranges_decide_guards() -> None:
    i = Iterator("i", 0, 4)
    always = Scope.pointwise((i,), Guarded(inside(index(i), 0, 4), Read(Tensor("x", (4,)), (index(i),)), ZERO))
    assert inline(always, {}).body == Read(Tensor("x", (4,)), (index(i),))
    assert isinstance(inline(Scope.pointwise((i,), Guarded(inside(index(i) + 4, 0, 4), Number(1.5), ZERO)), {}).body, Number)


def test_printing(golden: Callable[[str, str], None]) -> None:
    golden("convolution.scope", format_scope(convolution(5, 4, 3, 2, 3, 1)) + "\n")


def test_composition_leaves_no_cyclic_garbage() -> None:
    """A proof composes thousands of expressions, and searching for cycles among them was a fifth of some proofs."""
    i = Iterator("i", 0, 4)
    producer = Scope.pointwise((i,), apply("mul", Read(Tensor("x", (4,)), (index(i),)), number(2)))
    reader = Scope.pointwise((i,), apply("exp", Read(Tensor("y", (4,)), (index(i),))))
    gc.collect()
    gc.disable()
    try:
        assert inline(reader, {"y": producer}).body != reader.body
        assert gc.collect() == 0
    finally:
        gc.enable()


@given(st.lists(st.tuples(st.sampled_from(("n", "m", "k")), st.integers(-3, 3)), min_size=2, max_size=2))
def test_sums_of_two_terms_are_ordered_like_longer_ones(terms: list[tuple[str, int]]) -> None:
    first, second = (index(Symbol(name)) * factor for name, factor in terms)
    whole = index(Symbol("z"))
    for total in (first + second, second + first, first - -second):
        assert total == first + whole + second - whole
        assert total.terms == tuple(sorted(total.terms, key=lambda term: repr(term[0])))
