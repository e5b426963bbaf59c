"""The e-graph's record in Python: the class of each handle, its type, its e-nodes, the rule that made each, and why they are equal.

egglog only matches; this record decides which classes are equal, and checks soundness: merged classes must agree in type, and two different
inputs of a program can never be equal. Every union has its reason (`egraph.engine.explanations`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np

from egraph.engine.analyses import Analysis, ConstantValue, Fact, SmallValue, UniformNumber
from egraph.engine.encode import Labels
from egraph.engine.explanations import CONGRUENCE, FOLDING, INJECTIVITY, ProofForest, Reason, needed
from egraph.errors import EinsatError
from egraph.tensor import Node, TensorType, walk
from egraph.tensor.ops import OPS

Key = tuple[str, int, tuple[int, ...]]
"""Operator, label, operand classes."""

INJECTIVE = ("Transpose", "Reshape")
"""Injective operators: their results for operands of the same sizes are equal only if the operands are.

Without this, values that are known to be equal only after a transposition would stay different classes. Every rule that moves
transpositions would then make all combinations of them: twice as many with each sum of a residual network.
"""


class UnsoundRule(EinsatError):
    """A rule joined two values that cannot be equal."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One e-node: its class, the rule that first made it ('' for the input program), and its vertex in the proof forest."""

    handle: int
    rule: str
    vertex: int


@dataclass(frozen=True, slots=True)
class Matched:
    """An e-node in the forest, and the equalities under which it is the matched term."""

    vertex: int
    needs: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Template:
    """Right sides ready to instantiate: steps that fill slots. The first slots hold the variables' classes."""

    steps: tuple[tuple[str, int, tuple[int, ...], TensorType], ...]
    results: tuple[int, ...]


def compile_template(roots: Sequence[Node], variables: int, labels: Labels) -> Template:
    """Return fragments over ``variables`` placeholders as a template of steps over slots."""
    slots: dict[Node, int] = {}
    steps: list[tuple[str, int, tuple[int, ...], TensorType]] = []
    for node in walk(roots):
        if node.op == "Placeholder":
            slots[node] = node.integer("index")
        else:
            slots[node] = variables + len(steps)
            steps.append((node.op, labels.of_node(node), tuple(slots[operand] for operand in node.inputs), node.type))
    return Template(tuple(steps), tuple(slots[root] for root in roots))


@dataclass
class Facts(Generic[Fact]):
    """The facts of an analysis by class, and the e-nodes that they come from; ``twins``: a class for each type and key."""

    analysis: Analysis[Fact]
    by_class: dict[int, Fact] = field(default_factory=dict)
    vertices: dict[int, int] = field(default_factory=dict)
    twins: dict[tuple[TensorType, str], int] = field(default_factory=dict)


