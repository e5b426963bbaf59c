"""Transposes: they compose, cancel, and move through everything that works along axes.

Elementwise operators let them through both ways, so that a transpose meets its inverse wherever the two are.
"""

from __future__ import annotations

from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, Weight, operation, require, rule
from egraph.rule_operators import binary, concat, expand, layer_normalization, pad, reshape, slice_, transpose, unary
from egraph.rules.axes import blocks, with_rank
from egraph.rules.family import BINARY, UNARY, UNARY_WITH_ATTRIBUTES, inverse, named, of_arity, snake


@rule
def transpose_twice(x: Tensor, p: Attributes, q: Attributes) -> Steps:
    """transpose(transpose(x, p), q) = transpose(x, p[q])"""
    yield transpose(transpose(x, p), q)
    perm = tuple(p.perm[axis] for axis in q.perm)
    yield x if perm == tuple(range(len(perm))) else transpose(x, perm=perm)


@rule
def transpose_nothing(x: Tensor, p: Attributes) -> Steps:
    """transpose(x, in order) = x"""
    yield transpose(x, p)
    require(list(p.perm) == sorted(p.perm), "the axes must stay in order")
    yield x


@rule
def transpose_is_reshape(x: Tensor, p: Attributes) -> Steps:
    """transpose(x) = reshape(x),  where only axes of size one move"""
    moved = transpose(x, p)
    yield moved
    kept = [axis for axis in p.perm if x.shape[axis] > 1]
    require(kept == sorted(kept), "axes of more than one element must stay in order")
    yield x.reshape(*moved.shape)


def _regroup(perm: tuple[int, ...], groups: list[list[int]]) -> tuple[int, ...] | None:
    """Return the order in which ``perm`` leaves whole groups of axes, or None when it tears one apart."""
    order, position = [], 0
    while position < len(perm):
        number = next(i for i, group in enumerate(groups) if perm[position] in group)
        if list(perm[position : position + len(groups[number])]) != groups[number]:
            return None
        order.append(number)
        position += len(groups[number])
    return tuple(order)


@rule
def transpose_of_reshape(x: Tensor, r: Attributes, p: Attributes) -> Steps:
    """transpose(reshape(x)) = reshape(transpose(x)),  where blocks of axes move whole"""
    moved = transpose(reshape(x, r), p)
    yield moved
    require(x.rank > 0 and len(r.shape) > 0, "scalars have no axes to move")
    cut = blocks(x.shape, r.shape)
    require(len(cut) > 1, "the reshape must keep at least two blocks of axes apart")
    order = _regroup(p.perm, [after for _, after in cut])
    require(order is not None, "the transpose must move whole blocks of the reshape")
    perm = tuple(axis for number in order or () for axis in cut[number][0])
    yield transpose(x, perm=perm).reshape(*moved.shape)


@rule
def reshape_of_transpose(x: Tensor, p: Attributes, r: Attributes) -> Steps:
    """reshape(transpose(x)) = transpose(reshape(x)),  where blocks of axes were moved whole

    A reshape that joins axes which were apart before the transpose does not commute with it."""
    turned = transpose(x, p)
    yield reshape(turned, r)
    require(x.rank > 0 and len(r.shape) > 0, "scalars have no axes to move")
    cut = blocks(turned.shape, r.shape)
    require(len(cut) > 1, "the reshape must keep at least two blocks of axes apart")
    back = inverse(p.perm)
    order = _regroup(back, [before for before, _ in cut])
    require(order is not None, "the reshape must join only axes that were neighbours before the transpose")
    sizes = [[r.shape[axis] for axis in after] for _, after in cut]
    shape = tuple(size for number in order or () for size in sizes[number])
    starts = [sum(len(sizes[number]) for number in (order or ())[:i]) for i in range(len(cut))]
    where = {number: range(starts[i], starts[i] + len(sizes[number])) for i, number in enumerate(order or ())}
    yield transpose(x.reshape(*shape), perm=tuple(axis for number in range(len(cut)) for axis in where[number]))


