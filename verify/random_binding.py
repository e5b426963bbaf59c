"""Draw random bindings for a rule: types and attributes for which its left side is well-typed.

The pattern is filled from its most demanding operator outwards. All operands of that one are drawn; operators below it are proposed
for a wanted result, operators above it for a known operand. The operators' own shape rules accept or refuse; refused draws are retried.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from egraph.errors import TypeMismatch
from egraph.rewrite.law import fields_of
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import Binding, Rule
from egraph.tensor import Attributes, TensorType, attributes
from egraph.tensor.ops import OPS, infer
from egraph.tensor.ops.attributes import BOUNDS
from egraph.tensor.ops.dtypes import BYTES, FLOATS
from egraph.tensor.ops.lookup import READ_AT_COMPUTED_PLACES
from verify.proposals import propose
from verify.shapes import Shape, narrower, size

ELEMENTS = 3000
"""Most elements of an operand or result that is drawn, because counterexamples should be small and tests fast."""
_DEMANDING = {
    **dict.fromkeys(("Conv", "ConvTranspose", "MaxPool", "AveragePool"), 4), "InstanceNormalization": 3,
    **dict.fromkeys(("MatMul", "LayerNormalization", "Softmax", "LogSoftmax"), 2),
    **dict.fromkeys(("Concat", "Slice", "Pad", "Transpose", "Reshape", "Gather", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"), 1),
}
"""How much an operator demands of its operands; the most demanding one of a pattern is drawn first."""


class Refused(Exception):
    """A draw failed; the message says why."""


class Draw:
    """A binding under construction."""

    def __init__(
        self, random: Random, shapes: dict[str, Shape] | None = None, bundles: dict[str, Attributes] | None = None, byte: str = "uint8"
    ) -> None:
        self.random, self.shapes, self.bundles, self.byte = random, dict(shapes or {}), dict(bundles or {}), byte
        self._shapes: dict[tuple[object, ...], Shape | TypeMismatch | None] = {}
        """Cached shapes of terms, by the values of their variables and attributes; draws return to a few of these repeatedly."""

    def fill(self, term: Pattern | Variable, result: Shape | None, tries: int = 3) -> Shape:
        """Bind the variables below ``term`` so that it has the shape ``result`` (any shape if None), and return its shape."""
        if isinstance(term, Variable):
            return self._bind(term, result)
        reason = ""
        for _ in range(tries):
            before = dict(self.shapes), dict(self.bundles)
            try:
                return self._apply(term, result)
            except (Refused, TypeMismatch) as refusal:
                reason = f"{term.op}: {refusal}" if isinstance(refusal, Refused) else refusal.what
                self.shapes, self.bundles = before
        raise Refused(reason)

    def _bind(self, variable: Variable, result: Shape | None) -> Shape:
        bound = self.shapes.get(variable.name)
        shape = bound or result or deep(self.random, tuple(size(self.random) for _ in range(self.random.randint(1, 4))))
        if bound is not None and result is not None and bound != result:
            raise Refused("a variable that occurs twice would need two shapes")
        self.shapes[variable.name] = bound if bound is not None else result if result is not None else shape
        return self.shapes[variable.name]

    def _shape_of(self, term: Pattern | Variable) -> Shape | None:
        """Return the shape of a term; None if one of its variables is not bound yet."""
        if isinstance(term, Variable):
            return self.shapes.get(term.name)
        variables, bundles = _names(term)
        key = (id(term), *map(self.shapes.get, variables), *map(self.bundles.get, bundles))
        if key not in self._shapes:
            try:
                self._shapes[key] = self._inferred(term)
            except TypeMismatch as mismatch:
                self._shapes[key] = mismatch
        shape = self._shapes[key]
        if isinstance(shape, TypeMismatch):
            raise shape.with_traceback(None)
        return shape

    def _inferred(self, term: Pattern) -> Shape | None:
        below = [self._shape_of(operand) for operand in term.operands]
        bundle = self.bundles.get(term.attributes) if isinstance(term.attributes, str) else term.attributes
        if bundle is None or any(shape is None for shape in below):
            return None
        return infer(term.op, self._types(term, [shape for shape in below if shape is not None]), bundle).sizes

    def _types(self, term: Pattern, shapes: Sequence[Shape]) -> tuple[TensorType, ...]:
        """Return the types of a term's operands."""
        return tuple([TensorType(kind, shape) for kind, shape in zip(_kinds(term, self.byte), shapes, strict=True)])

    def _apply(self, term: Pattern, result: Shape | None) -> Shape:
        operand_shapes = [self._shape_of(operand) for operand in term.operands]
        if result is None and all(shape is None for shape in operand_shapes):
            lead = max(term.operands, key=_demand)
            if _demand(lead) > _DEMANDING.get(term.op, 0):
                operand_shapes[term.operands.index(lead)] = self.fill(lead, None)
                operand_shapes = [shape or self._shape_of(operand) for shape, operand in zip(operand_shapes, term.operands, strict=True)]
        shapes, bundle = self._proposal(term, result, operand_shapes)
        if isinstance(term.attributes, str):
            self.bundles[term.attributes] = bundle
        if max(math.prod(shape) for shape in shapes) > ELEMENTS:
            raise Refused("too many elements")
        actual = infer(term.op, self._types(term, shapes), bundle).sizes
        if result is not None and actual != result:
            raise Refused(f"a proposal for {result} has the shape {actual}")
        if math.prod(actual) > ELEMENTS:
            raise Refused("too many elements")
        twins = self.random.random()
        for operand, shape in zip(term.operands, shapes, strict=True):
            if twins < 0.4 and shape == shapes[0]:
                self._mirror(term.operands[0], operand, 1.0)
            elif twins < 0.6:  # nearly equal operands, which a missing guard lets through
                self._mirror(term.operands[0], operand, 0.5)
            self.fill(operand, shape)
        return actual

    def _mirror(self, source: Pattern | Variable, target: Pattern | Variable, chance: float) -> None:
        """Bind the free variables of a term like those of another term of the same form, because many guards ask for equal shapes."""
        if isinstance(source, Variable):
            if isinstance(target, Variable) and source.name in self.shapes and self.random.random() < chance:
                self.shapes.setdefault(target.name, self.shapes[source.name])
        elif not isinstance(target, Variable) and source.op == target.op and len(source.operands) == len(target.operands):
            if isinstance(source.attributes, str) and isinstance(target.attributes, str) and source.attributes in self.bundles:
                self.bundles.setdefault(target.attributes, self.bundles[source.attributes])
            for left, right in zip(source.operands, target.operands, strict=True):
                self._mirror(left, right, chance)

    def _proposal(self, term: Pattern, result: Shape | None, operand_shapes: list[Shape | None]) -> tuple[list[Shape], Attributes]:
        bundle = self.bundles.get(term.attributes) if isinstance(term.attributes, str) else term.attributes
        fixed = None if bundle is None else dict(bundle)
        if result is None and all(shape is None for shape in operand_shapes):
            shapes, values = self._whole(term, fixed)
        else:
            proposal = propose(term.op, result, operand_shapes, fixed, self.random)
            bound = [shape for shape in operand_shapes if shape is not None]
            if proposal is None and fixed is not None and len(bound) == len(operand_shapes):
                proposal = bound, fixed  # nothing is left to propose
            if proposal is None:
                raise Refused("no operands fit the wanted result or the known operands")
            shapes, values = proposal
        for shape, operand_shape in zip(shapes, operand_shapes, strict=True):
            if operand_shape is not None and shape != operand_shape:
                raise Refused("a proposal differs from a known operand")
        if min((length for shape in shapes for length in shape), default=1) < 1:
            raise Refused("a proposal has an empty operand")
        names = OPS[term.op].attributes
        return shapes, bundle if bundle is not None else attributes(**{name: values[name] for name in names})

    def _whole(self, term: Pattern, fixed: dict[str, Any] | None) -> tuple[list[Shape], dict[str, Any]]:
        drawn, values = OPS[term.op].sample(self.random)
        shapes = [tuple(int(length) for length in shape) for shape in drawn]
        if term.op in ANY_RANK and (wide := deep(self.random, shapes[0])) != shapes[0]:
            start: list[Shape | None] = [wide] + [None] * (len(term.operands) - 1)
            if (proposal := propose(term.op, None, start, fixed, self.random)) is not None:
                return proposal
        count = len(term.operands)
        if len(shapes) != count or self.random.random() < (0.9 if OPS[term.op].category == "reduction" else 0.5):
            start = [shapes[0]] + [None] * (count - 1)
            proposal = propose(term.op, None, start, fixed, self.random)
            if proposal is not None:
                return proposal
        if len(shapes) != count:
            raise Refused("the operator's own draw has another number of operands")
        return shapes, dict(values) if fixed is None else fixed


