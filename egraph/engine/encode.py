"""Number attributes, and write patterns as egglog queries.

``(a @ b) @ c`` becomes the facts ``(= n1 (Op_MatMul_2 7 a b)) (= root (Op_MatMul_2 7 n1 c))`` where 7 is the number
of MatMul's (empty) attributes. An attributes variable is a column variable; a Weight adds ``(IsConstant w)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

from egraph.engine.egglog import Query
from egraph.policy import SaturationPolicy
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import Rule
from egraph.tensor import Attributes, Node, TensorType
from egraph.tensor.ops import OPS


class Labels:
    """Numbers for attribute tuples; those of leaves and opaque nodes include the type, because nothing else determines it."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, TensorType | None], int] = {}
        self._attributes: list[Attributes] = []

    def number(self, attributes: Attributes, type: TensorType | None = None) -> int:
        """Return the number of ``attributes``; their text is compared, because 1, 1.0 and True are different attributes."""
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
    """Return the query of a rule's left side; a match contains the root class, the variables' classes and the labels."""
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


Shape: TypeAlias = tuple[str, tuple["Shape | None", ...]]
"""A pattern without its attributes and the names of its variables: an operator, and the shape of each operand, None for a variable."""


@cache
def shape_of(pattern: Pattern) -> Shape:
    """Return the shape of a pattern, which decides its number of matches."""
    return pattern.op, tuple(shape_of(operand) if isinstance(operand, Pattern) else None for operand in pattern.operands)


@dataclass
class MatchCounts:
    """Counts the e-node combinations of patterns in one e-graph. Most rules share parts of their patterns, so parts are counted once."""

    operands: Mapping[str, Mapping[int, Sequence[tuple[int, ...]]]]
    """The operand classes of every e-node, by operator and class."""
    small: int = SaturationPolicy.largest_join
    """If an upper bound is below this, the bound is returned."""
    _sizes: dict[str, tuple[int, int]] = field(default_factory=dict)
    _counts: dict[Shape, dict[int, int]] = field(default_factory=dict)

    def of(self, pattern: Pattern) -> int:
        """Return the number of combinations of a pattern's operators, ignoring attributes and repeated variables."""
        shape = shape_of(pattern)
        bound = self._size(shape[0])[0] * math.prod(self._size(op)[1] for op in _nested(shape))
        return bound if bound < self.small or not any(shape[1]) else sum(self._count(shape).values())

    def _size(self, op: str) -> tuple[int, int]:
        """Return the number of e-nodes of an operator, and the largest number in one class."""
        if op not in self._sizes:
            lengths = list(map(len, self.operands.get(op, {}).values()))
            self._sizes[op] = sum(lengths), max(lengths, default=0)
        return self._sizes[op]

    def _count(self, shape: Shape) -> dict[int, int]:
        """Return the number of combinations of each class that has any."""
        if shape not in self._counts:
            op, below = shape
            nested = [(position, self._count(each)) for position, each in enumerate(below) if each is not None]
            counts: dict[int, int] = {}
            for handle, rows in self.operands.get(op, {}).items():
                total = 0
                for row in rows:
                    product = int(len(row) == len(below))
                    for position, counts_below in nested if product else ():
                        product *= counts_below.get(row[position], 0)
                    total += product
                if total:
                    counts[handle] = total
            self._counts[shape] = counts
        return self._counts[shape]


def _nested(shape: Shape) -> Iterator[str]:
    """Yield the operators of a pattern below its first."""
    for each in shape[1]:
        if each is not None:
            yield each[0]
            yield from _nested(each)
