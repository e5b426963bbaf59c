"""Write the sides of an equation as Python: names for its variables, attributes and extents, and the conditions of its context as guards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, assert_never

from egraph.tensor import AttributeValue
from verify.generate.dimensions import Size
from verify.generate.terms import Application, Equation, Term, applications, bindings, joint_context, renamed, variables

Kind: TypeAlias = Literal["equality", "implied", "rank", "attribute"]
"""``implied``: extents that the left side makes equal unless it broadcasts."""
NAMES = ("x", "y", "z", "w", "v", "u")
_INFIX = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "MatMul": "@"}
FUNCTIONS = {
    "Slice": "slice_", "Abs": "absolute", "Max": "maximum", "Min": "minimum",
    "ReduceSum": "reduce_sum", "ReduceMean": "reduce_mean", "ReduceMax": "reduce_max", "MaxPool": "max_pool", "AveragePool": "average_pool",
    **{op: op.lower() for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Log", "Sqrt", "Erf", "Reciprocal")},
    **{op: op.lower() for op in ("Transpose", "Concat", "Pad", "Conv", "Softmax")},
}  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """A condition on the types or attributes of the left side, as text, with a message for people."""

    kind: Kind
    condition: str
    reason: str

    def __str__(self) -> str:
        return f'require({self.condition}, "{self.reason}")'


class Writer:
    """Names for the variables, attributes and extents of one equation."""

    def __init__(self, equation: Equation) -> None:
        self.equation = equation
        self.names = {variable: NAMES[i] for i, variable in enumerate(variables(equation.left))}
        self.bundles: dict[tuple[str, object], str] = {}
        self.of_bundles: dict[str, Application] = {}
        self.known: list[tuple[Size, str]] = [
            (size, f"{name}.shape[{axis}]")
            for variable, name in self.names.items() for axis, size in enumerate(equation.context[variable])
        ]  # fmt: skip
        for application in applications(equation.left):
            key = self._attribute_key(application)
            if key is not None and key not in self.bundles:
                self.bundles[key] = "abcdef"[len(self.bundles)]
                self.of_bundles[self.bundles[key]] = application
                if application.production.part is not None:
                    axis, which = application.production.part
                    first = application.production.shapes[0][0][axis][0]
                    self.known.append((self._bound(application)[first], f"{self.bundles[key]}.{'starts' if which else 'ends'}[{axis}]"))

    def _bound(self, application: Application) -> dict[str, Size]:
        bound = bindings(application, self.equation.context)
        assert bound is not None
        return bound

    def _attribute_key(self, application: Application) -> tuple[str, object] | None:
        production = application.production
        if production.part is not None:
            bound, sizes = self._bound(application), production.shapes[0][0]
            shape = tuple(tuple(sorted(part for name in size for part in bound[name])) for size in sizes)
            axis, _ = production.part
            return production.op, (production.part, shape, bound[sizes[axis][0]])
        return (production.op, production.values) if production.values else None

    def length(self, size: Size) -> str:
        """Return the text of an extent: that of a variable, or a sum or difference of known extents."""
        if all(name.isdigit() for name in size):
            return str(sum(map(int, size)))
        for named, text in self.known:
            if sorted(named) == sorted(size):
                return text
        for named, text in sorted(self.known, key=lambda item: -len(item[0])):
            if 0 < len(named) < len(size) and not Counter(named) - Counter(size):
                return f"{text} + {self.length(tuple((Counter(size) - Counter(named)).elements()))}"
        if len(size) > 1:
            return " + ".join(self.length((name,)) for name in size)
        for named, text in self.known:
            remaining = list(named)
            if size[0] in remaining:
                remaining.remove(size[0])
                if size[0] not in remaining and all(any((name,) == k for k, _ in self.known) for name in remaining):
                    return " - ".join([text, *(self.length((name,)) for name in remaining)])
        raise LookupError(f"the extent {size} cannot be told from the left side")

    def values(self, application: Application) -> Iterator[tuple[str, str]]:
        """Yield the attributes of an application as text."""
        part = application.production.part
        if part is None:
            for key, value in application.production.values:
                yield key, _literal(value)
            return
        (cut,), _ = application.production.shapes
        bound, (axis, which) = self._bound(application), part
        first, _ = (bound[name] for name in cut[axis])
        whole = tuple(p for name in cut[axis] for p in bound[name])
        yield "starts", _tuple("0" if i != axis or not which else self.length(first) for i in range(len(cut)))
        yield "ends", _tuple(self.length(bound[size[0]] if i != axis else whole if which else first) for i, size in enumerate(cut))
        yield "steps", _tuple("1" for _ in cut)

    def side(self, term: Term, *, on_the_left: bool, inside: bool = False) -> str:
        """Return a term as Python."""
        if isinstance(term, int):
            return self.names[term]
        op = term.production.op
        if op in _INFIX:
            first, second = (self.side(operand, on_the_left=on_the_left, inside=True) for operand in term.operands)
            return f"({first} {_INFIX[op]} {second})" if inside else f"{first} {_INFIX[op]} {second}"
        operands = [self.side(operand, on_the_left=on_the_left) for operand in term.operands]
        if op == "Neg":
            return f"-{self.side(term.operands[0], on_the_left=on_the_left, inside=True)}"
        key = self._attribute_key(term)
        if key is not None and key in self.bundles:
            bundle = self.bundles[key]
            operands.append(f"a={bundle}" if op in FUNCTIONS else f"by={bundle}")
        elif key is not None:
            operands += [f"{name}={value}" for name, value in self.values(term)]
        return f"{FUNCTIONS[op]}({', '.join(operands)})" if op in FUNCTIONS else f'operation("{op}", {", ".join(operands)})'

    def guards(self) -> Iterator[Guard]:
        """Yield the conditions of the context that do not follow from the left side being well-typed."""
        equation = self.equation
        for variable, name in self.names.items():
            rank = len(equation.context[variable])
            yield Guard("rank", f"{name}.rank == {rank}", f"{name} must have {rank} axes")
        for bundle, application in self.of_bundles.items():
            for key, value in self.values(application):
                if value != f"{bundle}.{key}":
                    yield Guard("attribute", f"{bundle}.{key} == {value}", f"{application.production.op}: {key} must be {_quiet(value)}")
        yield from self._equalities()

    def _equalities(self) -> Iterator[Guard]:
        context, order = self.equation.context, list(self.names)
        loose = joint_context((_relabelled(self.equation.left, order),), len(order), loose=True)
        assert loose is not None
        position_of = {variable: position for position, variable in enumerate(order)}
        for position, variable in enumerate(order):
            shape, name, before = context[variable], self.names[variable], order[:position]
            twin = next((v for v in before if context[v] == shape), None)
            if twin is not None:
                kind: Kind = "implied" if loose[position] == loose[position_of[twin]] else "equality"
                twin_name = self.names[twin]
                yield Guard(kind, f"{name}.shape == {twin_name}.shape", f"{name} and {twin_name} must have one shape")
                continue
            for axis, size in enumerate(shape):
                earlier = [(v, k) for v in before for k, earlier_size in enumerate(context[v]) if earlier_size == size]
                text, mine = f"{name}.shape[{axis}]", loose[position][axis]
                if all(n.isdigit() for n in size):
                    if mine != size:
                        yield Guard("equality", f"{text} == {size[0]}", f"{name} must have size {size[0]} along axis {axis}")
                    elif (alike := next((v for v, k in earlier if k == axis), None)) is not None:  # a number that the enumeration chose
                        reason = f"axis {axis} of {name} must be as long as that of {self.names[alike]}"
                        yield Guard("equality", f"{text} == {self.names[alike]}.shape[{axis}]", reason)
                elif earlier:
                    v, k = earlier[0]
                    kind = "implied" if any(loose[position_of[w]][j] == mine for w, j in earlier) else "equality"
                    reason = f"axis {axis} of {name} must be as long as axis {k} of {self.names[v]}"
                    yield Guard(kind, f"{text} == {self.names[v]}.shape[{k}]", reason)
                elif len(size) > 1 and len(mine) == 1:
                    total = self._sum(size)
                    if total and text not in total:  # else its parts are known only from the sum
                        yield Guard("equality", f"{text} == {total}", f"axis {axis} of {name} must be {total}")

    def _sum(self, size: Size) -> str:
        try:
            return " + ".join(self.length((name,)) for name in size)
        except LookupError:
            return ""


def _relabelled(term: Term, order: Sequence[int]) -> Term:
    return renamed(term, {variable: position for position, variable in enumerate(order)})


def _literal(value: AttributeValue) -> str:
    match value:
        case tuple():
            return _tuple(map(_literal, value))
        case str():
            return f'"{value}"'
        case bool() | int() | float() | bytes():
            return repr(value)
        case _:
            assert_never(value)


def _tuple(parts: Iterator[str] | map[str]) -> str:
    items = list(parts)
    return f"({', '.join(items)}{',' if len(items) == 1 else ''})"


def _quiet(text: str) -> str:
    return text.replace('"', "'")
