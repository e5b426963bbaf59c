"""Layouts: convolution and pooling with channels last are the same with transposes around, which cancel between neighbours."""

from __future__ import annotations

from egraph.rule import Attributes, Rule, Steps, Tensor, Weight, operation, require
from egraph.rule_operators import transpose
from egraph.rules.family import named, snake

# One direction is enough: every operator gets its channels-last twin, and transposes move and cancel by the movement rules.


def to_last(rank: int) -> tuple[int, ...]:
    """Return the permutation [N, C, spatial] -> [N, spatial, C]."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """Return the permutation [N, spatial, C] -> [N, C, spatial]."""
    return (0, rank - 1, *range(1, rank - 1))


def _contraction_channels_last(op: str) -> Rule:
    def law(x: Tensor, w: Weight, a: Attributes) -> Steps:
        yield operation(op, x, w, by=a)
        require(a.layout == "NCHW", "the layout must be channels first")
        y = operation(op, transpose(x, perm=to_last(x.rank)), w, by=a.but(layout="NHWC"))
        yield transpose(y, perm=to_first(x.rank))

    return named(law, f"{snake(op)}_channels_last", f"{op}(x, w) = T^-1 {op}_channels_last(T x, w)")


def _pool_channels_last(op: str) -> Rule:
    def law(x: Tensor, a: Attributes) -> Steps:
        yield operation(op, x, by=a)
        require(a.layout == "NCHW", "the layout must be channels first")
        y = operation(op, transpose(x, perm=to_last(x.rank)), by=a.but(layout="NHWC"))
        yield transpose(y, perm=to_first(x.rank))

    return named(law, f"{snake(op)}_channels_last", f"{op}(x) = T^-1 {op}_channels_last(T x)")


RULES: tuple[Rule, ...] = (
    *(_contraction_channels_last(op) for op in ("Conv", "ConvTranspose")),
    *(_pool_channels_last(op) for op in ("MaxPool", "AveragePool")),
)
