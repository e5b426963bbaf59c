"""Elementwise operators: their meanings are patterns over scalars, unified up to the order of sums, products, maxima and minima."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator as Iterable
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from random import Random

from egraph.derive.matching.form import Form
from egraph.derive.matching.movements import moved
from egraph.derive.matching.views import expanded, reshaped
from egraph.errors import TypeMismatch
from egraph.tensor import AttributeValue, Node, attributes
from egraph.tensor.expr.bodies import flattened
from egraph.tensor.expr.index import RealSymbol, index, length
from egraph.tensor.expr.printing import format_scalar
from egraph.tensor.expr.scope import Apply, Guarded, IndexNumber, Number, Read, Scalar, Tensor
from egraph.tensor.ops import OPS, apply

_COMMUTATIVE = ("add", "mul", "max", "min")
NUMBERS = frozenset({"float32", "bool"})
"""Element types of the operands that are matched here; operators on bytes are not matched."""
DRAWS = 32
"""Number of samples of an operator from which the values of its string attributes are collected."""
Binding = Mapping[str, Scalar]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One elementwise operator on scalars: operands are tensors without axes, float attributes are real symbols."""

    operator: str
    operands: int
    body: Scalar
    attributes: tuple[tuple[str, AttributeValue], ...]
    symbols: tuple[str, ...]


@lru_cache(maxsize=1)
def patterns() -> tuple[Pattern, ...]:
    """Return the patterns of all elementwise operators; a float attribute is a symbol, or infinite if that has another meaning."""
    by_meaning: dict[tuple[str, str], Pattern] = {}
    for name, spec in sorted(OPS.items()):
        if spec.category != "elementwise" or spec.arity is None or not NUMBERS.issuperset(spec.sample_dtypes or ()):
            continue
        drawn = [spec.sample(Random(seed))[1] for seed in range(DRAWS)]
        choices: list[list[AttributeValue | IndexNumber]] = []
        for attribute in spec.attributes:
            values = sorted({values[attribute] for values in drawn}, key=str)
            real = all(isinstance(value, float) for value in values)
            symbol: list[AttributeValue | IndexNumber] = [IndexNumber(index(RealSymbol(attribute)))]
            choices.append([*symbol, -math.inf, math.inf] if real else list(values))
        for chosen in itertools.product(*choices):
            operands = [Tensor(str(k), ()) for k in range(spec.arity)]
            try:
                body = spec.meaning(operands, dict(zip(spec.attributes, chosen, strict=True))).body
            except (OverflowError, ValueError):
                continue
            fixed = tuple((a, v) for a, v in zip(spec.attributes, chosen, strict=True) if not isinstance(v, IndexNumber))
            symbols = tuple(a for a, v in zip(spec.attributes, chosen, strict=True) if isinstance(v, IndexNumber))
            pattern = Pattern(name, spec.arity, body, fixed, symbols)
            text = format_scalar(body)
            if "inf" not in text and all(f"index({symbol})" in text for symbol in symbols):
                by_meaning.setdefault((name, text), pattern)
    return tuple(by_meaning.values())


def elementwise(form: Form, leaves: Sequence[Node]) -> Iterable[Node]:
    """Yield the elementwise operators whose meaning equals the form's body, each operand arranged to the output's axes."""
    if form.sums or not isinstance(form.inner, Apply):
        return
    for pattern in patterns():
        binding = next(unified(pattern.body, form.inner, {}), None)
        if binding is None:
            continue
        values = {a: float(v.value) for a in pattern.symbols if isinstance(v := binding.get(f"@{a}"), Number)}
        operands = [binding.get(str(k)) for k in range(pattern.operands)]
        if len(values) != len(pattern.symbols) or None in operands:
            continue
        nodes = [_operand(form, value, leaves) for value in operands if value is not None]
        if None in nodes:
            continue
        bound_attributes = attributes(**dict(pattern.attributes), **values)
        axes = _axes(form)
        if axes is not None and not all(_whole(form, n, group) for n in nodes if n is not None for group in axes):
            axes = None
        parts = [n if axes is None else _along(n, axes) for n in nodes if n is not None]
        try:
            node = apply(pattern.operator, *parts, attributes=bound_attributes)
        except TypeMismatch:
            continue
        yield expanded(node, [math.prod(length(form.digits[k]) for k in group) for group in axes or [[k] for k in range(len(form.digits))]])


def _axes(form: Form) -> list[list[int]] | None:
    """Return the digits that make up each axis of the shape; None if one digit spans two axes."""
    axes, position = list[list[int]](), 0
    for size in form.shape:
        group: list[int] = []
        while math.prod(length(form.digits[k]) for k in group) < size and position < len(form.digits):
            group.append(position)
            position += 1
        if math.prod(length(form.digits[k]) for k in group) != size:
            return None
        axes.append(group)
    return axes


def _whole(form: Form, node: Node, group: Sequence[int]) -> bool:
    """Return whether an operand has all digits of an axis, or none."""
    return len({node.type.sizes[k] == length(form.digits[k]) for k in group}) < 2


def _along(node: Node, axes: Sequence[Sequence[int]]) -> Node:
    """Return an operand with the axes of the result, or with its own axes if these broadcast to them."""
    sizes = node.type.sizes
    groups = [[sizes[k] for k in group] for group in axes]
    shape = [math.prod(group) for group in groups]
    while isinstance(node, Node) and node.op == "Reshape":
        node = node.inputs[0]
    source = node.type.sizes
    if tuple([1] * (len(shape) - len(source))) + source == tuple(shape):
        return node
    return reshaped(node, shape)


def _operand(form: Form, value: Scalar, leaves: Sequence[Node]) -> Node | None:
    return moved(replace(form, inner=value), leaves, expand=False)


def unified(pattern: Scalar, body: Scalar, binding: Binding) -> Iterable[Binding]:
    """Yield the bindings of operands (by position) and attributes (``@name``) under which a pattern equals a body."""
    match pattern:
        case Read(Tensor(name), ()):
            if isinstance(body, Read | Guarded) and binding.get(name, body) == body:
                yield {**binding, name: body}
        case IndexNumber(value) if isinstance(symbol := value.terms[0][0][0], RealSymbol):
            if isinstance(body, Number) and binding.get(f"@{symbol.name}", body) == body:
                yield {**binding, f"@{symbol.name}": body}
        case Apply(function, arguments) if isinstance(body, Apply) and body.function == function:
            if function not in _COMMUTATIVE:
                yield from _all(arguments, body.arguments, binding)
                return
            parts, operands = flattened(function, pattern), flattened(function, body)
            if len(parts) == len(operands):
                for order in itertools.permutations(operands):
                    yield from _all(parts, order, binding)
        case Number():
            if pattern == body:
                yield binding
        case _:
            pass


def _all(parts: Sequence[Scalar], operands: Sequence[Scalar], binding: Binding) -> Iterable[Binding]:
    if not parts:
        yield binding
        return
    for extended in unified(parts[0], operands[0], binding):
        yield from _all(parts[1:], operands[1:], extended)
