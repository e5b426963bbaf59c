"""Sums, means and maxima along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from egraph.rule import Attributes, Equation, Rounding, Steps, Tensor, Weight, require, require_number
from egraph.rule_operators import concat, expand, maximum, pad, reduce_max, reduce_mean, reduce_sum, transpose
from tests.xla_rules.claims import Claim, Truth, claim, member

Reduction: TypeAlias = Callable[[Tensor, Attributes], Tensor]
Join: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def sum_of(x: Tensor, y: Tensor) -> Tensor:
    return x + y


def product_of(x: Tensor, y: Tensor) -> Tensor:
    return x * y


def pads_along(p: Attributes, axes: tuple[int, ...]) -> bool:
    """Whether nothing is padded along other axes."""
    return all(i in axes or (before == 0 and after == 0) for i, (before, after) in enumerate(zip(p.before, p.after, strict=True)))


def reduced_shape(e: Attributes, a: Attributes) -> tuple[int, ...]:
    return tuple(1 if i in a.axes else size for i, size in enumerate(e.shape))


def of_negated(truth: Truth, name: str, text: str, reduce: Reduction, rounding: Rounding) -> Claim:
    """reduce(-x) = -reduce(x)"""

    def law(x: Tensor, a: Attributes) -> Equation:
        return reduce(-x, a) == -reduce(x, a)

    return member(truth, name, text, law, rounding)


def of_pair(truth: Truth, name: str, text: str, join: Join, rounding: Rounding = "reassociates", *, broadcasts: bool = False) -> Claim:
    """sum(join(x, y)) = join(sum(x), sum(y))"""

    def law(x: Tensor, y: Tensor, a: Attributes) -> Steps:
        yield reduce_sum(join(x, y), a)
        if broadcasts:
            require(x.rank == y.rank, "the axes are the same")
        else:
            require(x.shape == y.shape, "neither may broadcast")
        yield join(reduce_sum(x, a), reduce_sum(y, a))

    return member(truth, name, text, law, rounding)


def past_number(truth: Truth, name: str, text: str, reduce: Reduction, join: Join) -> Claim:
    """reduce(join(x, c)) = join(reduce(x), c), for one number c"""

    def law(x: Tensor, c: Weight, a: Attributes) -> Steps:
        yield reduce(join(x, c), a)
        require(c.rank == 0, "a number")
        yield join(reduce(x, a), c)

    return member(truth, name, text, law, "reassociates")


def of_expanded(truth: Truth, name: str, text: str, reduce: Reduction, rounding: Rounding = "reassociates") -> Claim:
    """reduce(expand(x)) = expand(x), over axes of size one in x"""

    def law(x: Tensor, e: Attributes, a: Attributes) -> Steps:
        yield reduce(expand(x, e), a)
        require(x.rank == len(e.shape), "no axis is added")
        require(all(x.shape[axis] == 1 for axis in a.axes), "only repeated numbers are reduced")
        yield expand(x, shape=reduced_shape(e, a))

    return member(truth, name, text, law, rounding)


@claim("false")
def maximum_of_some_expanded(x: Tensor, e: Attributes, a: Attributes) -> Steps:
    """max(expand(x)) = max(x), but the axes of x are others"""
    yield reduce_max(expand(x, e), a)
    require(x.rank < len(e.shape) and all(axis < x.rank for axis in a.axes), "axes are added in front")
    yield expand(reduce_max(x, a), shape=reduced_shape(e, a))


@claim("true")
def maximum_of_transposed(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """max(transpose(x), a) = transpose(max(x, p[a]))"""
    yield reduce_max(transpose(x, p), a)
    yield transpose(reduce_max(x, axes=tuple(sorted(p.perm[axis] for axis in a.axes))), p)


@claim("false")
def maximum_of_wrongly_transposed(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """max(transpose(x), a) = transpose(max(x, a)) of equal sizes, but the axes move"""
    yield reduce_max(transpose(x, p), a)
    require(x.rank == 2 and p.perm == (1, 0) and a.axes == (0,), "columns of a matrix")
    yield transpose(transpose(reduce_max(x, a), p), p)


@claim("true", "reassociates")
def maximum_of_joined(x: Tensor, y: Tensor, c: Attributes, a: Attributes) -> Steps:
    """max(concat(x, y)) = max(max(x), max(y)), along the axis"""
    yield reduce_max(concat(x, y, a=c), a)
    require(c.axis in a.axes, "the axis is reduced")
    yield maximum(reduce_max(x, a), reduce_max(y, a))


@claim("false")
def maximum_of_joined_elsewhere(x: Tensor, y: Tensor, c: Attributes, a: Attributes) -> Steps:
    """max(concat(x, y)) = max(max(x), max(y)), but the axis may stay"""
    yield reduce_max(concat(x, y, a=c), a)
    require(x.shape == y.shape, "one shape")
    require(c.axis not in a.axes, "the axis stays")
    yield concat(maximum(reduce_max(x, a), reduce_max(y, a)), reduce_max(y, a), a=c)


def mean_of_joined(truth: Truth, name: str, text: str, accepts: Callable[[Tensor, Tensor], bool]) -> Claim:
    """mean(concat(x, y)) 2 = mean(x) + mean(y)"""

    def law(x: Tensor, y: Tensor, half: Weight, c: Attributes, a: Attributes) -> Steps:
        yield reduce_mean(concat(x, y, a=c), a) * half
        require(c.axis in a.axes and accepts(x, y), "the axis is reduced, in parts that are accepted")
        require_number(half, 2.0)
        require(half.rank == 0, "a number")
        yield reduce_mean(x, a) + reduce_mean(y, a)

    return member(truth, name, text, law, "reassociates")


def of_padded(truth: Truth, name: str, text: str, reduce: Reduction, rounding: Rounding, *, zeros: bool = True) -> Claim:
    """reduce(pad(x)) = reduce(x), padded along what is reduced"""

    def law(x: Tensor, p: Attributes, a: Attributes) -> Steps:
        yield reduce(pad(x, p), a)
        require(p.mode == "constant" and (not zeros or p.value == 0.0), "zeros")
        require(pads_along(p, a.axes), "along what is reduced")
        yield reduce(x, a)

    return member(truth, name, text, law, rounding)


CLAIMS = (
    of_negated("true", "sum_of_negated", "sum(-x) = -sum(x)", reduce_sum, "reassociates"),
    of_negated("false", "maximum_of_negated", "max(-x) = -max(x)", reduce_max, "exact"),
    of_pair("true", "sum_of_sums", "sum(x + y) = sum(x) + sum(y), of one shape", sum_of),
    of_pair("false", "sum_of_broadcast_sums", "sum(x + y) = sum(x) + sum(y), but one may broadcast", sum_of, broadcasts=True),
    of_pair("false", "sum_of_products", "sum(x y) = sum(x) sum(y)", product_of, "assumes finite"),
    past_number("true", "maximum_of_shifted", "max(x + c) = max(x) + c, for one number", reduce_max, sum_of),
    past_number("false", "sum_of_shifted", "sum(x + c) = sum(x) + c, but c is counted once", reduce_sum, sum_of),
    past_number("false", "maximum_of_scaled", "max(x c) = max(x) c, but c may be negative", reduce_max, product_of),
    of_expanded("true", "maximum_of_expanded", "max(expand(x)) = expand(x), over axes of size one in x", reduce_max, "exact"),
    of_expanded("true", "mean_of_expanded", "mean(expand(x)) = expand(x), over axes of size one in x", reduce_mean),
    of_expanded("false", "sum_of_expanded", "sum(expand(x)) = expand(x), but every copy counts", reduce_sum),
    maximum_of_some_expanded, maximum_of_transposed, maximum_of_wrongly_transposed, maximum_of_joined, maximum_of_joined_elsewhere,
    mean_of_joined("false", "mean_of_joined", "mean(concat(x, y)) 0.5 = ..., but the parts may have different sizes", lambda x, y: True),
    mean_of_joined("true", "mean_of_equal_parts", "mean(concat(x, y)) 2 = mean(x) + mean(y), of equal sizes",
                   lambda x, y: x.shape == y.shape),
    of_padded("true", "sum_of_padded", "sum(pad(x)) = sum(x), padded with zeros along what is reduced", reduce_sum, "reassociates"),
    of_padded("false", "sum_of_wrongly_padded", "sum(pad(x)) = sum(x), but with any number", reduce_sum, "reassociates", zeros=False),
    of_padded("false", "maximum_of_padded", "max(pad(x)) = max(x), but all of x may be less than zero", reduce_max, "exact"),
)  # fmt: skip
