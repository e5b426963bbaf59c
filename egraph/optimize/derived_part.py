"""Which part of an e-graph derivations made, and where a program uses it: so that single applications can be left out of it.

What rules alone made is found again in the larger e-graph by its terms. A class that rules alone can compute too, but that a program
computes from what derivations made, is an *application*: without it, the class is computed as the rules would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from egraph.tensor import Attributes, Candidate, ENode, FrozenEGraph, Node, Selection

Term: TypeAlias = tuple[str, Attributes, tuple[int, ...]]
CONTRACTIONS = ("Conv", "ConvTranspose", "MatMul")
"""Operators that programs are derived for; between one and the class that is stored, only what is fused with it lies."""


@dataclass(frozen=True)
class DerivedPart:
    """The classes and e-nodes that rules alone made, in the numbers of the e-graph that derivations grew."""

    frozen: FrozenEGraph
    classes: frozenset[int]
    terms: frozenset[Term]
    errors: Mapping[str, float] = field(default_factory=dict)
    """Relative error to expect of each derivation, by its name."""

    def is_derived(self, one: Candidate) -> bool:
        """Return whether a kernel computes, or reads, what derivations made."""
        return any(_term(node) not in self.terms for node in one.covered) or not self.classes.issuperset(one.operands)

    def error_of(self, one: Candidate) -> float | None:
        """Return the error to expect of the derivations that a kernel comes from, None where no name is left of them."""
        return max((self.errors[rule] for node in one.covered for rule in node.rules if rule in self.errors), default=None)

    def applications(self, selection: Selection) -> dict[int, Candidate]:
        """Return the classes that a program computes from what derivations made though rules alone could, each with its kernel."""
        return {number: one for number, one in selection.chosen.items() if number in self.classes and self.is_derived(one)}

    def contractions(self, number: int) -> frozenset[int]:
        """Return the classes of products and convolutions that a class is computed from by what is fused with them alone."""
        return frozenset(below for below in self._down_to_contractions(number) if self._is_contraction(below))

    @cached_property
    def sources(self) -> Mapping[int, tuple[Node, ...]]:
        """The nodes of the input program that a class holds the values of, transposed or reshaped at most."""
        leader: dict[int, int] = {}

        def find(number: int) -> int:
            while leader.setdefault(number, number) != number:
                number = leader[number]
            return number

        for place, nodes in self.frozen.classes.items():
            for node in nodes:
                if node.op in ("Transpose", "Reshape") and _term(node) in self.terms:
                    leader[find(node.children[0])] = find(place)
        groups: dict[int, list[Node]] = {}
        for at, source in self.frozen.source.items():
            groups.setdefault(find(at), []).append(source)
        return {at: tuple(groups.get(find(at), ())) for at in self.frozen.classes}

    def without(
        self, candidates: Mapping[int, tuple[Candidate, ...]], left_out: Mapping[int, float]
    ) -> dict[int, tuple[Candidate, ...]]:
        """Return the candidates without derived ones of these classes that expect as large an error as is said, or an unknown one.

        So it is for all classes down to the product or convolution: else the application would be met there, one bias further down.
        """
        limits: dict[int, float] = {}
        for number, error in left_out.items():
            for below in self._down_to_contractions(number):
                limits[below] = min(error, limits.get(below, error))

        def stays(number: int, one: Candidate) -> bool:
            if number not in limits or not self.is_derived(one):
                return True
            error = self.error_of(one)
            return error is not None and error < limits[number]

        return {number: tuple(one for one in options if stays(number, one)) for number, options in candidates.items()}

    def _is_contraction(self, number: int) -> bool:
        return any(node.op in CONTRACTIONS and _term(node) in self.terms for node in self.frozen.classes[number])

    def _down_to_contractions(self, number: int) -> tuple[int, ...]:
        found, stack = {number: None}, [number]
        while stack:
            at = stack.pop()
            if self._is_contraction(at):
                continue
            for node in self.frozen.classes[at]:
                if _term(node) in self.terms:
                    new = [child for child in node.children if child not in found and child not in self.frozen.given]
                    found |= dict.fromkeys(new)
                    stack += new
        return tuple(found)


def derived_part(by_rules: FrozenEGraph, frozen: FrozenEGraph, errors: Mapping[str, float] | None = None) -> DerivedPart:
    """Return what derivations added to the e-graph ``by_rules``, which has grown to ``frozen``."""
    places = {_term(node): number for number, nodes in frozen.classes.items() for node in nodes}
    numbers: dict[int, int] = {}
    terms: set[Term] = set()
    waiting = sorted(by_rules.classes, reverse=True)  # numbered from the roots: operands come first so
    grown = True
    while grown:
        grown = False
        for old in waiting:
            for node in by_rules.classes[old]:
                if all(child in numbers for child in node.children):
                    term = (node.op, node.attributes, tuple(numbers[child] for child in node.children))
                    if term in places and term not in terms:
                        terms.add(term)
                        numbers.setdefault(old, places[term])
                        grown = True
    return DerivedPart(frozen, frozenset(numbers.values()), frozenset(terms), errors or {})


def _term(node: ENode) -> Term:
    return node.op, node.attributes, node.children
