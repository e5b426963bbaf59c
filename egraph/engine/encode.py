"""Number attributes, and write patterns as egglog queries.

``(a @ b) @ c`` becomes the facts ``(= n1 (Op_MatMul_2 7 a b)) (= root (Op_MatMul_2 7 n1 c))`` where 7 is the number
of MatMul's (empty) attributes. An attributes variable is a column variable; a Weight adds ``(IsConstant w)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from egraph.engine.egglog import Query
from egraph.policy import SaturationPolicy
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import Rule
from egraph.tensor import Attributes, Node, TensorType
from egraph.tensor.ops import OPS


class Labels:
    """Numbers for attribute tuples; those of leaves and opaque nodes include the type, which nothing else determines."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, TensorType | None], int] = {}
        self._attributes: list[Attributes] = []

    def number(self, attributes: Attributes, type: TensorType | None = None) -> int:
        """Return the number of ``attributes``; text is compared, because 1, 1.0 and True are different attributes."""
        key = (repr(attributes), type)
        if key not in self._numbers:
            self._numbers[key] = len(self._attributes)
            self._attributes.append(attributes)
        return self._numbers[key]

    def of_node(self, node: Node) -> int:
        return self.number(node.attributes, None if node.op in OPS else node.type)

    def attributes(self, number: int) -> Attributes:
        return self._attributes[number]


def compile_pattern(rule: Rule, labels: Labels, constructor: Callable[[str, int], str]) -> Query:
    """Return the query of a rule's left side; a match reports the root class, the variables' classes and the labels."""
    facts: list[str] = []

    def term(pattern: Pattern | Variable) -> str:
        if isinstance(pattern, Variable):
            return f"v_{pattern.name}"
        operands = [term(operand) for operand in pattern.operands]
        label = f"l_{pattern.attributes}" if isinstance(pattern.attributes, str) else str(labels.number(pattern.attributes))
        name = f"n{len(facts)}"
        facts.append(f"(= {name} ({' '.join((constructor(pattern.op, len(operands)), label, *operands))}))")
        return name

    root = term(rule.pattern)
    facts += [f"(IsConstant v_{variable.name})" for variable in rule.variables if variable.constant]
    classes = (root, *(f"v_{variable.name}" for variable in rule.variables))
    return Query(tuple(facts), classes, tuple(f"l_{name}" for name in rule.attribute_variables))


def count_matches(
    pattern: Pattern, operands: Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]], small: int = SaturationPolicy.largest_join
) -> int:
    """Return how many e-node combinations a pattern's operators have, attributes and repeated variables aside.

    Where a bound says that there are fewer than ``small``, that bound is returned.
    """
    inner: list[Pattern | Variable] = [*pattern.operands]
    for operand in inner:
        if isinstance(operand, Pattern):
            inner += operand.operands
    nested = [operand.op for operand in inner if isinstance(operand, Pattern)]
    widest = math.prod(max(map(len, operands.get(op, {}).values()), default=0) for op in nested)
    everywhere = sum(map(len, operands.get(pattern.op, {}).values()))
    if not nested or widest * everywhere < small:
        return widest * everywhere
    counts: dict[tuple[int, int], int] = {}

    def count(term: Pattern | Variable, handle: int) -> int:
        if isinstance(term, Variable):
            return 1
        key = (id(term), handle)
        if key not in counts:
            counts[key] = sum(
                math.prod(count(child, operand) for child, operand in zip(term.operands, row, strict=True))
                for row in operands.get(term.op, {}).get(handle, ())
                if len(row) == len(term.operands)
            )
        return counts[key]

    return sum(count(pattern, handle) for handle in operands.get(pattern.op, {}))
