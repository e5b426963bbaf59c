"""The mutants of a rule: every change of a function that decides what it says."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.mutation.changes import Surroundings, changes
from bench.mutation.functions import definition, parts, rebuilt, values_around
from bench.mutation.vocabulary import CALLED
from egraph.errors import EinsatError
from egraph.rewrite.law import Written
from egraph.rewrite.terms import Pattern, Variable
from egraph.rewrite.values import Closure
from egraph.rule import MergeRule, Rule
from egraph.tensor.ops import OPS

NO_RULE = (
    EinsatError, TypeError, ValueError, AttributeError, AssertionError, IndexError, KeyError, StopIteration, NameError, ZeroDivisionError,
    RuntimeError,
)  # fmt: skip
"""Errors of a change after which there is no rule."""


@dataclass(frozen=True)
class Mutant:
    """A changed rule, and what was changed."""

    rule: Rule | MergeRule
    change: str
    line: str
    text: str
    """The changed function."""

    @property
    def description(self) -> str:
        return f"{self.rule.name}: {self.change} in {' '.join(self.line.split())}"


@dataclass(frozen=True)
class Site:
    """One possible change of a rule: the position-th of one of its functions."""

    function: Closure
    position: int
    change: str
    number: int


def sites(rule: Rule | MergeRule) -> tuple[Site, ...]:
    """Return all changes of a rule, in a fixed order."""
    sites: list[Site] = []
    for function in parts(rule):
        text = definition(function)
        if text is not None:
            for position, (change, _, _) in enumerate(changes(text, _around(rule, function))):
                sites.append(Site(function, position, change, len(sites)))
    return tuple(sites)


def made(rule: Rule | MergeRule, site: Site) -> Mutant | None:
    """Return the rule with a change made; None if it changes nothing, or is then no rule."""
    original = definition(site.function)
    assert original is not None
    text = copy.deepcopy(original)
    change, node, apply = list(changes(text, _around(rule, site.function)))[site.position]
    before = ast.unparse(node)
    apply()
    written = ast.unparse(ast.fix_missing_locations(text))
    if written == ast.unparse(original):
        return None
    try:
        return Mutant(rebuilt(rule, f"{rule.name}~{site.number}", site.function, text, CALLED), change, before, written)
    except NO_RULE:
        return None


def mutants(rule: Rule | MergeRule) -> Iterator[Mutant | None]:
    """Yield every mutant of a rule in a fixed order; None for a change after which it is no rule."""
    return (made(rule, site) for site in sites(rule))


def _around(rule: Rule | MergeRule, function: Closure) -> Surroundings:
    """Return what is known of a function's names; attributes are known where the rule itself calls it."""
    is_own = isinstance(rule.law, Written) and function is rule.law.closure
    pattern = rule.pattern if isinstance(rule, Rule) else rule.member.pattern
    return Surroundings(_bundles(pattern) if is_own else {}, values_around(function), is_own and isinstance(rule, MergeRule))


def _bundles(term: Pattern | Variable) -> Mapping[str, Sequence[str]]:
    if isinstance(term, Variable):
        return {}
    bundles = {name: names for operand in term.operands for name, names in _bundles(operand).items()}
    return {**bundles, term.attributes: OPS[term.op].attributes} if isinstance(term.attributes, str) else bundles
