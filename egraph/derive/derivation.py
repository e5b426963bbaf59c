"""Derivations: equal programs for one operator, or for several that one operator computes, with the steps that lead there.

Each kind of rule has one method: ``alternatives`` returns, for operators over shared placeholders, programs for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from egraph.tensor import Node, format_fragment

Alternative: TypeAlias = "tuple[Derivation, ...]"
"""A program for each of several operators."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the rule that was applied, and the expressions after it, in the papers' notation."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Derivation:
    """A ``program`` that computes the same as the derived operator, over the same placeholders.

    It is made of core operators, so that rules of the graph apply to it, and of ``Expression`` nodes where no core operator fits.
    The name lists the steps. Equal programs of one operator are one derivation, the first.
    """

    name: str
    program: Node
    steps: tuple[Step, ...]
    error_bound: float = 0.0
    """Expected relative error in float32 of the outputs of a model made of such programs; 0 for ordinary rounding."""


@dataclass(frozen=True, slots=True)
class DerivationRule:
    """A way to derive programs for operators of the given kinds.

    ``derive`` receives an operator over placeholders (of which some are constants: weights) and yields equal programs. It depends on
    nothing else, so its results hold for every operator of the same signature.
    """

    name: str
    operators: tuple[str, ...]
    derive: Callable[[Node], Iterable[Derivation]]
    rounding: Literal["exact", "reassociates", "assumes finite"] = "reassociates"
    rounds: int = 2
    """The number of rounds in which the rule looks for operators. After the first round it also sees the operators that derivations made.
    With 0, it sees only the operators of the input program, and none that rules or derivations made of them."""
    NOTHING: ClassVar[str] = ""
    """The reason for a match without alternatives; '' if none needs to be given."""

    def alternatives(self, roots: Sequence[Node]) -> Iterable[Alternative]:
        (node,) = roots
        return ((derivation,) for derivation in self.derive(node))


def _all(members: Sequence[Node]) -> Sequence[Node]:
    return members


@dataclass(frozen=True, slots=True)
class GroupRule:
    """A way to compute several operators of the input program, none of which depends on another, by one.

    Operators with an equal ``key`` form a group (None: no group), of which ``choose`` keeps those that should be merged. ``merge``
    receives them over shared placeholders. It returns a program for each, which share the one operator, or None if they do not merge.
    """

    name: str
    operators: tuple[str, ...]
    key: Callable[[Node], object]
    merge: Callable[[Sequence[Node]], tuple[Node, ...] | None]
    choose: Callable[[Sequence[Node]], Sequence[Node]] = _all
    rounding: Literal["exact", "reassociates", "assumes finite"] = "reassociates"
    NOTHING: ClassVar[str] = "no operator computes all of them"

    def alternatives(self, roots: Sequence[Node]) -> Iterable[Alternative]:
        programs = self.merge(roots)
        if programs is not None:
            yield tuple(Derivation(self.name, program, (Step("one operator for all", format_fragment(program)),)) for program in programs)


@dataclass(frozen=True, slots=True)
class RegionRule:
    """A way to compute connected operators of the input program, with one or several results, by other programs.

    ``derive`` receives the results as fragments over shared placeholders. It yields alternatives with one program per result, and depends
    on nothing else. A region holds at most ``most_operators`` operators of these kinds, at least one of them among ``costly``.
    """

    name: str
    operators: tuple[str, ...]
    costly: tuple[str, ...]
    derive: Callable[[tuple[Node, ...]], Iterable[Alternative]]
    rounding: Literal["exact", "reassociates", "assumes finite"] = "reassociates"
    most_operators: int = 5
    is_quick: bool = False
    """Whether the rule runs before the derivations of single operators, which may use up the whole time budget."""
    NOTHING: ClassVar[str] = ""

    def alternatives(self, roots: Sequence[Node]) -> Iterable[Alternative]:
        return self.derive(tuple(roots))


AnyRule: TypeAlias = DerivationRule | GroupRule | RegionRule