@lru_cache(maxsize=1 << 12)
def _kinds(term: Pattern, byte: str) -> tuple[str, ...]:
    """Return the element types of a term's operands."""
    kinds = (operand_type(term.op, position, "float32", byte) for position in range(len(term.operands)))
    return tuple(_dtype(each, kind, byte) for each, kind in zip(term.operands, kinds, strict=True))


@lru_cache(maxsize=1 << 12)
def _names(term: Pattern | Variable) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the variables and of the attributes in a term."""
    if isinstance(term, Variable):
        return (term.name,), ()
    variables: dict[str, None] = {}
    bundles = {term.attributes: None} if isinstance(term.attributes, str) else {}
    for operand in term.operands:
        inner = _names(operand)
        variables |= dict.fromkeys(inner[0])
        bundles |= dict.fromkeys(inner[1])
    return tuple(variables), tuple(bundles)


def _dtype(term: Pattern | Variable, dtype: str, byte: str) -> str:
    if isinstance(term, Variable):
        return term.dtype or dtype
    operands = [_dtype(each, operand_type(term.op, position, dtype, byte), byte) for position, each in enumerate(term.operands)]
    return OPS[term.op].element_type(operands, {} if isinstance(term.attributes, str) else dict(term.attributes))


@lru_cache(maxsize=1 << 12)
def _demand(term: Pattern | Variable) -> int:
    if isinstance(term, Variable):
        return -1
    return max([_DEMANDING.get(term.op, 0), *(_demand(operand) for operand in term.operands)])


NUMBERS = (2.0, 3.0, 0.5, 0.25, -1.5, 1.0, 6.0)
WHOLE = (0.0, 1.0, 7.0)
"""Numbers that are drawn for constants of bytes."""
ENDS = (0.0, -0.0, math.inf, -math.inf, math.nan)
"""Edge cases of guards on numbers; they are drawn only if a rule asks for numbers."""


def draw_binding(rule: Rule, random: Random, shared: Binding | None = None, single: Sequence[str] = ()) -> Binding:
    """Return a binding for which the left side is well-typed, or raise ``Refused``.

    ``shared`` fixes variables beforehand; the variables of ``single`` have one element.
    """
    if rule.draw is not None and shared is None:
        return rule.draw(random)
    fixed: dict[str, Shape] = {name: random.choice(((), (1,))) for name in single}
    if shared is not None:
        fixed = {name: each.sizes for name, each in shared.types.items()}
    byte = "uint8"
    if shared is not None:
        byte = next((each.dtype for each in shared.types.values() if each.dtype in BYTES), byte)
    elif not BYTES.isdisjoint(element_types(rule).values()):
        byte = random.choice(sorted(BYTES))
    draw = Draw(random, fixed, dict(shared.attributes) if shared else None, byte)
    draw.fill(rule.pattern, None, tries=1)
    for variable in rule.variables:
        if variable.name not in draw.shapes:
            draw.shapes[variable.name] = narrower(random, (2, 3))
    kinds = element_types(rule, byte)
    types = {v.name: TensorType(kinds[v.name], draw.shapes[v.name]) for v in rule.variables}
    kept = (*FLOATS, *BYTES)
    chances = {v.name: 1.0 if types[v.name].elements == 1 else 0.5 for v in rule.variables if v.constant and kinds[v.name] in kept}
    ends = ENDS if asks_for_numbers(rule) else ()
    numbers = {}
    for name, chance in chances.items():
        if random.random() >= chance:
            continue
        if kinds[name] in BYTES:
            numbers[name] = random.choice(WHOLE)
        else:
            numbers[name] = random.choice(ends) if ends and random.random() < 0.25 else random.choice(NUMBERS)
    return Binding(types, {name: _with_ends(bundle, random) for name, bundle in draw.bundles.items()}, numbers)


def element_types(rule: Rule, byte: str = "uint8") -> Mapping[str, str]:
    """Return the element types of a rule's variables: the stated ones, or those that their operators take; ``byte``: the type of bytes."""
    types = {variable.name: variable.dtype or "" for variable in rule.variables}

    def visit(term: Pattern | Variable, below: str) -> None:
        if isinstance(term, Variable):
            types[term.name] = types.get(term.name) or below
            return
        for position, operand in enumerate(term.operands):
            visit(operand, operand_type(term.op, position, below, byte))

    visit(rule.pattern, "float32")
    return {name: dtype or "float32" for name, dtype in types.items()}


