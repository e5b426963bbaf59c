"""Strassen's product has exact constants, equals the product at even and odd sizes, and is proposed only if it pays."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egraph.derive.bilinear.strassen import gain, matrices, program, strassen_programs
from egraph.tensor import Node, TensorType, placeholder
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate


def product(rows: int, depth: int, columns: int, *, constant: bool = True) -> Node:
    x = placeholder(0, TensorType("float32", (rows, depth)))
    return apply("MatMul", x, placeholder(1, TensorType("float32", (depth, columns)), constant=constant))


def test_constants_are_exact() -> None:
    left, right, result = matrices()
    for a, b, c in itertools.product(range(4), repeat=3):
        total = sum(left[xi][a] * right[xi][b] * result[c][xi] for xi in range(7))
        assert total == (a % 2 == b // 2 and a // 2 == c // 2 and b % 2 == c % 2)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(0, 1000))
def test_it_computes_the_product(rows: int, depth: int, columns: int, seed: int) -> None:
    node, random = product(rows, depth, columns), np.random.default_rng(seed)
    derived = program(node.inputs[0], node.inputs[1])
    assert derived.type == node.type
    values = {leaf: random.integers(-9, 9, leaf.type.sizes) for leaf in node.inputs}
    exact, found = evaluate([node, derived], values, "prime")
    assert np.array_equal(exact, found)
    want, got = evaluate([node, derived], values)
    np.testing.assert_allclose(got, want, atol=1e-9)


@pytest.mark.parametrize("size", [2048, 4096])
def test_large_products_are_worth_it(size: int) -> None:
    (derivation,) = strassen_programs(product(size, size, size))
    assert derivation.name == "strassen"
    assert gain(product(size, size, size)) > gain(product(size, size, size, constant=False))
    assert gain(product(size, size, size)) < 8 / 7


@pytest.mark.parametrize("sizes", [(49, 4608, 512), (3136, 576, 64), (64, 64, 64), (1, 4096, 4096)])
def test_small_or_thin_products_are_left_alone(sizes: tuple[int, int, int]) -> None:
    assert not list(strassen_programs(product(*sizes)))
