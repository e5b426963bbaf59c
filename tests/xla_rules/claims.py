"""A rule with what is known about it, and two ways to state one: a function with a docstring, or sides without a guard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from egraph.rewrite.law import closure_of
from egraph.rule import Rounding, Rule, rule
from egraph.rules.family import named

Truth: TypeAlias = Literal["true", "false", "not exact"]
"""``not exact``: true of real numbers, and claimed to keep every bit; infinities, no numbers and rounding tell otherwise."""


@dataclass(frozen=True)
class Claim:
    """A rule that a prover should prove, or should not."""

    rule: Rule
    truth: Truth


def claim(truth: Truth, rounding: Rounding = "exact") -> Callable[[Callable[..., Any]], Claim]:
    """Claim the rule that a function states."""
    return lambda function: Claim(rule(rounding=rounding)(function), truth)


def member(truth: Truth, name: str, text: str, law: Callable[..., Any], rounding: Rounding) -> Claim:
    """Claim one rule of a family; parameters of ``law`` without annotations are tensors."""
    closure = closure_of(law)
    parameters = tuple(replace(each, annotation=each.annotation or "Tensor") for each in closure.syntax.parameters)
    return Claim(named(replace(closure, syntax=replace(closure.syntax, parameters=parameters)), name, text, rounding=rounding), truth)


def equation(truth: Truth, name: str, text: str, sides: Callable[..., Any], rounding: Rounding = "assumes finite") -> Claim:
    """Claim an equation of tensors that needs no guard."""
    return member(truth, name, text, sides, "exact" if truth == "not exact" else rounding)
