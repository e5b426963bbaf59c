"""Every operator is recovered from its own meaning, in any layout of its operands, and the recovered program computes the same."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest

from egraph.derive.matching.match import match, operators
from egraph.tensor import Node, TensorType, placeholder, placeholders, walk
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.ops import OPS, apply
from egraph.tensor.ops.reference import evaluate, fragment_expression

CONTRACTIONS = ("MatMul", "Conv", "ConvTranspose")
WINDOWS = ("MaxPool", "AveragePool", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceMean", "Softmax", "LogSoftmax")
MOVEMENTS = ("Transpose", "Reshape", "Slice", "Pad", "Concat", "Expand")
BYTES = ("Cast", "Quantize", "Dequantize")
ELEMENTWISE = tuple(sorted(name for name, spec in OPS.items() if spec.category == "elementwise" and name not in BYTES))
"""Operators over numbers. Cast is excluded: its operand is an index, and no derivation reads the index's tensor."""


def samples(operator: str, count: int) -> list[Node]:
    """Draw an operator over placeholders."""
    random, spec = Random(f"matching {operator}"), OPS[operator]
    drawn = []
    for _ in range(count):
        shapes, attributes = spec.sample(random)
        dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
        leaves = [placeholder(k, TensorType(dtype, shape)) for k, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True))]
        drawn.append(apply(operator, *leaves, **attributes))
    return drawn


def shuffled(node: Node, random: Random) -> Node:
    """Return an operator whose operands and result are each in another layout, with transposes around it."""
    operands = []
    for k, operand in enumerate(node.inputs):
        perm = random.sample(range(operand.type.rank), operand.type.rank)
        sizes = [0] * len(perm)
        for place, axis in enumerate(perm):
            sizes[axis] = operand.type.sizes[place]
        operands.append(apply("Transpose", placeholder(k, TensorType(operand.type.dtype, tuple(sizes))), perm=tuple(perm)))
    result = apply(node.op, *operands, attributes=node.attributes)
    return apply("Transpose", result, perm=tuple(random.sample(range(result.type.rank), result.type.rank)))


def agree(programs: tuple[Node, ...], expected: Node) -> None:
    """Compare programs in F_p with the node from which they were derived."""
    generator = np.random.default_rng(7)
    leaves = {
        leaf: generator.integers(0, 2 if leaf.type.dtype == "bool" else PRIME, leaf.type.sizes)
        for root in (expected, *programs)
        for leaf in walk((root,))
        if leaf.op == "Placeholder"
    }
    values = evaluate((expected, *programs), leaves, "prime")
    for program, value in zip(programs, values[1:], strict=True):
        assert program.type.sizes == expected.type.sizes
        assert np.array_equal(value, values[0]), program


def uses(program: Node, operator: str) -> bool:
    return any(node.op == operator for node in walk((program,)))


def degenerate(node: Node) -> bool:
    """Return whether the operator is a different one here: an axis of size 1 removes a window or a sum."""
    return 1 in node.type.sizes or any(1 in operand.type.sizes for operand in node.inputs)


@pytest.mark.parametrize("operator", CONTRACTIONS)
def test_contractions_are_found_in_their_meaning(operator: str) -> None:
    nodes = samples(operator, 240)
    plain = [node for node in nodes if not degenerate(node)][:12]
    for node in nodes[:20]:
        agree(operators(fragment_expression(node), node.inputs), node)
    assert len(plain) >= 8
    found = [node for node in plain if any(uses(program, operator) for program in operators(fragment_expression(node), node.inputs))]
    assert found == plain


@pytest.mark.parametrize("operator", CONTRACTIONS)
def test_contractions_are_found_under_other_layouts(operator: str) -> None:
    random = Random(3)
    plain = [node for node in samples(operator, 240) if not degenerate(node)][:6]
    assert len(plain) == 6
    for node in plain:
        other = shuffled(node, random)
        leaves = tuple(placeholders(other))
        programs = operators(fragment_expression(other), leaves)
        assert any(uses(program, operator) for program in programs)
        agree(programs, other)


@pytest.mark.parametrize("operator", WINDOWS)
def test_windows_and_reductions_are_found_in_their_meaning(operator: str) -> None:
    plain = 0
    for node in samples(operator, 60 if operator == "MaxPool" else 30):
        programs = match(fragment_expression(node), node.inputs)
        agree(programs, node)
        kernel: Any = dict(node.attributes).get("kernel_shape", (2,))
        unit = any(1 in operand.type.sizes for operand in node.inputs) or (operator == "AveragePool" and 1 in node.type.sizes)
        if not unit and set(kernel) != {1}:
            plain += 1
            assert any(uses(program, operator) for program in programs), node.attributes
    assert plain >= 3


@pytest.mark.parametrize("operator", MOVEMENTS)
def test_movements_are_found_in_their_meaning(operator: str) -> None:
    for node in samples(operator, 30):
        programs = match(fragment_expression(node), node.inputs)
        assert programs
        agree(programs, node)
        kinds = {inner.op for inner in walk((programs[0],))}
        assert kinds <= {*MOVEMENTS, "Placeholder"} or dict(node.attributes).get("mode", "constant") != "constant"


@pytest.mark.parametrize("operator", ELEMENTWISE)
def test_elementwise_operators_are_found_in_their_meaning(operator: str) -> None:
    for node in samples(operator, 4):
        programs = operators(fragment_expression(node), node.inputs)
        agree(programs, node)
        if 1.0 not in dict(node.attributes).values():  # a factor of one disappears
            assert any(uses(program, operator) for program in programs), node.attributes
