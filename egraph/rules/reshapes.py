"""Reshapes compose, cancel, and move through elementwise operators."""

from __future__ import annotations

import math

from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, Weight, operation, require, rule
from egraph.rule_operators import binary, reshape, unary
from egraph.rules.family import BINARY, UNARY, UNARY_WITH_ATTRIBUTES, named, snake


@rule
def reshape_twice(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """reshape(reshape(x, a), b) = reshape(x, b)"""
    yield reshape(reshape(x, a), b)
    yield x if x.shape == b.shape else reshape(x, b)


@rule
def reshape_nothing(x: Tensor, a: Attributes) -> Steps:
    """reshape(x, the shape of x) = x"""
    yield reshape(x, a)
    require(x.shape == a.shape, "the shape must stay")
    yield x


# Reshapes move one way, towards the results, where they meet and join. The other way would double every e-node.


def _reshape_out_of_unary(op: str) -> Rule:
    def law(x: Tensor, r: Attributes) -> Equation:
        return unary(op, reshape(x, r)) == reshape(unary(op, x), r)

    return named(law, f"reshape_out_of_{snake(op)}", f"{op}(reshape(x)) = reshape({op}(x))")


def _reshape_out_of_unary_with_attributes(op: str) -> Rule:
    def law(x: Tensor, r: Attributes, a: Attributes) -> Equation:
        return unary(op, reshape(x, r), a) == reshape(unary(op, x, a), r)

    return named(law, f"reshape_out_of_{snake(op)}", f"{op}(reshape(x)) = reshape({op}(x))")


def _reshape_out_of_operator_along_an_axis(op: str) -> Rule:
    def law(x: Tensor, r: Attributes, a: Attributes) -> Steps:
        yield operation(op, reshape(x, r), by=a)
        before, size = math.prod(r.shape[: a.axis]), r.shape[a.axis]
        kept = [axis for axis in range(x.rank) if x.shape[axis] == size and math.prod(x.shape[:axis]) == before]
        require(bool(kept), "the reshape must keep the axis")
        yield reshape(operation(op, x, by=a.but(axis=kept[0])), r)

    return named(law, f"reshape_out_of_{snake(op)}", f"{op}(reshape(x), axis) = reshape({op}(x, axis'))")


def _varies_last(c: Tensor) -> bool:
    return all(size == 1 for size in c.shape[:-1])


def _reshape_out_of_binary(op: str) -> tuple[Rule, ...]:
    def out(x: Tensor, y: Tensor, r: Attributes) -> Steps:
        """Without broadcasting: a reshape may join axes of which one is repeated."""
        yield binary(op, reshape(x, r), reshape(y, r))
        require(x.shape == y.shape, "the operands must have the same shape")
        yield reshape(binary(op, x, y), r)

    def out_with_constant(x: Tensor, c: Weight, r: Attributes) -> Steps:
        """The last axis must come through whole if the constant varies along it."""
        yield binary(op, reshape(x, r), c)
        require(x.rank > 0 and c.rank <= len(r.shape), "the constant must not add axes")
        require(_varies_last(c), "the constant must vary along the last axis alone")
        require(c.type.elements == 1 or x.shape[-1] == r.shape[-1] == c.shape[-1], "the reshape must keep the last axis")
        yield reshape(binary(op, x, c.reshape(c.type.elements)), r)

    return (named(out, f"reshape_out_of_{snake(op)}", f"{op}(reshape(x), reshape(y)) = reshape({op}(x, y))"),
            named(out_with_constant, f"reshape_out_of_{snake(op)}_with_constant", f"{op}(reshape(x), c) = reshape({op}(x, c'))"))


RULES: tuple[Rule, ...] = (
    reshape_twice, reshape_nothing,
    *(_reshape_out_of_unary(op) for op in UNARY), *(_reshape_out_of_unary_with_attributes(op) for op in UNARY_WITH_ATTRIBUTES),
    *(_reshape_out_of_operator_along_an_axis(op) for op in ("Softmax", "LogSoftmax")),
    *(law for op in BINARY for law in _reshape_out_of_binary(op)),
)
