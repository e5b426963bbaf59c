"""Write fragments as a Python program that needs only numpy: elementwise operators as array expressions, all others as loops.

The loops are the printed meanings of the operators, so a counterexample can be run and read without this project.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import numpy as np

from egraph.tensor import Node, walk
from egraph.tensor.expr.bodies import reads_of
from egraph.tensor.expr.functions import CONVERSIONS
from egraph.tensor.expr.index import DataIndex, Floor, Index, Iterator, Modulo, Symbol, index
from egraph.tensor.expr.scope import Apply, Compare, Guarded, IndexNumber, Number, Read, Scalar, Scope, Table, Tensor
from egraph.tensor.ops import OPS
from egraph.tensor.ops.reference import meaning

FUNCTIONS: Mapping[str, str] = {
    "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})", "div": "np.divide({}, {})", "neg": "(-{})",
    "reciprocal": "np.divide(1.0, {})", "max": "np.maximum({}, {})", "min": "np.minimum({}, {})", "pow": "np.power({}, {})",
    "abs": "np.abs({})", "sign": "np.sign({})", "exp": "np.exp({})", "log": "np.log({})", "sqrt": "np.sqrt({})", "erf": "erf({})",
    "tanh": "np.tanh({})", "sin": "np.sin({})", "cos": "np.cos({})", "floor": "np.floor({})", "ceil": "np.ceil({})",
    "round": "np.round({})", "less": "np.float64({} < {})", "less_equal": "np.float64({} <= {})", "greater": "np.float64({} > {})",
    "greater_equal": "np.float64({} >= {})", "equal": "np.float64({} == {})", "and_": "np.float64(np.logical_and({}, {}))",
    "or_": "np.float64(np.logical_or({}, {}))", "not_": "np.float64(np.logical_not({}))", "where": "np.where({} != 0, {}, {})",
    "is_nan": "np.float64(np.isnan({}))", **dict.fromkeys(CONVERSIONS, "{}"),
}  # fmt: skip
"""Scalar functions over numpy values; they also work elementwise."""


def script(left: Node, right: Node, values: Mapping[Node, np.ndarray], heading: Sequence[str] = ()) -> str:
    """Return a program that computes both sides on ``values``, prints them, and fails at the first index where they differ."""
    writer = _Writer()
    for leaf, value in values.items():
        writer.names[leaf] = f"x{leaf.integer('index')}"
        writer.lines.append(f"{writer.names[leaf]} = np.array({_literal(value)})")
    names = [writer.result(side) for side in (left, right)]
    head = ["import numpy as np", ""]
    text = "\n".join(writer.lines)
    if "erf(" in text:
        head[:0] = ["import math"]
        head.insert(2, "erf = np.vectorize(math.erf, otypes=[float])")
    if any(not np.isfinite(value).all() for value in values.values()):
        head.append("inf, nan = np.inf, np.nan")
    tail = [
        "",
        f'print("left\\n", {names[0]}, "\\nright\\n", {names[1]})',
        f"wrong = ~np.isclose({names[0]}, {names[1]}, rtol=1e-9, atol=1e-9, equal_nan=True)",
        "at = tuple(int(i) for i in np.unravel_index(np.argmax(wrong), wrong.shape))",
        f'print("first difference at", at, ": left", {names[0]}[at], "right", {names[1]}[at])',
        'assert not wrong.any(), "the sides differ"',
    ]
    return "\n".join([*(f"# {line}" for line in heading), *head, "np.seterr(all=\"ignore\")", text, *tail]) + "\n"


def _literal(value: np.ndarray) -> str:
    return repr(np.asarray(value, np.float64).tolist())


class _Writer:
    """Collects the lines of a program; a node's value is computed once."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[Node, str] = {}
        self._scopes: dict[int, tuple[Scope, str]] = {}
        self._count = 0

    def result(self, root: Node) -> str:
        for node in walk((root,)):
            if node not in self.names:
                self.names[node] = self._node(node)
        return self.names[root]

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _node(self, node: Node) -> str:
        operands = {str(i): self.names[operand] for i, operand in enumerate(node.inputs)}
        attributes = ", ".join(f"{key}={value!r}" for key, value in node.attributes)
        self.lines.append(f"# {node.op}{f' {attributes}' if attributes else ''}")
        scope = meaning(node)
        if OPS[node.op].category == "elementwise":  # numpy broadcasts as the operators do
            name = self._name()
            self.lines.append(f"{name} = np.asarray({self._scalar(scope.body, operands, broadcast=True)})")
            return name
        return self._loops(scope, operands)

    def _loops(self, scope: Scope, operands: Mapping[str, str]) -> str:
        written = self._scopes.get(id(scope))
        if written:
            return written[1]
        for read in reads_of(scope.body):  # the loops of inner scopes come before those that read them
            if isinstance(read.source, Scope):
                self._loops(read.source, operands)
        body = self._scalar(scope.body, operands)
        if scope.summation:
            loops = " ".join(f"for {_iterator(i)} in range({_index(index(i.low))}, {_index(index(i.high))})" for i in scope.summation)
            body = f"np.{scope.reduction}([{body} {loops}])"
        name = self._name()
        sizes = ", ".join(_index(index(i.high)) for i in scope.traversal) + ("," if len(scope.traversal) == 1 else "")
        self.lines.append(f"{name} = np.empty(({sizes}))")
        places = ", ".join(map(_iterator, scope.traversal))
        if scope.traversal:
            self.lines.append(f"for {places}{',' if len(scope.traversal) == 1 else ''} in np.ndindex({name}.shape):")
        self.lines.append(f"{'    ' if scope.traversal else ''}{name}[{places or '()'}] = {body}")
        self._scopes[id(scope)] = scope, name
        return name

    def _scalar(self, body: Scalar, operands: Mapping[str, str], *, broadcast: bool = False) -> str:
        match body:
            case Number(value):
                return _number(value)
            case IndexNumber(value):
                return f"np.float64({_index(value)})"
            case Table(shape, values, indices):
                places = ", ".join(self._place(position, operands) for position in indices)
                return f"np.reshape([{', '.join(map(_number, values))}], {shape})[{places}]"
            case Apply(function, arguments):
                return FUNCTIONS[function].format(*(self._scalar(a, operands, broadcast=broadcast) for a in arguments))
            case Guarded(conditions, then, otherwise):
                test = " and ".join(map(_compare, conditions))
                yes, no = (self._scalar(part, operands, broadcast=broadcast) for part in (then, otherwise))
                return f"({yes} if {test} else {no})"
            case Read(source, indices):
                name = operands[source.name] if isinstance(source, Tensor) else self._scopes[id(source)][1]
                if broadcast:
                    return name
                return f"{name}[{', '.join(self._place(position, operands) for position in indices) or '()'}]"

    def _place(self, position: Index, operands: Mapping[str, str]) -> str:
        return _index(position, lambda read: f"int({self._scalar(read, operands)})")


