"""Test terms over flat memory: parts that an expression shares are shared by its terms."""

from __future__ import annotations

from egraph.tensor.ops import apply
from lower.eoperator.request import KernelRequest, kernel_of
from lower.eoperator.terms import subterms
from tests.support.fragments import leaf


def test_a_part_that_is_read_in_many_places_becomes_one_term() -> None:
    """Sixty steps read their operand twice each, which would be 2^60 reads as a tree."""
    node = leaf(0, 4, 4)
    for _ in range(60):
        node = apply("Add", apply("Tanh", node), node)
    assert len(subterms((kernel_of(KernelRequest(node)).root,))) == 2 * 60 + 1


def test_a_reduction_that_is_read_in_several_places_is_one() -> None:
    """The mean is read by the difference from it and by the square of the difference."""
    x = leaf(0, 4, 8)
    mean = apply("ReduceSum", x, axes=(1,))
    difference = apply("Sub", x, apply("Expand", apply("Reshape", mean, shape=(4, 1)), shape=(4, 8)))
    node = apply("Add", apply("Mul", difference, difference), difference)
    terms = subterms((kernel_of(KernelRequest(node)).root,))
    assert sum(term.kind == "reduce" for term in terms) == 1
