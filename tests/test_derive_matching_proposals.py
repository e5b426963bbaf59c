"""Proposals of merges in a graph: what goes together, never what depends on each other, and always the same value."""

from __future__ import annotations

import numpy as np

from egraph.derive.matching.proposals import proposals
from egraph.expr.functions import PRIME
from egraph.ir import Node, TensorType, placeholder, walk
from egraph.ops import apply
from egraph.ops.reference import evaluate


def leaf(position: int, *shape: int) -> Node:
    return placeholder(position, TensorType("float32", shape))


def conv(data: Node, weight: Node, pads: tuple[int, ...], group: int = 1) -> Node:
    return apply("Conv", data, weight, strides=(1, 1), dilations=(1, 1), pads=pads, group=group, layout="NCHW")


def checked(*roots: Node) -> dict[str, int]:
    """Return the number of members of each proposal, having compared every program with its member in F_p."""
    generator = np.random.default_rng(2)
    leaves = {n: generator.integers(0, PRIME, n.type.sizes) for n in walk(roots) if n.op == "Placeholder"}
    found = {}
    for proposal in proposals(roots):
        members, programs = (evaluate(nodes, leaves, "prime") for nodes in (proposal.members, proposal.programs))
        assert all(np.array_equal(a, b) for a, b in zip(members, programs, strict=True))
        found[proposal.name] = len(proposal.members)
    return found


def test_a_global_convolution_block() -> None:
    """GCN: k x 1 then 1 x k beside 1 x k then k x 1; the first of each branch share an input, the second do not."""
    x = leaf(0, 1, 6, 9, 9)
    left = conv(conv(x, leaf(1, 4, 6, 5, 1), (2, 0, 2, 0)), leaf(2, 4, 4, 1, 5), (0, 2, 0, 2))
    right = conv(conv(x, leaf(3, 4, 6, 1, 5), (0, 2, 0, 2)), leaf(4, 4, 4, 5, 1), (2, 0, 2, 0))
    assert checked(apply("Add", left, right)) == {"taps of one input": 2}


def test_parallel_branches_of_equal_shapes() -> None:
    branches = [conv(leaf(2 * k, 1, 4, 6, 6), leaf(2 * k + 1, 3, 4, 3, 3), (1, 1, 1, 1)) for k in range(3)]
    assert checked(*branches) == {"convolutions of different inputs": 3}
    products = [apply("MatMul", leaf(2 * k, 5, 4), leaf(2 * k + 1, 4, 3)) for k in range(2)]
    assert checked(apply("Add", *products)) == {"products of different inputs": 2}


def test_what_depends_on_each_other_is_not_merged() -> None:
    square = apply("MatMul", leaf(0, 4, 4), leaf(1, 4, 4))
    assert checked(apply("MatMul", square, leaf(2, 4, 4))) == {}


def test_grouped_filters_of_one_input() -> None:
    x = leaf(0, 1, 4, 6, 6)
    branches = [conv(x, leaf(k, 2 * k + 2, 2, 3, 3), (1, 1, 1, 1), group=2) for k in (1, 2)]
    assert checked(*branches) == {"grouped filters of one input": 2}
