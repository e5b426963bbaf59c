"""Print expressions in the papers' notation: ``{n,h,f} sum(c<64,r<3) A[n,c,h+r-1] * K[f,c,r]``."""

from __future__ import annotations

from fractions import Fraction

from egraph.tensor.expr.index import Iterator, format_index
from egraph.tensor.expr.scope import Apply, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table, Tensor

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}


def _range(iterator: Iterator) -> str:
    low, high = format_index(iterator.low), format_index(iterator.high)
    return f"{iterator.name}<{high}" if low == "0" else f"{low}<={iterator.name}<{high}"


def format_scope(scope: Scope) -> str:
    """Return a scope as one line of text."""
    head = "{" + ",".join(_range(i) for i in scope.traversal) + "} "
    if scope.summation:
        head += f"{scope.reduction}(" + ",".join(_range(i) for i in scope.summation) + ") "
    return head + format_scalar(scope.body)


def format_scalar(body: Scalar) -> str:
    """Return a scalar expression as text; guards as ``[condition, ... ? then : otherwise]``."""
    match body:
        case Number(value):
            return str(value) if isinstance(value, Fraction) else repr(value)
        case IndexNumber(value):
            return f"index({format_index(value)})"
        case Read(source, indices):
            name = f"${source.name}" if isinstance(source, Tensor) else "{" + format_scope(source) + "}"
            return f"{name}[{','.join(format_index(i) for i in indices)}]"
        case Table(shape, values, indices):
            return f"table({'x'.join(map(str, shape))}: {' '.join(map(str, values))})[{','.join(format_index(i) for i in indices)}]"
        case Apply(name, (left, right)) if name in _INFIX:
            return f"({format_scalar(left)} {_INFIX[name]} {format_scalar(right)})"
        case Apply(name, arguments):
            return f"{name}({', '.join(format_scalar(a) for a in arguments)})"
        case Guarded(conditions, then, otherwise):
            return f"[{', '.join(map(str, conditions))} ? {format_scalar(then)} : {format_scalar(otherwise)}]"
