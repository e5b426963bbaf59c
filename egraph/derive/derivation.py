"""What a derivation is: an equal program for one operator, or for several that one computes, with the steps that lead there.

Rules of each kind answer one question: ``alternatives`` gives, for operators over shared placeholders, programs for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from egraph.tensor import Node, format_fragment

Alternative: TypeAlias = "tuple[Derivation, ...]"
"""A program for each of some operators."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the rule that was used, and the expressions after it, in the papers' notation."""

    rule: str
    text: str


@dataclass(frozen=True, slots=True)
class Derivation:
    """``program`` computes what the derived operator computes, over the same placeholders.

    It is made of core operators, so that rules of the graph apply to it, and of ``Expression`` nodes for what is none of
    them. The name lists the steps; equal programs of one operator are one derivation, the first.
    """

    name: str
    program: Node
    steps: tuple[Step, ...]
    error_bound: float = 0.0
    """Relative error to expect in float32 of the outputs of a model made of such programs, 0 where that is ordinary rounding."""


@dataclass(frozen=True, slots=True)
class DerivationRule:
    """A way to derive programs for operators of the given kinds.

    ``derive`` receives an operator over placeholders (of which some are constants: weights) and yields equal programs; it
    depends on nothing else, so that what it finds holds for every operator of the same signature.
    """

    name: str
    operators: tuple[str, ...]
    derive: Callable[[Node], Iterable[Derivation]]
    rounding: Literal["exact", "reassociates", "assumes finite"] = "reassociates"
    rounds: int = 2
    """In how many rounds it looks for operators: after the first, those that derivations made are there too; 0: only at those of the
    input program, neither at what rules nor at what derivations made of them."""
    NOTHING: ClassVar[str] = ""
    """Why a match is refused without alternatives; '' where that goes without saying."""

    def alternatives(self, roots: Sequence[Node]) -> Iterable[Alternative]:
        (node,) = roots
        return ((derivation,) for derivation in self.derive(node))


def _all(members: Sequence[Node]) -> Sequence[Node]:
    return members


@dataclass(frozen=True, slots=True)
class GroupRule:
    """A way to compute several operators of the input program, none of which depends on another, by one.

    Operators of one ``key`` (None: never), of which ``choose`` keeps those that should go together, are handed to ``merge``
    over shared placeholders; it returns a program for each, that share the one operator, or None where they do not merge.
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

    ``derive`` receives the results as fragments over shared placeholders, and yields for each alternative a program a result; it depends
    on nothing else. Regions hold at most ``most_operators`` operators of these kinds, of which one at least is among ``costly``.
    """

    name: str
    operators: tuple[str, ...]
    costly: tuple[str, ...]
    derive: Callable[[tuple[Node, ...]], Iterable[Alternative]]
    rounding: Literal["exact", "reassociates", "assumes finite"] = "reassociates"
    most_operators: int = 5
    is_quick: bool = False
    """Whether it is asked before single operators are derived from: that may take all the time there is."""
    NOTHING: ClassVar[str] = ""

    def alternatives(self, roots: Sequence[Node]) -> Iterable[Alternative]:
        return self.derive(tuple(roots))


AnyRule: TypeAlias = DerivationRule | GroupRule | RegionRule