class EClasses:
    """Union-find over handles with hash-consed e-nodes, which keep the order in which they were made."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.types: list[TensorType] = []
        self.nodes: dict[Key, Entry] = {}
        self.vertices: list[int] = []
        """The e-node that each handle was made for, as a vertex of the forest."""
        self.forest = ProofForest()
        self.constants: set[int] = set()
        self.added: list[tuple[int, str, int, tuple[int, ...]]] = []
        self.joined: list[tuple[int, int]] = []
        self.new_constants: list[int] = []
        self.version = 0
        self._parent: list[int] = []
        self._numbers: Facts[float] = Facts(UniformNumber())
        self._values: Facts[ConstantValue] = Facts(SmallValue())
        self._analyses: tuple[Facts[Any], ...] = (self._numbers, self._values)
        self._stale = False
        self.settled: list[int] = []
        """The class of every handle, as of the last ``follow``."""

    @property
    def numbers(self) -> Mapping[int, float]:
        """Constant classes whose elements are all one number, with the number."""
        return self._numbers.by_class

    def find(self, handle: int) -> int:
        """Return the smallest handle of the same class."""
        root = handle
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[handle] != root:
            self._parent[handle], handle = root, self._parent[handle]
        return root

    @property
    def class_count(self) -> int:
        return sum(1 for handle, parent in enumerate(self._parent) if handle == parent)

    def insert(self, node: Node, operands: Sequence[int], array: np.ndarray | None) -> int:
        """Return the class of a node of the input program; ``array`` holds a constant's elements."""
        key = (node.op, self.labels.of_node(node), tuple(map(self.find, operands)))
        if key not in self.nodes:
            self._add(key, [self.vertices[operand] for operand in operands], node.type, "")
            self._analyse(key)
        handle, vertex = self.nodes[key].handle, self.nodes[key].vertex
        if array is not None:
            for facts in self._analyses:
                self._learn(facts, handle, facts.analysis.of_array(array), vertex)
        return self.find(handle)

    def instantiate(
        self, rule: str, template: Template, operands: Sequence[int], roots: Sequence[int], matched: Sequence[Matched],
        terms: Sequence[int] = (),
    ) -> bool:  # fmt: skip
        """Add right sides over the classes ``operands``, each joined to its root; return whether anything is new.

        ``matched`` are the left sides; ``terms`` are the e-nodes that variables stand for in them, by default each class's first.
        """
        made, joined = len(self.nodes), len(self.joined)
        goals = dict(zip(reversed(template.results), reversed(range(len(roots))), strict=True))
        handles = list(operands)
        vertices = list(terms) or [self.vertices[operand] for operand in operands]
        needs = [pair for left in matched for pair in left.needs]

        def equate(number: int) -> None:
            root, slot = roots[number], template.results[number]
            self.forest.connect(matched[number].vertex, vertices[slot], Reason(rule, needed(needs)))
            self.union(root, handles[slot], rule)

        for op, label, below, type in template.steps:
            key = (op, label, tuple(self.find(handles[k]) for k in below))
            above = [vertices[k] for k in below]
            goal = goals.get(len(handles))
            is_new = key not in self.nodes
            if is_new:
                self._add(key, above, type, rule, None if goal is None else roots[goal])
            entry = self.nodes[key]
            needs += zip(above, self.forest.operands[entry.vertex], strict=True)
            handles.append(entry.handle)
            vertices.append(entry.vertex)
            if goal is not None:
                equate(goal)
            if is_new:
                self._analyse(key)
        for number in range(len(roots)):
            equate(number)
        return len(self.nodes) > made or len(self.joined) > joined

    def _add(self, key: Key, operands: Sequence[int], type: TensorType, rule: str, into: int | None = None) -> None:
        """Make an e-node over the e-nodes ``operands``, in a class of its own or in ``into``."""
        vertex = self.forest.add(operands)
        if into is None:
            into = len(self.types)
            self.types.append(type)
            self.vertices.append(vertex)
            self._parent.append(into)
        self._check_types(self.types[into], type, rule)
        self.nodes[key] = Entry(into, rule, vertex)
        self.added.append((into, *key))

    def _analyse(self, key: Key) -> None:
        """Record the facts that follow from a new e-node's operands."""
        op, label, operands = key
        handle, vertex = self.nodes[key].handle, self.nodes[key].vertex
        if op == "Constant" or (op in OPS and operands and self.constants.issuperset(operands)):
            self._set_constant(self.find(handle))
            types = [self.types[operand] for operand in operands]
            for facts in self._analyses if operands else ():
                facts_of_operands = [facts.by_class.get(operand) for operand in operands]
                self._learn(facts, handle, facts.analysis.make(op, self.labels.attributes(label), types, facts_of_operands), vertex)

    def _learn(self, facts: Facts[Any], handle: int, fact: Any, vertex: int) -> None:
        """Record a fact of an e-node's constant class; classes of one type with equal facts are joined."""
        handle = self.find(handle)
        if fact is None or handle in facts.by_class:
            return
        facts.by_class[handle], facts.vertices[handle] = fact, vertex
        twin = self.find(facts.twins.setdefault((self.types[handle], facts.analysis.key(fact)), handle))
        if twin != handle and facts.analysis.agree(facts.by_class[twin], fact):
            self.forest.connect(facts.vertices[twin], vertex, Reason(FOLDING))
            self.union(twin, handle, FOLDING)

    def union(self, left: int, right: int, rule: str) -> bool:
        """Join two classes, and queue the union for egglog; return False if they were one already. The forest holds the reason."""
        joined = self._join(left, right, rule)
        if joined:
            self.joined.append((left, right))
        return joined

    def _join(self, left: int, right: int, rule: str) -> bool:
        left, right = sorted((self.find(left), self.find(right)))
        if left == right:
            return False
        self._check_types(self.types[left], self.types[right], rule)
        self._parent[right] = left
        self._stale = True
        if right in self.constants:
            self._set_constant(left)
        for facts in self._analyses:
            self._learn(facts, left, facts.by_class.get(right), facts.vertices.get(right, 0))
        return True

    def _check_types(self, left: TensorType, right: TensorType, rule: str) -> None:
        if left != right:
            raise UnsoundRule(f"rule {rule} joins values of the types {left} and {right}", fix=f"leave it out with --skip-rule {rule}")

    def _set_constant(self, handle: int) -> None:
        if handle not in self.constants:
            self.constants.add(handle)
            self.new_constants.append(handle)

    def take(self) -> tuple[list[tuple[int, str, int, tuple[int, ...]]], list[tuple[int, int]], list[int]]:
        """Return the changes since the last call (e-nodes, unions, constants), for egglog."""
        changes = (self.added, self.joined, self.new_constants)
        self.added, self.joined, self.new_constants = [], [], []
        return changes

    def operands_by_class(self) -> dict[str, dict[int, list[tuple[int, ...]]]]:
        """Return the operands of every e-node by operator and class, without e-nodes that are their own operand."""
        result: dict[str, dict[int, list[tuple[int, ...]]]] = {}
        for (op, _, operands), entry in self.nodes.items():
            handle = self.find(entry.handle)
            if handle not in operands:
                result.setdefault(op, {}).setdefault(handle, []).append(operands)
        return result

    @property
    def changed(self) -> bool:
        """Return whether changes wait to be passed on to egglog."""
        return bool(self.added or self.joined or self.new_constants)

    def follow(self, classes: Mapping[int, int], rules: str) -> None:
        """Close under congruence, and adopt egglog's further unions; ``rules`` are named as the cause if types disagree."""
        self.close(rules)
        for handle, root in classes.items():
            if self.find(handle) != self.find(root):
                self.forest.connect(self.vertices[handle], self.vertices[root], Reason(CONGRUENCE))
                self._join(handle, root, rules)
        self.close(rules)
        while self._cancel(rules):
            self.close(rules)
        self.settled = [self.find(handle) for handle in range(len(self._parent))]

    def close(self, rules: str) -> None:
        """Restore congruence: e-nodes whose operands became equal become one e-node, made by the first rule."""
        while self._stale:
            self._stale = False
            self.version += 1
            nodes: dict[Key, Entry] = {}
            for (op, label, operands), entry in self.nodes.items():
                key = (op, label, tuple(self.find(operand) for operand in operands))
                twin = nodes.setdefault(key, entry)
                if twin is not entry:
                    pairs = zip(self.forest.operands[twin.vertex], self.forest.operands[entry.vertex], strict=True)
                    self.forest.connect(twin.vertex, entry.vertex, Reason(CONGRUENCE, needed(pairs)))
                    self._join(twin.handle, entry.handle, rules)
            self.nodes = {key: Entry(self.find(entry.handle), entry.rule, entry.vertex) for key, entry in nodes.items()}
            self._check_inputs(rules)
            self._propagate_constants()

    def _cancel(self, rules: str) -> bool:
        """Join the operands of equal injective operators; return whether any were different."""
        firsts: dict[tuple[str, int, int, TensorType], tuple[int, Entry]] = {}
        different = len(self.joined)
        for (op, label, operands), entry in self.nodes.items():
            if op in INJECTIVE and self.types[operands[0]].is_static:
                (operand,) = operands
                key = (op, label, self.find(entry.handle), self.types[operand])
                first, twin = firsts.setdefault(key, (operand, entry))
                if self.find(first) != self.find(operand):
                    (left,), (right,) = self.forest.operands[twin.vertex], self.forest.operands[entry.vertex]
                    self.forest.connect(left, right, Reason(INJECTIVITY, needed([(twin.vertex, entry.vertex)])))
                    self.union(first, operand, rules)
        return len(self.joined) > different

    def _check_inputs(self, rules: str) -> None:
        inputs: dict[int, Key] = {}
        for key, entry in self.nodes.items():
            if key[0] == "Input" and inputs.setdefault(entry.handle, key) != key:
                what = f"two different inputs of the program became equal through {rules}"
                raise UnsoundRule(what, fix="leave the rule out with --skip-rule NAME")

    def _propagate_constants(self) -> None:
        self.constants = {self.find(handle) for handle in self.constants}
        grown = True
        while grown:
            grown = False
            for (op, _, operands), entry in self.nodes.items():
                if entry.handle not in self.constants and operands and op in OPS and self.constants.issuperset(operands):
                    self._set_constant(entry.handle)
                    grown = True