def _number(value: Fraction | float) -> str:
    if isinstance(value, Fraction):
        return repr(float(value)) if Fraction(float(value)) == value else f"({value.numerator} / {value.denominator})"
    return "np.nan" if value != value else f"{'-' if value < 0 else ''}np.inf" if abs(value) == float("inf") else repr(value)


def _iterator(iterator: Iterator) -> str:
    name = "".join(c if c.isalnum() else "_" for c in iterator.name)
    return name if name.isidentifier() and not name.startswith(("x", "v")) else f"i_{name}"


def _compare(condition: Compare) -> str:
    return f"{_index(condition.left)} {condition.operator} {_index(condition.right)}"


def _index(value: Index, read: object = None) -> str:
    text = ""
    for monomial, coefficient in value.terms:
        factors = [_atom(atom, read) for atom in monomial]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, str(abs(coefficient)))
        sign = "-" if coefficient < 0 else ("+" if text else "")
        text += f" {sign} " if text else sign
        text += " * ".join(factors)
    return text or "0"


def _atom(atom: object, read: object) -> str:
    match atom:
        case Iterator():
            return _iterator(atom)
        case Symbol(name, _):
            return name
        case Floor(a, b):
            return f"(({_index(a, read)}) // ({_index(b, read)}))"
        case Modulo(a, b):
            return f"(({_index(a, read)}) % ({_index(b, read)}))"
        case DataIndex(inner) if callable(read):
            return str(read(inner))
    raise TypeError(f"not an atom of an index: {atom!r}")
