"""Slices and concatenations compose, cancel, and move through elementwise operators."""

from __future__ import annotations

from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, Weight, require, rule
from egraph.rule_operators import binary, concat, expand, slice_, unary
from egraph.rules.axes import padded_shape
from egraph.rules.family import BINARY, UNARY, named, of_arity, snake


def _is_whole(a: Attributes, shape: tuple[int, ...]) -> bool:
    return all(start == 0 and ((step == 1 and end == size) or size == 1)
               for start, end, step, size in zip(a.starts, a.ends, a.steps, shape, strict=True))


@rule
def slice_nothing(x: Tensor, a: Attributes) -> Steps:
    """slice(x, everything) = x"""
    yield slice_(x, a)
    require(_is_whole(a, x.shape), "the slice must keep everything in order")
    yield x


@rule
def slice_twice(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """slice(slice(x, a), b) = slice(x, a then b)"""
    result = slice_(slice_(x, a), b)
    yield result
    starts = tuple(s + t * step for s, t, step in zip(a.starts, b.starts, a.steps, strict=True))
    steps = tuple(s * t for s, t in zip(a.steps, b.steps, strict=True))
    ends = tuple(start + n * step for start, n, step in zip(starts, result.shape, steps, strict=True))
    yield slice_(x, starts=starts, ends=ends, steps=steps)


def slice_of_concat(x: list[Tensor], c: Attributes, a: Attributes) -> Steps:
    """The slice must lie within one operand; where it takes it whole, it is that operand."""
    result = slice_(concat(*x, a=c), a)
    yield result
    axis, begin = c.axis, 0
    last = a.starts[axis] + (result.shape[axis] - 1) * a.steps[axis]
    for each in x:
        end = begin + each.shape[axis]
        if begin <= a.starts[axis] and begin <= last and a.starts[axis] < end and last < end:
            starts = tuple(s - begin if i == axis else s for i, s in enumerate(a.starts))
            ends = tuple(e - begin if i == axis else e for i, e in enumerate(a.ends))
            yield slice_(each, starts=starts, ends=ends, steps=a.steps)
            return
        begin = end
    require(False, "the slice must lie within one operand of the concatenation")


def concat_of_slices(x: Tensor, a: Attributes, b: Attributes, c: Attributes) -> Steps:
    yield concat(slice_(x, a), slice_(x, b), a=c)
    axis = c.axis
    require(a.steps == b.steps, "the steps must agree")
    require(all(a.starts[i] == b.starts[i] and a.ends[i] == b.ends[i] for i in range(x.rank) if i != axis), "the other axes must agree")
    require(a.ends[axis] == b.starts[axis], "the second slice must begin where the first ends")
    yield slice_(x, starts=a.starts, ends=b.ends, steps=a.steps)


def _slice_through_unary(op: str) -> Rule:
    def into(x: Tensor, a: Attributes) -> Equation:
        return slice_(unary(op, x), a) == unary(op, slice_(x, a))

    return named(into, f"slice_into_{snake(op)}", f"slice({op}(x)) = {op}(slice(x))")


def _cut(x: Tensor, a: Attributes) -> Tensor:
    """Return x cut like a result that it broadcasts to: axes of size one are repeated, so they stay."""
    offset = len(a.starts) - x.rank
    keep = [x.shape[i] == 1 for i in range(x.rank)]
    return slice_(
        x,
        starts=tuple(0 if keep[i] else a.starts[offset + i] for i in range(x.rank)),
        ends=tuple(1 if keep[i] else a.ends[offset + i] for i in range(x.rank)),
        steps=tuple(1 if keep[i] else a.steps[offset + i] for i in range(x.rank)))


def _slice_through_binary(op: str) -> Rule:
    def into(x: Tensor, y: Tensor, a: Attributes) -> Steps:
        result = binary(op, x, y)
        yield slice_(result, a)
        yield binary(op, *(_cut(each, a) if each.type.elements > 1 else each for each in (x, y)))

    return named(into, f"slice_into_{snake(op)}", f"slice({op}(x, y)) = {op}(slice(x), slice(y))")


def _concat_of_unaries(op: str, n: int) -> Rule:
    def law(x: list[Tensor], c: Attributes) -> Steps:
        yield concat(*(unary(op, each) for each in x), a=c)
        yield unary(op, concat(*x, a=c))

    law.__name__ = f"concat_of_{snake(op)}"
    return of_arity(law, n, f"concat({op}(x_i)) = {op}(concat(x_i)),  i to {n}")


def _concat_of_binaries(op: str) -> Rule:
    def law(x: Tensor, y: Tensor, z: Tensor, w: Tensor, c: Attributes) -> Steps:
        yield concat(binary(op, x, y), binary(op, z, w), a=c)
        require(x.shape == y.shape and z.shape == w.shape, "neither may broadcast")
        yield binary(op, concat(x, z, a=c), concat(y, w, a=c))

    return named(law, f"concat_of_{snake(op)}_2", f"concat({op}(x, y), {op}(z, w)) = {op}(concat(x, z), concat(y, w))")


def _concat_of_biased(op: str) -> Rule:
    def law(x: Tensor, a: Weight, y: Tensor, b: Weight, c: Attributes) -> Steps:
        """Constants that do not vary along the axis are repeated along it first."""
        left, right = binary(op, x, a), binary(op, y, b)
        yield concat(left, right, a=c)
        require(left.shape == x.shape and right.shape == y.shape, "the constants must not widen their operands")
        whole = [expand(k, shape=tuple(size if i == c.axis else small for i, (size, small) in
                                       enumerate(zip(each.shape, padded_shape(k.shape, each.rank), strict=True))))
                 for each, k in ((x, a), (y, b))]
        require(all(p == q for i, (p, q) in enumerate(zip(whole[0].shape, whole[1].shape, strict=True)) if i != c.axis),
                "the constants must vary along the same axes")
        yield binary(op, concat(x, y, a=c), concat(*whole, a=c))

    return named(law, f"concat_of_{snake(op)}_with_constants", f"concat({op}(x, a), {op}(y, b)) = {op}(concat(x, y), concat(a, b))")


def _unary_into_concat(op: str, n: int) -> Rule:
    def law(x: list[Tensor], c: Attributes) -> Steps:
        """The kernels that make the parts may do it on the way."""
        yield unary(op, concat(*x, a=c))
        yield concat(*(unary(op, each) for each in x), a=c)

    law.__name__ = f"{snake(op)}_into_concat"
    return of_arity(law, n, f"{op}(concat(x_i)) = concat({op}(x_i)),  i to {n}")


def _binary_into_concat(op: str, n: int, *, second: bool = False) -> Rule:
    def sides(left: Tensor, right: Tensor) -> Tensor:
        return binary(op, right, left) if second else binary(op, left, right)

    def law(x: list[Tensor], y: Tensor, c: Attributes) -> Steps:
        """Where the other operand varies along the axis, each part meets its own part of it."""
        whole = concat(*x, a=c)
        result = sides(whole, y)
        yield result
        require(result.shape == whole.shape, "the other operand must not widen the concatenation")
        axis = c.axis - (whole.rank - y.rank)
        parts, begin = [], 0
        for each in x:
            end = begin + each.shape[c.axis]
            if axis < 0 or y.shape[axis] == 1:
                parts.append(sides(each, y))
            else:
                starts = tuple(begin if i == axis else 0 for i in range(y.rank))
                ends = tuple(end if i == axis else size for i, size in enumerate(y.shape))
                parts.append(sides(each, slice_(y, starts=starts, ends=ends, steps=(1,) * y.rank)))
            begin = end
        yield concat(*parts, a=c)

    law.__name__ = f"{snake(op)}_into_{'second_' if second else ''}concat"
    left, right = ("y, concat(x_i)", "slice_i(y), x_i") if second else ("concat(x_i), y", "x_i, slice_i(y)")
    return of_arity(law, n, f"{op}({left}) = concat({op}({right})),  i to {n}")


def _flatten_concat(position: int, outer: int, inner: int) -> Rule:
    def law(x: list[Tensor], y: list[Tensor], c: Attributes) -> Steps:
        left, right = x[:position], x[position:]
        yield concat(*left, concat(*y, a=c), *right, a=c)
        yield concat(*left, *y, *right, a=c)

    law.__name__ = f"flatten_concat_{outer}_{inner}_at_{position}"
    return of_arity(law, {"x": outer - 1, "y": inner}, "concat(.., concat(y_i), ..) = concat(.., y_i, ..)")


@rule
def concat_of_one(x: Tensor, c: Attributes) -> Equation:
    """concat(x) = x"""
    return concat(x, a=c) == x


RULES: tuple[Rule, ...] = (
    slice_nothing, slice_twice,
    *(of_arity(slice_of_concat, n, f"slice(concat(x_i)) = slice(x_k),  i to {n}") for n in (2, 3, 4)),
    named(concat_of_slices, "concat_of_slices", "concat(x[i:j], x[j:k]) = x[i:k]"),
    *(_slice_through_unary(op) for op in UNARY), *(_slice_through_binary(op) for op in BINARY),
    *(_concat_of_unaries(op, n) for op in ("Relu", "Sigmoid", "Tanh") for n in (2, 3, 4)),
    *(_unary_into_concat(op, n) for op in ("Relu", "Sigmoid", "HardSwish") for n in (2, 3, 4)),
    *(_binary_into_concat(op, n) for op in ("Add", "Mul") for n in (2, 3, 4)),
    *(_binary_into_concat("Add", n, second=True) for n in (2, 3, 4)),
    *(_concat_of_binaries(op) for op in ("Add", "Mul", "Sub")), *(_concat_of_biased(op) for op in ("Add", "Mul")),
    *(_flatten_concat(position, outer, inner) for outer in (2, 3) for inner in (2, 3) for position in range(outer)),
    concat_of_one,
)
