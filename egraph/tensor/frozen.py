"""A read-only snapshot of an e-graph, and its kernel candidates for extraction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from egraph.tensor.implementation import UNNAMED, Implementation
from egraph.tensor.node import LEAVES, Node
from egraph.tensor.types import Attributes, TensorType


@dataclass(frozen=True, slots=True)
class ENode:
    """An operator over e-classes; ``rule`` names the rule that first made it ('' for the input program)."""

    op: str
    attributes: Attributes
    children: tuple[int, ...]
    rule: str = ""
    rules: tuple[str, ...] = field(default=(), compare=False)
    """Every rule that justifies that this operator, over the values of ``children``, computes its class."""
    steps: tuple[str, ...] = field(default=(), compare=False)
    """The reasons that lead from the class's node in the input program, or its first e-node, to this one, in order."""


@dataclass(frozen=True)
class FrozenEGraph:
    """E-classes by number (deterministic: numbered by first appearance from the roots), each with its e-nodes.

    ``constants``: classes whose value is known at compile time (weights and what is computed from them alone).
    """

    classes: Mapping[int, tuple[ENode, ...]]
    types: Mapping[int, TensorType]
    roots: tuple[int, ...]
    constants: frozenset[int]
    source: Mapping[int, Node]
    """The input program's node of a class, the first one if rules joined several."""
    root_rules: tuple[tuple[str, ...], ...] = ()
    """For each root, the rules by which it equals the first node of its class."""

    @cached_property
    def leaves(self) -> frozenset[int]:
        """Return the classes that need no kernel: inputs, and values known at compile time."""
        leaves = {number for number, nodes in self.classes.items() if any(node.op in LEAVES for node in nodes)}
        return self.constants | leaves


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute a class in a single kernel: a fragment over placeholders bound to ``operands``.

    ``covered``: the e-nodes inside the fragment (for provenance), root first. Views (reshape, contiguous
    slices) that cost nothing are candidates with ``cost_us == 0``.
    """

    fragment: Node
    operands: tuple[int, ...]
    covered: tuple[ENode, ...]
    implementation: Implementation = UNNAMED
    """How it is executed; chosen by cost."""
    cost_us: float = 0.0
    is_spare: bool = False
    """Whether it is a fallback, for the case that all other candidates of its class fail or are wrong."""
    error: float = 0.0
    """The share of the accepted error that it uses up, squared; the sum over a program is at most 1."""


@dataclass(frozen=True)
class Selection:
    """An extraction result: the chosen candidate of every needed class, with its total cost."""

    chosen: Mapping[int, Candidate]
    cost_us: float
    optimal: bool
    method: str
    seconds: float
