"""Statements of rule corpora, and the rules of our language that they become.

A statement equates left terms with right terms. If it has several, they are matched together: each equation becomes
a rule whose left side is built after all left terms, so that it holds only where every one of them is well-typed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from bench.corpora.taso_draw import CONSTANTS, draw_shapes
from bench.corpora.taso_operators import Reading
from bench.corpora.taso_values import refuse
from bench.corpora.terms import Application, Term, names, substitute
from egraph.errors import RuleError
from egraph.rewrite.law import Stated
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import Binding, Rule, Steps, Tensor, require
from egraph.tensor import TensorType
from verify.random_binding import Refused

SEED = "seed"
"""A variable that no term mentions: constants are made of it if there is no other tensor."""
ELEMENTS = 4000


@dataclass(frozen=True)
class Guard:
    """A precondition over the tensors that terms denote."""

    text: str
    holds: Callable[[Reading], bool]


@dataclass(frozen=True)
class Statement:
    """left terms = right terms, for tensors of the named ranks."""

    name: str
    lefts: tuple[Term, ...]
    rights: tuple[Term, ...]
    ranks: Mapping[str, int]
    parameters: Mapping[str, Term] = field(default_factory=dict)
    """The values of names that stand for numbers (a stride, an axis)."""
    typed: bool = False
    """Whether it applies only if the right side is well-typed and has the left side's type, as the systems check before applying a rule."""
    guards: tuple[Guard, ...] = ()

    def restricted(self, typed: bool, guards: tuple[Guard, ...]) -> Statement:
        """Return the statement under more preconditions."""
        return replace(self, typed=self.typed or typed, guards=self.guards + guards)


def rules_of(statement: Statement) -> tuple[Rule, ...]:
    """Return one rule per equation of the statement."""
    return tuple(_rule(statement, position) for position in range(len(statement.lefts)))


def _rule(statement: Statement, position: int) -> Rule:
    left, right = statement.lefts[position], statement.rights[position]
    variables = tuple(Variable(name, False) for name in statement.ranks)

    def function(**tensors: Tensor) -> Steps:
        for name, rank in statement.ranks.items():
            require(tensors[name].rank == rank, f"{name} must have {rank} axes")
        reading = Reading(tensors, next(iter(tensors.values())), statement.parameters)
        for left_side in statement.lefts:
            reading.tensor(left_side)
        left_value = reading.tensor(left)
        for guard in statement.guards:
            require(guard.holds(reading), guard.text)
        if statement.typed:
            for each_left, each_right in zip(statement.lefts, statement.rights, strict=True):
                require(reading.tensor(each_right).shape == reading.tensor(each_left).shape, "the right side must have the left's type")
        yield left_value
        result = reading.tensor(right)
        if result.shape != left_value.shape:
            refuse("the right side has another type")
        yield result

    name = statement.name if len(statement.lefts) == 1 else f"{statement.name}.{position}"
    text = f"{substitute(left, statement.parameters)} = {substitute(right, statement.parameters)}"
    drawer = _drawer(statement)
    return Rule(name, text, _pattern(left), variables, (), Stated(function), rounding="assumes finite", draw=drawer, ranks=statement.ranks)


def _pattern(term: Term) -> Pattern:
    """Return the left side as a pattern of its operators: only a description, because attributes follow from sizes."""
    if not isinstance(term, Application):
        return Pattern("Identity", (), (Variable(str(term), False),))
    operands = tuple(
        _pattern(argument) if isinstance(argument, Application) else Variable(argument, False)
        for argument in term.arguments
        if not isinstance(argument, int)
    )
    return Pattern(term.operator, (), operands)


def _drawer(statement: Statement) -> Callable[[Random], Binding]:
    lefts, rights = ([substitute(side, statement.parameters) for side in sides] for sides in (statement.lefts, statement.rights))

    def draw(random: Random) -> Binding:
        shapes = draw_shapes(lefts, rights, statement.ranks, random)
        if max((math.prod(shape) for shape in shapes.values()), default=1) > ELEMENTS:
            raise Refused("too many elements")
        return Binding({name: TensorType("float32", shape) for name, shape in shapes.items()}, {})

    return draw


def free_names(terms: tuple[Term, ...]) -> tuple[str, ...]:
    """Return the variables of terms."""
    return tuple(name for name in names(terms) if name not in CONSTANTS)


def infer_ranks(terms: tuple[Term, ...]) -> Mapping[str, int | None]:
    """Return the rank that operators give every variable, None if any will do; raises ``RuleError`` on a contradiction."""
    ranks: dict[str, int | None] = dict.fromkeys(free_names(terms))
    changed = True

    def settle(term: Term, rank: int | None) -> int | None:
        nonlocal changed
        if isinstance(term, int) or (isinstance(term, str) and term in CONSTANTS):
            return rank
        if isinstance(term, str):
            settled_rank = ranks[term]
            if settled_rank is None and rank is not None:
                ranks[term], changed = rank, True
            elif settled_rank is not None and rank is not None and settled_rank != rank:
                raise RuleError(f"{term} would need {settled_rank} and {rank} axes")
            return ranks[term]
        return apply(term, rank)

    def apply(term: Application, rank: int | None) -> int | None:
        operands: list[Any] = [a for a in term.arguments if not isinstance(a, int)]
        match term.operator:
            case "conv2d" | "poolmax" | "poolavg" | "enlarge" | "merge":
                for operand in operands:
                    settle(operand, 4)
                return 4
            case "matmul" | "transpose":
                for operand in operands:
                    settle(operand, 2)
                return 2
            case "Cpool" | "Iconv":
                return 4
            case "smul":
                settle(operands[1], 0)
                return settle(operands[0], rank)
            case _:
                for operand in operands * 2:
                    operand_rank = settle(operand, rank)
                    rank = operand_rank if rank is None else rank
                return rank

    while changed:
        changed = False
        for term in terms:
            settle(term, None)
    return ranks