def _out_of_unary(op: str) -> tuple[Rule, Rule]:
    def out(x: Tensor, p: Attributes) -> Equation:
        return unary(op, transpose(x, p)) == transpose(unary(op, x), p)

    def into(x: Tensor, p: Attributes) -> Equation:
        return transpose(unary(op, x), p) == unary(op, transpose(x, p))

    return (named(out, f"transpose_out_of_{snake(op)}", f"{op}(transpose(x)) = transpose({op}(x))"),
            named(into, f"transpose_into_{snake(op)}", f"transpose({op}(x)) = {op}(transpose(x))"))


def _out_of_unary_with_attributes(op: str) -> tuple[Rule, Rule]:
    def out(x: Tensor, p: Attributes, a: Attributes) -> Equation:
        return unary(op, transpose(x, p), a) == transpose(unary(op, x, a), p)

    def into(x: Tensor, p: Attributes, a: Attributes) -> Equation:
        return transpose(unary(op, x, a), p) == unary(op, transpose(x, p), a)

    return (named(out, f"transpose_out_of_{snake(op)}", f"{op}(transpose(x)) = transpose({op}(x))"),
            named(into, f"transpose_into_{snake(op)}", f"transpose({op}(x)) = {op}(transpose(x))"))


def _through_binary(op: str) -> tuple[Rule, ...]:
    def out(x: Tensor, y: Tensor, p: Attributes) -> Steps:
        yield binary(op, transpose(x, p), transpose(y, p))
        yield transpose(binary(op, x, y), p)

    def out_with_constant(x: Tensor, c: Weight, p: Attributes) -> Steps:
        """A constant moves for nothing."""
        yield binary(op, transpose(x, p), c)
        require(c.rank <= x.rank, "the constant must not add axes")
        yield transpose(binary(op, x, transpose(with_rank(c, x.rank), perm=inverse(p.perm))), p)

    def into(x: Tensor, y: Tensor, p: Attributes) -> Steps:
        """Missing leading axes count as ones, which take part in the transpose."""
        result = binary(op, x, y)
        yield transpose(result, p)
        yield binary(op, *(operand if operand.type.elements == 1 and operand.rank < 2 else transpose(with_rank(operand, result.rank), p)
                           for operand in (x, y)))

    return (named(out, f"transpose_out_of_{snake(op)}", f"{op}(transpose(x), transpose(y)) = transpose({op}(x, y))"),
            named(out_with_constant, f"transpose_out_of_{snake(op)}_with_constant", f"{op}(transpose(x), c) = transpose({op}(x, c'))"),
            named(into, f"transpose_into_{snake(op)}", f"transpose({op}(x, y)) = {op}(transpose(x), transpose(y))"))


def transpose_out_of_concat(x: list[Tensor], p: Attributes, a: Attributes) -> Steps:
    yield concat(*(transpose(each, p) for each in x), a=a)
    yield transpose(concat(*x, axis=p.perm[a.axis]), p)


def transpose_into_concat(x: list[Tensor], p: Attributes, a: Attributes) -> Steps:
    yield transpose(concat(*x, a=a), p)
    yield concat(*(transpose(each, p) for each in x), axis=p.perm.index(a.axis))


