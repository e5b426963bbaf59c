"""The functions and modules that a rule may use; each means the same for plain sizes and for the sizes of a proof."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from egraph import rule_operators
from egraph.rewrite import terms
from egraph.rewrite.values import Distinct, Native, Value, changeable

if TYPE_CHECKING:
    from egraph.rewrite.evaluator import Evaluator


def _all(run: Evaluator, values: Value) -> bool:
    return all(run.truth(each) for each in run.each(values))


def _any(run: Evaluator, values: Value) -> bool:
    return any(run.truth(each) for each in run.each(values))


def _absolute(run: Evaluator, value: Value) -> Value:
    if run.kind(value) not in ("integer", "number", "truth"):
        raise TypeError(f"abs of a {run.kind(value)}")
    return run.numbers.negative(value) if run.numbers.compare("<", value, 0) else value


def _bool(run: Evaluator, value: Value) -> bool:
    return run.truth(value)


def _enumerate(run: Evaluator, values: Value, start: int = 0) -> Iterator[Value]:
    return enumerate(run.each(values), start)


def _integer(run: Evaluator, value: Value) -> Value:
    if run.kind(value) not in ("integer", "truth"):
        raise TypeError(f"int of a {run.kind(value)}: numbers are compared, not cut off")
    return run.numbers.arithmetic("+", value, 0)


def _length(run: Evaluator, values: Value) -> int:
    match run.kind(values):
        case "tuple" | "list" | "range":
            return len(values)
        case "set":
            return len(values.values)
    raise TypeError(f"len of a {run.kind(values)}")


def _list(run: Evaluator, values: Value = ()) -> list[Value]:
    return list(run.each(values))


def _tuple(run: Evaluator, values: Value = ()) -> tuple[Value, ...]:
    return tuple(run.each(values))


def _set(run: Evaluator, values: Value = ()) -> Distinct:
    return run.distinct(list(run.each(values)))


def _map(run: Evaluator, function: Value, *values: Value) -> Iterator[Value]:
    return (run.call(function, arguments) for arguments in zip(*map(run.each, values), strict=False))


def _extreme(operator: str, run: Evaluator, values: tuple[Value, ...], default: Value, key: Value) -> Value:
    """Return the first extreme value, as Python does; a comparison with NaN keeps the best value so far."""
    elements = _elements(run, values[0]) if len(values) == 1 else values
    if not elements:
        if default is _MISSING:
            raise ValueError("no value to choose from")
        return default
    best = elements[0]
    keyed = best if key is None else run.call(key, [best])
    for each in elements[1:]:
        other = each if key is None else run.call(key, [each])
        if run.compare(operator, other, keyed):  # type: ignore[arg-type]  # > or <
            best, keyed = each, other
    return best


_MISSING = object()


def _maximum(run: Evaluator, *values: Value, default: Value = _MISSING, key: Value = None) -> Value:
    return _extreme(">", run, values, default, key)


def _minimum(run: Evaluator, *values: Value, default: Value = _MISSING, key: Value = None) -> Value:
    return _extreme("<", run, values, default, key)


def _elements(run: Evaluator, values: Value) -> tuple[Value, ...]:
    return values.values if isinstance(values, Distinct) else tuple(run.each(values))


def _next(run: Evaluator, values: Value, *default: Value) -> Value:
    if run.kind(values) != "stream":
        raise TypeError(f"next of a {run.kind(values)}")
    for each in values:
        return each
    if not default:
        raise ValueError("nothing is left")
    return default[0]


def _range(run: Evaluator, *ends: Value) -> range:
    if any(run.kind(end) not in ("integer", "truth") for end in ends):
        raise TypeError("range of something else than integers")
    return range(*map(run.numbers.whole, ends))


def _reversed(run: Evaluator, values: Value) -> Iterator[Value]:
    return iter(tuple(run.each(values))[::-1])


def _sorted(run: Evaluator, values: Value, *, key: Value = None, reverse: bool = False) -> list[Value]:
    """Return the values sorted by insertion; equal values stay in order."""
    ordered: list[tuple[Value, Value]] = []
    for each in _elements(run, values):
        keyed = each if key is None else run.call(key, [each])
        position = len(ordered)
        while position and run.compare(">" if reverse else "<", keyed, ordered[position - 1][0]):
            run.step()
            position -= 1
        ordered.insert(position, (keyed, each))
    return [each for _, each in ordered]


def _sum(run: Evaluator, values: Value, start: Value = 0) -> Value:
    total = start
    for each in run.each(values):
        total = run.arithmetic("+", total, each)
    return total


def _product(run: Evaluator, values: Value, start: Value = 1) -> Value:
    total = start
    for each in run.each(values):
        total = run.arithmetic("*", total, each)
    return total


def _zip(run: Evaluator, *values: Value, strict: bool = False) -> Iterator[Value]:
    return zip(*map(run.each, values), strict=strict)


def _function_of_number(name: str, function: Callable[[float], float | bool]) -> Native:
    def applied(run: Evaluator, value: Value) -> Value:
        if run.kind(value) not in ("integer", "number"):
            raise TypeError(f"{name} of a {run.kind(value)}")
        return run.numbers.number(name, function, (value,))

    return Native(name, applied, evaluating=True)


def _is_finite(run: Evaluator, value: Value) -> bool:
    compare = run.numbers.compare
    return compare("<", -math.inf, value) and compare("<", value, math.inf)


def _is_infinite(run: Evaluator, value: Value) -> bool:
    compare = run.numbers.compare
    return compare("==", -math.inf, value) or compare("==", value, math.inf)


def _is_nan(run: Evaluator, value: Value) -> bool:
    return run.numbers.compare("!=", value, value)


def _greatest_divisor(run: Evaluator, *values: Value) -> int:
    return math.gcd(*map(run.numbers.whole, values))


def _combined(name: str, function: Callable[..., Iterator[Value]]) -> Native:
    def applied(run: Evaluator, *values: Value, **named: Value) -> Iterator[Value]:
        sequences = [tuple(run.each(each)) if run.kind(each) in ("tuple", "list", "range", "stream") else each for each in values]
        return (each for each in function(*sequences, **named))

    return Native(name, applied, evaluating=True)


def _chain(run: Evaluator, *values: Value) -> Iterator[Value]:
    return (each for sequence in values for each in run.each(sequence))


def _reduce(run: Evaluator, function: Value, values: Value, *start: Value) -> Value:
    elements = [*start, *run.each(values)]
    if not elements:
        raise TypeError("reduce of nothing without a first value")
    total = elements[0]
    for each in elements[1:]:
        total = run.call(function, [total, each])
    return total


def _partial(run: Evaluator, function: Value, *first: Value, **named: Value) -> Native:
    if any(map(changeable, (*first, *named.values()))):
        raise TypeError("partial of a value that can change")
    return Native("partial", lambda *more, **keywords: run.call(function, [*first, *more], {**named, **keywords}))


def _natives(functions: Mapping[str, Callable[..., Value]]) -> Mapping[str, Value]:
    return MappingProxyType({name: Native(name, function, evaluating=True) for name, function in functions.items()})


BUILTINS: Mapping[str, Value] = MappingProxyType({
    "all": Native("all", _all, evaluating=True, every=True), "any": Native("any", _any, evaluating=True, every=False),
    **_natives({
        "abs": _absolute, "bool": _bool, "enumerate": _enumerate, "int": _integer, "len": _length, "list": _list, "map": _map,
        "max": _maximum, "min": _minimum, "next": _next, "range": _range, "reversed": _reversed, "set": _set, "sorted": _sorted,
        "sum": _sum, "tuple": _tuple, "zip": _zip,
    }),
})  # fmt: skip
"""Python's built-in functions that the language has."""