def operand_type(op: str, position: int, result: str, byte: str = "uint8") -> str:
    """Return the element type of an operand of an operator with a given result type; ``byte``: the type of bytes."""
    if (op, position) in BYTE_OPERANDS:
        return byte
    if (op, position) in _TYPES:
        return _TYPES[op, position]
    follows = op == "Where" or (op in ("Add", "Sub", "Mul") and result == "int32") or OPS[op].category != "elementwise"
    return result if follows else "float32"


BYTE_OPERANDS = frozenset({("Dequantize", 0), ("Dequantize", 2), ("Quantize", 2)})
_TYPES: Mapping[tuple[str, int], str] = {
    **{(op, 1): "int64" for op in READ_AT_COMPUTED_PLACES},
    ("Where", 0): "bool", ("And", 0): "bool", ("And", 1): "bool", ("Or", 0): "bool", ("Or", 1): "bool",
    ("Not", 0): "bool", ("Cast", 0): "int32",
}  # fmt: skip


def asks_for_numbers(rule: Rule) -> bool:
    """Return whether a rule asks for the number of a constant."""
    return "number" in fields_of(rule.law)


def _with_ends(bundle: Attributes, random: Random) -> Attributes:
    """Return the attributes, with floats among them occasionally replaced by zero or an infinity."""
    values = dict(bundle)
    for name, value in bundle:
        if type(value) is float and random.random() < 0.1 and (name != "value" or values.get("mode") == "constant"):
            zeros = (0.0, -0.0) if name == "alpha" else (value,)
            values[name] = random.choice((math.inf, -math.inf, 0.0, -0.0) if name in BOUNDS else zeros)
    return attributes(**values)


ANY_RANK = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "Softmax", "LogSoftmax", "Transpose", "Slice", "Pad", "Concat",
)  # fmt: skip
"""Operators whose operands may have any number of axes; they occasionally get five or six."""


def deep(random: Random, shape: Shape) -> Shape:
    """Return the shape, or occasionally one of rank five or six."""
    if random.random() >= 0.1:
        return shape
    return (*(random.choice((1, 2)) for _ in range(random.choice((5, 5, 6)) - len(shape))), *shape)

