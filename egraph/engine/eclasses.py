"""The e-graph's book in Python: which class each handle is in, its type, its e-nodes, and which rule made each.

egglog decides which classes are equal; this book follows it, and is where soundness is watched: merged classes must
agree in type, and two different inputs of a program can never be equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from egraph.engine.constant_values import ConstantValue, value_of_term
from egraph.engine.encode import Labels
from egraph.engine.uniform import number_of_term
from egraph.errors import EinsatError
from egraph.tensor import TensorType
from egraph.tensor.ops import OPS

Key = tuple[str, int, tuple[int, ...]]
"""Operator, label, operand classes."""

FOLDING = "constant_folding"


class UnsoundRule(EinsatError):
    """A rule joined two values that cannot be equal."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One e-node: the class that it is in, and the rule that made it first ('' for the input program)."""

    handle: int
    rule: str


class EClasses:
    """Union-find over handles with hash-consed e-nodes; e-nodes keep the order in which they were made."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self.types: list[TensorType] = []
        self.nodes: dict[Key, Entry] = {}
        self.constants: set[int] = set()
        self.numbers: dict[int, float] = {}
        """Constant classes all of whose elements are one number."""
        self.added: list[tuple[int, str, int, tuple[int, ...]]] = []
        self.joined: list[tuple[int, int]] = []
        self.new_constants: list[int] = []
        self._parent: list[int] = []
        self.version = 0
        self.values: dict[int, ConstantValue] = {}
        """Small constants whose elements are known."""
        self._uniform: dict[tuple[TensorType, str], int] = {}
        self._by_value: dict[tuple[TensorType, str], int] = {}
        self._stale = False
        self.settled: list[int] = []
        """The class of every handle, as of the last ``follow``."""

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

    def add(self, op: str, label: int, operands: Iterable[int], type: TensorType, rule: str, into: int | None = None) -> int:
        """Return the class of an e-node, made if it is new; a new one goes ``into`` a class where one is given."""
        key = (op, label, tuple(self.find(operand) for operand in operands))
        found = self.nodes.get(key)
        if found is not None:
            if into is not None:
                self.union(into, found.handle, rule)
            return self.find(found.handle)
        if into is None:
            into = len(self.types)
            self.types.append(type)
            self._parent.append(into)
        self._check_types(self.types[into], type, rule)
        self.nodes[key] = Entry(into, rule)
        self.added.append((into, *key))
        if op == "Constant" or (op in OPS and key[2] and self.constants.issuperset(key[2])):
            self._set_constant(self.find(into))
            if key[2]:
                types, numbers = [self.types[operand] for operand in key[2]], [self.numbers.get(operand) for operand in key[2]]
                self.set_number(into, number_of_term(op, self.labels.attributes(label), types, numbers))
                values = [self.values.get(operand) for operand in key[2]]
                self.set_value(into, value_of_term(op, self.labels.attributes(label), types, values))
        return self.find(into)

    def set_number(self, handle: int, number: float | None) -> None:
        """Note that a constant class is one number everywhere; classes of one type and number are one class."""
        handle = self.find(handle)
        if number is None or handle in self.numbers:
            return
        self.numbers[handle] = number
        twin = self._uniform.setdefault((self.types[handle], repr(number)), handle)
        self.union(twin, handle, FOLDING)

    def set_value(self, handle: int, value: ConstantValue | None) -> None:
        """Note a small constant's elements; classes of one type and equal elements are one class."""
        handle = self.find(handle)
        if value is None or handle in self.values:
            return
        self.values[handle] = value
        twin = self._by_value.setdefault((self.types[handle], value.digest), handle)
        if self.values[self.find(twin)].agrees(value):
            self.union(twin, handle, FOLDING)

    def union(self, left: int, right: int, rule: str) -> bool:
        """Join two classes, and tell egglog; False when they were one already."""
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
        self.set_number(left, self.numbers.get(right))
        self.set_value(left, self.values.get(right))
        return True

    def _check_types(self, left: TensorType, right: TensorType, rule: str) -> None:
        if left != right:
            raise UnsoundRule(f"rule {rule} joins values of the types {left} and {right}", fix=f"leave it out with --skip-rule {rule}")

    def _set_constant(self, handle: int) -> None:
        if handle not in self.constants:
            self.constants.add(handle)
            self.new_constants.append(handle)

    def take(self) -> tuple[list[tuple[int, str, int, tuple[int, ...]]], list[tuple[int, int]], list[int]]:
        """Return what changed since the last call (e-nodes, unions, constants), for egglog."""
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
        """Return whether egglog has not been told everything yet."""
        return bool(self.added or self.joined or self.new_constants)

    def follow(self, classes: Mapping[int, int], rules: str) -> None:
        """Take over egglog's classes (its congruence closure); ``rules`` are blamed where types disagree."""
        for handle, root in classes.items():
            if self._parent[handle] != self._parent[root]:
                self._join(handle, root, rules)
        self.close(rules)
        self.settled = [self.find(handle) for handle in range(len(self._parent))]

    def close(self, rules: str) -> None:
        """Restore congruence: e-nodes whose operands became equal are one e-node, made by the first rule."""
        while self._stale:
            self._stale = False
            self.version += 1
            nodes: dict[Key, Entry] = {}
            for (op, label, operands), entry in self.nodes.items():
                key = (op, label, tuple(self.find(operand) for operand in operands))
                twin = nodes.setdefault(key, entry)
                if twin is not entry:
                    self._join(twin.handle, entry.handle, rules)
            self.nodes = {key: Entry(self.find(entry.handle), entry.rule) for key, entry in nodes.items()}
            self._check_inputs(rules)
            self._propagate_constants()

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
