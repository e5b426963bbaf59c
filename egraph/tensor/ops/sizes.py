"""Size arithmetic of shape rules: it decides over plain integers, and proves or refuses over symbolic sizes.

Symbolic sizes are equal when their polynomials are, and a size broadcasts when it is the literal 1. An inequality
(``at_least``) is decided for known sizes only; for symbolic ones it is left to the proof that reads stay inside.
A ``Reasoned`` size answers by itself: a proof runs the same shape rules over sizes that know the assumptions made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

from egraph.errors import TypeMismatch
from egraph.tensor.expr.index import Size, index, polynomial, simplify

Shape = tuple[Size, ...]


class Reasoned:
    """A size that answers the questions of shape rules by itself, with arithmetic and comparisons like an integer's.

    It is not an abstract class, because ``isinstance`` is asked millions of times, and for an abstract class it runs Python code.
    """

    __slots__ = ()

    @property
    def constant(self) -> int | None:
        """Return the value if it is one number, else None."""
        raise NotImplementedError

    def must_equal(self, other: Any) -> bool:
        """Return whether this equals the other size, as a shape rule requires."""
        raise NotImplementedError

    def must_reach(self, minimum: int) -> bool:
        """Return whether this is at least the minimum, as a shape rule requires."""
        raise NotImplementedError

    def divided(self, total: Any, divisor: Any, *, signed: bool = False) -> Any | None:
        """Return total / divisor (one of them is this size) if it divides, as a shape rule requires, else None.

        The divisor is positive; if it is ``signed``, not zero.
        """
        raise NotImplementedError

    def widened(self, other: Any) -> Any | None:
        """Return the broadcast with another size, or None when they do not broadcast."""
        raise NotImplementedError


_broadcasting: ContextVar[Callable[[Size, Size], Size | None] | None] = ContextVar("broadcasting", default=None)


@contextmanager
def broadcasting_by(broadcast_size: Callable[[Size, Size], Size | None]) -> Iterator[None]:
    """Use ``broadcast_size`` for the broadcast of two symbolic sizes of which either may be 1, while a meaning is written out."""
    token = _broadcasting.set(broadcast_size)
    try:
        yield
    finally:
        _broadcasting.reset(token)


def refuse(reason: str) -> NoReturn:
    """Raise ``TypeMismatch`` with the reason; the caller of the shape rule adds the location."""
    raise TypeMismatch(reason)


def known(size: Size) -> int | None:
    """Return a size as a plain integer if it is one, else None."""
    return size if isinstance(size, int) else size.constant


def plain(sizes: Sequence[Size]) -> tuple[int, ...]:
    """Return sizes as plain integers; refuse symbolic ones."""
    result = []
    for size in sizes:
        value = known(size)
        if value is None:
            refuse(f"the size {show(size)} must be known here")
        result.append(value)
    return tuple(result)


def is_one(size: Size) -> bool:
    """size == 1, literally"""
    return size == 1 if isinstance(size, Reasoned) else known(size) == 1


def is_zero(size: Size) -> bool:
    """size == 0, literally"""
    return known(size) == 0


def is_negative(size: Size) -> bool:
    """size < 0; never true for a symbolic size"""
    value = known(size)
    return value is not None and value < 0


def equal(left: Size, right: Size) -> bool:
    """left == right for all values of the symbols, by polynomial identity"""
    if isinstance(left, Reasoned):
        return left.must_equal(right)
    if isinstance(right, Reasoned):
        return right.must_equal(left)
    if isinstance(left, int) and isinstance(right, int):
        return left == right
    return (index(left) - index(right)).terms == ()


def same(left: Size, right: Size, reason: str) -> Size:
    """Return the common size; refuse with the reason unless left == right."""
    if not equal(left, right):
        refuse(f"{reason}: {show(left)} and {show(right)}")
    return left if isinstance(left, int) else right


def at_least(size: Size, minimum: int, reason: str) -> Size:
    """Return the size; refuse when it is known to be smaller than the minimum."""
    if isinstance(size, Reasoned):
        if not size.must_reach(minimum):
            refuse(f"{reason}, got {size}")
        return size
    value = known(size)
    if value is not None and value < minimum:
        refuse(f"{reason}, got {value}")
    return size


def product(sizes: Sequence[Size]) -> Size:
    """sizes[0] * sizes[1] * ..."""
    total: Size = 1
    for size in sizes:
        total = total * size
    return simplify(total)


def divide(total: Size, divisor: Size, reason: str, *, signed: bool = False) -> Size:
    """Return total / divisor; refuse with the reason unless the divisor divides (as polynomials if symbolic).

    The divisor must be positive; if it is ``signed``, not zero.
    """
    if isinstance(total, Reasoned) or isinstance(divisor, Reasoned):
        reasoned: Any = total if isinstance(total, Reasoned) else divisor
        reasoned_quotient: Size | None = reasoned.divided(total, divisor, signed=signed)
        if reasoned_quotient is None:
            refuse(f"{reason}: {total} by {divisor}")
        return reasoned_quotient
    if signed and is_negative(divisor):
        return divide(-total, -divisor, reason)
    if isinstance(total, int) and isinstance(divisor, int):
        if divisor < 1 or total % divisor:
            refuse(f"{reason}: {total} by {divisor}")
        return total // divisor
    terms = index(divisor).terms
    if len(terms) == 1:
        factors, coefficient = terms[0]
        quotient = {}
        for monomial, count in index(total).terms:
            remaining = list(monomial)
            for factor in factors:
                if factor not in remaining:
                    refuse(f"{reason}: {show(total)} by {show(divisor)}")
                remaining.remove(factor)
            if count % coefficient:
                refuse(f"{reason}: {show(total)} by {show(divisor)}")
            quotient[tuple(remaining)] = count // coefficient
        return simplify(polynomial(quotient))
    if equal(total, divisor):
        return 1
    refuse(f"{reason}: {show(total)} by {show(divisor)}")


def quotient(total: Size, divisor: Size) -> Size:
    """total / divisor, if a shape rule has found that it divides: as polynomials if they show it, else rounded down"""
    try:
        return divide(total, divisor, "")
    except TypeMismatch:
        return simplify(index(total) // divisor)


def broadcast(shapes: Sequence[Shape]) -> Shape:
    """Return the numpy broadcast of the shapes: sizes are equal or the literal 1."""
    rank = max(len(shape) for shape in shapes)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            if isinstance(size, Reasoned) or isinstance(result[axis], Reasoned):
                result[axis] = _widened(result[axis], size, shapes)
            elif is_one(result[axis]):
                result[axis] = size
            elif not is_one(size):
                reason = f"cannot broadcast {' with '.join(show_shape(s) for s in shapes)}"
                result[axis] = _either(result[axis], size) or same(result[axis], size, reason)
    return tuple(result)


def _either(left: Size, right: Size) -> Size | None:
    broadcast_size = _broadcasting.get()
    return None if broadcast_size is None or equal(left, right) else broadcast_size(left, right)


def _widened(left: Any, right: Any, shapes: Sequence[Shape]) -> Any:
    wide = left.widened(right) if isinstance(left, Reasoned) else right.widened(left)
    if wide is None:
        refuse(f"cannot broadcast {' with '.join(show_shape(s) for s in shapes)}")
    return wide


def broadcasts_to(shape: Shape, target: Shape, name: str) -> None:
    """Refuse unless ``shape`` broadcasts to exactly ``target``."""
    if len(shape) > len(target):
        refuse(f"{name} {show_shape(shape)} has more axes than {show_shape(target)}")
    for size, goal in zip(reversed(shape), reversed(target), strict=False):
        reason = f"{name} {show_shape(shape)} does not broadcast to {show_shape(target)}"
        if isinstance(size, Reasoned):
            same(_widened(size, goal, [shape, target]), goal, reason)
        elif not is_one(size):
            same(_either(size, goal) or size, goal, reason)


def rank_between(shape: Shape, low: int, high: int, name: str) -> None:
    """Refuse unless low <= rank <= high."""
    if not low <= len(shape) <= high:
        refuse(f"{name} must have {low if low == high else f'{low} to {high}'} axes, got {len(shape)}")


def axis_of(axis: int, shape: Shape) -> int:
    """Return the axis; refuse unless 0 <= axis < rank."""
    if not 0 <= axis < len(shape):
        refuse(f"axis must be in 0..{len(shape) - 1} for {show_shape(shape)}, got {axis}")
    return axis


def entries(values: Sequence[Size], count: int, name: str) -> Sequence[Size]:
    """Return the attribute; refuse unless it has ``count`` entries."""
    if len(values) != count:
        refuse(f"{name} must have {count} entries, got {len(values)}")
    return values


def one_of(value: str, choices: Sequence[str], name: str) -> str:
    """Return the attribute; refuse unless it is one of the choices."""
    if value not in choices:
        refuse(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def show(size: Size) -> str:
    return str(simplify(size))


def show_shape(shape: Sequence[Size]) -> str:
    """Return ``[2,3,n]``."""
    return f"[{','.join(show(size) for size in shape)}]"
