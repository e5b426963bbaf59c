"""Reshapes, slices, concatenations, padding and expansion: they compose, cancel and move through elementwise operators."""

from __future__ import annotations

import math

from egraph.rule import Attributes, Equation, Rounding, Rule, Steps, Tensor, Weight, operation, require, rule
from egraph.rule_operators import binary, concat, expand, pad, reshape, slice_, unary
from egraph.rules.axes import padded_shape
from egraph.rules.family import BINARY, UNARY, UNARY_WITH_ATTRIBUTES, named, of_arity, snake


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
        if begin <= min(a.starts[axis], last) and max(a.starts[axis], last) < end:
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


@rule
def pad_nothing(x: Tensor, p: Attributes) -> Steps:
    """pad(x, nothing) = x"""
    yield pad(x, p)
    require(not any(p.before) and not any(p.after), "there must be no padding")
    yield x


@rule
def pad_twice(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """pad(pad(x, p), q) = pad(x, p + q),  with one value"""
    yield pad(pad(x, p), q)
    require(p.mode == q.mode == "constant" and p.value == q.value, "both must pad with the same constant")
    before, after = (tuple(a + b for a, b in zip(one, two, strict=True)) for one, two in ((p.before, q.before), (p.after, q.after)))
    yield pad(x, p.but(before=before, after=after))


@rule
def slice_of_pad(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """slice(pad(x)) = slice(x),  where padding is cut off again"""
    padded = slice_(pad(x, p), a)
    yield padded
    lasts = [s + (n - 1) * step for s, n, step in zip(a.starts, padded.shape, a.steps, strict=True)]
    lows, highs = [min(s, e) for s, e in zip(a.starts, lasts, strict=True)], [max(s, e) for s, e in zip(a.starts, lasts, strict=True)]
    inside = all(before <= low and high < before + size for before, low, high, size in zip(p.before, lows, highs, x.shape, strict=True))
    require(inside, "the slice must lie within x")
    yield slice_(x, starts=tuple(s - b for s, b in zip(a.starts, p.before, strict=True)),
                 ends=tuple(e - b for e, b in zip(a.ends, p.before, strict=True)), steps=a.steps)


@rule
def expand_nothing(x: Tensor, a: Attributes) -> Steps:
    """expand(x, the shape of x) = x"""
    yield expand(x, a)
    require(x.shape == a.shape, "the shape must stay")
    yield x


@rule
def expand_twice(x: Tensor, a: Attributes, b: Attributes) -> Equation:
    """expand(expand(x, a), b) = expand(x, b)"""
    return expand(expand(x, a), b) == expand(x, b)


def _expand_out_of_unary(op: str) -> Rule:
    def law(x: Tensor, a: Attributes) -> Equation:
        return unary(op, expand(x, a)) == expand(unary(op, x), a)

    return named(law, f"expand_out_of_{snake(op)}", f"{op}(expand(x)) = expand({op}(x))")


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
    reshape_twice, reshape_nothing,
    *(_reshape_out_of_unary(op) for op in UNARY), *(_reshape_out_of_unary_with_attributes(op) for op in UNARY_WITH_ATTRIBUTES),
    *(_reshape_out_of_operator_along_an_axis(op) for op in ("Softmax", "LogSoftmax")),
    *(law for op in BINARY for law in _reshape_out_of_binary(op)),
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
    concat_of_one, pad_nothing, pad_twice, slice_of_pad, expand_nothing, expand_twice,
    *(_expand_out_of_unary(op) for op in UNARY),
    *(_reduce_twice(op, "exact") for op in ("ReduceMax", "ReduceMin")),
    *(_reduce_twice(op, "reassociates") for op in ("ReduceSum", "ReduceMean")),
    *(_reduce_one(op) for op in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean")),
    *(_reduce_scaled(op) for op in ("ReduceSum", "ReduceMean")),
)
