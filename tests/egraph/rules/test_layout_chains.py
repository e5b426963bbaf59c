"""Chains of layouts around one operator reduce to that operator: EinNet's cases of removing transposes around a softmax."""

from __future__ import annotations

import math

import pytest

from egraph.engine.saturate import saturate
from egraph.rule import Binding
from egraph.rules import RULES, rule_named
from egraph.tensor import FrozenEGraph, Graph, Node, TensorType, attributes, make
from egraph.tensor.ops import apply
from verify.application import objection

X = make("Input", (), attributes(name="x"), TensorType("float32", (8, 20, 30)))


def between(first: tuple[int, ...], axis: int, second: tuple[int, ...], op: str = "Softmax") -> Node:
    """x[8,20,30] as [8,4,5,30], transposed, normalised, transposed"""
    inner = apply("Transpose", apply("Reshape", X, shape=(8, 4, 5, 30)), perm=first)
    return apply("Transpose", apply(op, inner, axis=axis), perm=second)


def flat(node: Node) -> Node:
    return apply("Reshape", node, shape=(8, 20, 30))


def fewest_operators(frozen: FrozenEGraph) -> float:
    """Return the number of operators of the smallest program that is a chain."""
    least: dict[int, float] = {}
    for _ in frozen.classes:
        for number, nodes in frozen.classes.items():
            counts = [(node.op != "Input") + sum(least.get(child, math.inf) for child in node.children) for node in nodes]
            least[number] = min([least.get(number, math.inf), *counts])
    return least[frozen.roots[0]]


CASES = {
    "RTSTR": (flat(between((0, 2, 1, 3), 3, (0, 2, 1, 3))), 1),
    "RTST": (between((0, 2, 1, 3), 3, (0, 2, 1, 3)), 2),
    "RTSTR 3d": (flat(between((1, 2, 0, 3), 3, (2, 0, 1, 3))), 1),
    "along another axis, where EinNet keeps all five": (flat(between((1, 2, 0, 3), 2, (2, 0, 1, 3))), 1),
    "with a logarithm": (flat(between((0, 2, 1, 3), 3, (0, 2, 1, 3), "LogSoftmax")), 1),
    "along an axis that the reshape splits": (flat(between((0, 2, 1, 3), 1, (0, 2, 1, 3))), 3),
}


@pytest.mark.parametrize("case", CASES)
def test_layouts_around_a_softmax_go(case: str) -> None:
    root, count = CASES[case]
    assert fewest_operators(saturate(Graph("chain", (X,), (("y", root),), {}), RULES).frozen) == count


@pytest.mark.parametrize(("shape", "result", "axis"), [((8, 4, 5, 30), (8, 20, 30), 2), ((6, 7, 4), (2, 3, 7, 4), 2), ((1, 3, 1), (3,), 0)])
def test_a_softmax_behind_a_reshape_that_keeps_its_axis_is_proved(shape: tuple[int, ...], result: tuple[int, ...], axis: int) -> None:
    for name in ("reshape_out_of_softmax", "reshape_out_of_log_softmax"):
        binding = Binding({"x": TensorType("float32", shape)}, {"r": attributes(shape=result), "a": attributes(axis=axis)}, {})
        assert objection(rule_named(name), [binding]) == ""
