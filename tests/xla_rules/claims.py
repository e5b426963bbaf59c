"""A rule with what is known about it, and two ways to state one: a function with a docstring, or sides without a guard."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from egraph.rule import Rounding, Rule, Tensor, rule
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
    parameters = [
        parameter.replace(annotation=Tensor) if parameter.annotation is parameter.empty else parameter
        for parameter in inspect.signature(law, eval_str=True).parameters.values()
    ]
    law.__dict__["__signature__"] = inspect.Signature(parameters)
    return Claim(named(law, name, text, rounding=rounding), truth)


def equation(truth: Truth, name: str, text: str, sides: Callable[..., Any], rounding: Rounding = "assumes finite") -> Claim:
    """Claim an equation of tensors that needs no guard."""
    return member(truth, name, text, sides, "exact" if truth == "not exact" else rounding)