def _moved(values: tuple[int, ...], perm: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(values[axis] for axis in perm)


@rule
def transpose_out_of_slice(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """slice(transpose(x)) = transpose(slice(x))"""
    yield slice_(transpose(x, p), a)
    back = inverse(p.perm)
    yield transpose(slice_(x, starts=_moved(a.starts, back), ends=_moved(a.ends, back), steps=_moved(a.steps, back)), p)


@rule
def transpose_into_slice(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """transpose(slice(x)) = slice(transpose(x))"""
    yield transpose(slice_(x, a), p)
    yield slice_(transpose(x, p), starts=_moved(a.starts, p.perm), ends=_moved(a.ends, p.perm), steps=_moved(a.steps, p.perm))


@rule
def transpose_out_of_pad(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """pad(transpose(x)) = transpose(pad(x))"""
    yield pad(transpose(x, p), a)
    back = inverse(p.perm)
    yield transpose(pad(x, a.but(before=_moved(a.before, back), after=_moved(a.after, back))), p)


@rule
def transpose_into_pad(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """transpose(pad(x)) = pad(transpose(x))"""
    yield transpose(pad(x, a), p)
    yield pad(transpose(x, p), a.but(before=_moved(a.before, p.perm), after=_moved(a.after, p.perm)))


@rule
def transpose_into_expand(x: Tensor, p: Attributes, a: Attributes) -> Steps:
    """transpose(expand(x)) = expand(transpose(x))"""
    yield transpose(expand(x, a), p)
    yield expand(transpose(with_rank(x, len(a.shape)), p), shape=_moved(a.shape, p.perm))


def _out_of_reduction(op: str) -> tuple[Rule, Rule]:
    def out(x: Tensor, p: Attributes, a: Attributes) -> Steps:
        yield operation(op, transpose(x, p), by=a)
        yield transpose(operation(op, x, axes=tuple(sorted(p.perm[axis] for axis in a.axes))), p)

    def into(x: Tensor, p: Attributes, a: Attributes) -> Steps:
        yield transpose(operation(op, x, by=a), p)
        yield operation(op, transpose(x, p), axes=tuple(sorted(p.perm.index(axis) for axis in a.axes)))

    return (named(out, f"transpose_out_of_{snake(op)}", f"{op}(transpose(x), axes) = transpose({op}(x, axes'))"),
            named(into, f"transpose_into_{snake(op)}", f"transpose({op}(x, axes)) = {op}(transpose(x), axes')"))


def _through_operator_along_an_axis(op: str) -> tuple[Rule, Rule]:
    def out(x: Tensor, p: Attributes, a: Attributes) -> Steps:
        yield operation(op, transpose(x, p), by=a)
        yield transpose(operation(op, x, by=a.but(axis=p.perm[a.axis])), p)

    def into(x: Tensor, p: Attributes, a: Attributes) -> Steps:
        yield transpose(operation(op, x, by=a), p)
        yield operation(op, transpose(x, p), by=a.but(axis=p.perm.index(a.axis)))

    return (named(out, f"transpose_out_of_{snake(op)}", f"{op}(transpose(x), axis) = transpose({op}(x, axis'))"),
            named(into, f"transpose_into_{snake(op)}", f"transpose({op}(x, axis)) = {op}(transpose(x), axis')"))


@rule
def transpose_out_of_layer_normalization(x: Tensor, s: Tensor, b: Tensor, p: Attributes, a: Attributes) -> Steps:
    """layer_normalization(transpose(x)) = transpose(layer_normalization(x)),  normalised axes stay"""
    yield layer_normalization(transpose(x, p), s, b, a)
    require(all(p.perm[axis] == axis for axis in range(a.axis, x.rank)), "the normalised axes must stay")
    yield transpose(layer_normalization(x, s, b, a), p)


RULES: tuple[Rule, ...] = (
    transpose_twice, transpose_nothing, transpose_is_reshape, transpose_of_reshape, reshape_of_transpose,
    *(law for op in UNARY for law in _out_of_unary(op)),
    *(law for op in UNARY_WITH_ATTRIBUTES for law in _out_of_unary_with_attributes(op)),
    *(law for op in BINARY for law in _through_binary(op)),
    *(of_arity(transpose_out_of_concat, n, f"concat(transpose(x_i)) = transpose(concat(x_i)),  i to {n}") for n in (2, 3, 4)),
    *(of_arity(transpose_into_concat, n, f"transpose(concat(x_i)) = concat(transpose(x_i)),  i to {n}") for n in (2, 3, 4)),
    transpose_out_of_slice, transpose_into_slice, transpose_out_of_pad, transpose_into_pad, transpose_into_expand,
    *(law for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin") for law in _out_of_reduction(op)),
    *(law for op in ("Softmax", "LogSoftmax", "LRN") for law in _through_operator_along_an_axis(op)),
    transpose_out_of_layer_normalization,
)
