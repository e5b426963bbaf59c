"""Which partial functions an expression applies: where one side of an equation lacks one, the equation needs it defined.

``x + 1/y - 1/y = x`` holds wherever the left side is defined. The laws of the reals do not see the difference, so
it is looked for in the expressions themselves, before terms cancel.
"""

from __future__ import annotations

from egraph.tensor.expr.index import has_reals
from egraph.tensor.expr.scope import Apply, Guarded, IndexNumber, Number, Read, Scalar, Scope

_PARTIAL = {
    "div": "nonzero divisor", "reciprocal": "nonzero divisor", "log": "positive argument of a logarithm",
    "sqrt": "argument of a root not negative", "pow": "power defined",
}  # fmt: skip


def differences(left: Scope, right: Scope) -> frozenset[str]:
    """Return the facts that only one side needs."""
    return frozenset(_PARTIAL[name] for name in _partial(left) ^ _partial(right))


def is_partial(scope: Scope) -> bool:
    """Return whether an expression applies a function that has no value for some arguments."""
    return bool(_partial(scope))


def _partial(scope: Scope) -> set[str]:
    found: set[str] = set()
    seen: set[int] = set()
    pending: list[Scope | Scalar] = [scope]
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        match one:
            case Scope(_, _, _, body):
                pending.append(body)
            case Apply(function, arguments):
                if function in _PARTIAL and not _is_defined(function, arguments):
                    found.add("div" if function == "reciprocal" else function)
                pending += arguments
            case Guarded(_, then, otherwise):
                pending += [then, otherwise]
            case Read(source, _) if isinstance(source, Scope):
                pending.append(source)
    return found


def _is_defined(function: str, arguments: tuple[Scalar, ...]) -> bool:
    """Return whether its form settles it: a divisor other than zero, a whole power of anything, a size, the root of a square."""
    last = arguments[-1]
    match function, last:
        case "sqrt", Apply("mul", (one, other)):
            return one == other
        case "div" | "reciprocal" | "log" | "sqrt", Number(value):
            return value > 0
        case "pow", Number(value):
            return value >= 0 and value == int(value)
        case "div" | "reciprocal", IndexNumber(value):
            return not has_reals(value)  # sizes and counts of windows are at least one; a number with a name may be zero
    return False
