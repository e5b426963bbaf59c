"""Values that are compared with a selection from them are computed once, whatever kernels cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from egraph.optimize.estimated import Price, estimated_program, grown, open_program, shipped_rules
from egraph.tensor import Candidate, Graph, Node, TensorType, attributes, make, walk
from egraph.tensor.ops import apply
from lower.candidates import candidates
from lower.candidates.compared import compared_once

X = make("Input", (), attributes(name="x"), TensorType("float32", (2, 5, 13, 11)))
Y = make("Input", (), attributes(name="y"), TensorType("float32", (2, 5, 13, 11)))
WINDOW: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "layout": "NCHW"}
LAST = (0, 2, 3, 1)


def peaks(heat: Node) -> Node:
    return apply("Equal", apply("MaxPool", heat, **WINDOW), heat)


def moved(function: str) -> Node:
    """Return values that the model transposes before it compares them."""
    total = apply("Add", apply("Transpose", X, perm=LAST), apply("Transpose", Y, perm=LAST))
    return apply("Transpose", apply(function, total), perm=(0, 3, 1, 2))


SUM = apply("Add", X, Y)
HEATS = {
    "Mish": apply("Mish", SUM),
    "Sigmoid": apply("Sigmoid", SUM),  # a rule takes the maximum before the function
    "Softplus": moved("Softplus"),
}


def any_price(seed: int) -> Price:
    def price(laid: Mapping[int, tuple[Candidate, ...]]) -> dict[int, tuple[Candidate, ...]]:
        random = Random(seed)
        return {number: tuple(replace(each, cost_us=random.uniform(0.1, 3.0)) for each in options) for number, options in laid.items()}

    return price


def graph_of(root: Node, *others: Node) -> Graph:
    return Graph("compared", (X, Y), tuple((f"o{place}", node) for place, node in enumerate((root, *others))), {})


@pytest.mark.parametrize("function", HEATS)
@pytest.mark.parametrize("with_sum", [False, True])
def test_one_kernel_computes_what_is_compared_with_its_maxima(function: str, with_sum: bool) -> None:
    graph = graph_of(peaks(HEATS[function]), *([SUM] if with_sum else []))
    for seed in range(4):
        program = estimated_program(graph, price=any_price(seed))
        assert sum(node.op == function for kernel in program.kernels for node in walk((kernel.fragment,))) == 1


def test_peaks_are_those_of_the_values_that_the_program_shows() -> None:
    random = np.random.default_rng(0)
    feeds = {name: (3 * random.standard_normal(X.type.sizes)).astype(np.float32) for name in ("x", "y")}
    graph = graph_of(peaks(HEATS["Mish"]), HEATS["Mish"], SUM)
    found, heat, _ = open_program(estimated_program(graph)).run(None, feeds)
    padded = np.pad(heat, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    maxima = np.max([padded[:, :, i : i + 13, j : j + 11] for i in range(3) for j in range(3)], axis=0)
    np.testing.assert_array_equal(found, maxima == heat)


def test_a_row_and_its_maximum_behind_other_operators() -> None:
    """A threshold is such a case: the minimum of some of a row's values."""
    row = apply("Tanh", SUM)
    some = apply("Slice", row, starts=(0, 0, 0, 0), ends=(2, 5, 13, 4), steps=(1,) * 4)
    least = apply("Expand", apply("ReduceMin", some, axes=(3,)), shape=X.type.sizes)
    frozen = grown(graph_of(apply("Less", row, least)), shipped_rules())
    _, stored = compared_once(frozen)
    assert [number for number in stored if any(node.op == "Tanh" for node in frozen.classes[number])] == list(stored) != []


@pytest.mark.parametrize("root", [apply("Less", SUM, apply("Mul", X, Y)), apply("MaxPool", SUM, **WINDOW), peaks(X)])
def test_other_values_stay_free(root: Node) -> None:
    """Values of different sums, values that are not compared, and inputs, which have only one set of bits, are not restricted."""
    frozen = grown(graph_of(root), shipped_rules())
    same, stored = compared_once(frozen)
    assert same is frozen and not stored
    assert candidates(frozen)
