"""Reductions compose, vanish over axes of size one, and let constant factors out."""

from __future__ import annotations

from egraph.rule import Attributes, Rounding, Rule, Steps, Tensor, Weight, operation, require
from egraph.rules.axes import padded_shape
from egraph.rules.family import named, snake


def _reduce_twice(op: str, rounding: Rounding) -> Rule:
    def law(x: Tensor, a: Attributes, b: Attributes) -> Steps:
        yield operation(op, operation(op, x, by=a), by=b)
        yield operation(op, x, axes=tuple(sorted({*a.axes, *b.axes})))

    return named(law, f"{snake(op)}_twice", f"{op}({op}(x, a), b) = {op}(x, a and b)", rounding=rounding)


def _reduce_one(op: str) -> Rule:
    def law(x: Tensor, a: Attributes) -> Steps:
        yield operation(op, x, by=a)
        require(all(x.shape[axis] == 1 for axis in a.axes), "the axes must have size one")
        yield x

    return named(law, f"{snake(op)}_of_one", f"{op}(x, axes of size one) = x")


def _reduce_scaled(op: str) -> Rule:
    def law(x: Tensor, s: Weight, a: Attributes) -> Steps:
        product = x * s
        yield operation(op, product, by=a)
        shape = padded_shape(s.shape, product.rank)
        require(product.shape == x.shape and all(shape[axis] == 1 for axis in a.axes), "the factor must not vary along the reduced axes")
        yield operation(op, x, by=a) * s

    return named(law, f"scale_out_of_{snake(op)}", f"{op}(x * s) = {op}(x) * s,  s constant along the axes", rounding="reassociates")


RULES: tuple[Rule, ...] = (
    *(_reduce_twice(op, "exact") for op in ("ReduceMax", "ReduceMin")),
    *(_reduce_twice(op, "reassociates") for op in ("ReduceSum", "ReduceMean")),
    *(_reduce_one(op) for op in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean")),
    *(_reduce_scaled(op) for op in ("ReduceSum", "ReduceMean")),
)