TYPES = frozenset({
    "Attributes", "Equation", "MergeRule", "Rounding", "Rule", "Steps", "Tensor", "Weight", "Binding", "Mismatch", "Verdict",
})  # fmt: skip
"""Names of ``egraph.rule`` that only annotations use."""

OPERATORS: Mapping[str, Value] = MappingProxyType({
    name: Native(name, value) for name, value in vars(rule_operators).items()
    if callable(value) and getattr(value, "__module__", "") == rule_operators.__name__
})  # fmt: skip


def _terms() -> dict[str, Value]:
    def require(run: Evaluator, condition: Value, reason: Value) -> None:
        if not run.truth(condition):
            terms.require(False, str(reason))

    def number(run: Evaluator, weight: Value, expected: Value) -> None:
        terms.require_number(weight, expected)

    def attribute(run: Evaluator, bundle: Value, name: str, expected: Value) -> None:
        terms.require_attribute(bundle, name, expected)

    return {
        "require": Native("require", require, evaluating=True, refuses=True),
        **_natives({"require_number": number, "require_attribute": attribute}),
        "operation": Native("operation", terms.operation), **dict.fromkeys(TYPES, None),
    }  # fmt: skip


TERMS: Mapping[str, Value] = MappingProxyType(_terms())

MODULES: Mapping[str, Mapping[str, Value]] = MappingProxyType({
    "math": {
        **_natives({"prod": _product, "isfinite": _is_finite, "isinf": _is_infinite, "isnan": _is_nan, "gcd": _greatest_divisor}),
        **{name: _function_of_number(name, getattr(math, name)) for name in ("sqrt", "exp", "log")},
        "inf": math.inf, "nan": math.nan, "pi": math.pi, "e": math.e,
    },
    "itertools": {
        **_natives({"chain": _chain}),
        **{name: _combined(name, getattr(itertools, name)) for name in ("product", "combinations", "permutations", "pairwise")},
    },
    "functools": _natives({"reduce": _reduce, "partial": _partial}),
    "typing": dict.fromkeys(("Any", "Literal", "Callable", "Sequence", "Mapping", "TypeAlias", "Final"), None),
    "collections.abc": dict.fromkeys(("Sequence", "Mapping", "Callable", "Iterable", "Iterator", "Collection"), None),
    "__future__": {"annotations": None},
    "egraph.rule_operators": OPERATORS,
})  # fmt: skip
"""The names that may be imported from each module, besides the rules' own modules. Names with the value None are for annotations."""

