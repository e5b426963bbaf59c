"""Families: one equation stated for many operators or arities gives one rule each.

Patterns name their operator, so ``f(transpose x) = transpose(f x)`` is written once, as a function of f's name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from egraph.rewrite.law import closure_of
from egraph.rewrite.values import Closure
from egraph.rule import Rounding, Rule, make_rule

Function: TypeAlias = Callable[..., Any] | Closure

UNARY = (
    "Abs", "Erf", "Exp", "HardSwish", "Log", "Mish", "Neg", "Reciprocal", "Relu", "Sigmoid", "Softplus", "Softsign", "Sqrt", "Tanh",
)
"""Elementwise operators of one operand without attributes."""
UNARY_WITH_ATTRIBUTES = ("Clip", "Elu", "Gelu", "HardSigmoid", "LeakyRelu")
BINARY = ("Add", "Div", "Max", "Min", "Mul", "Pow", "Sub")
"""Elementwise operators of two operands that broadcast."""


def snake(name: str) -> str:
    """Return ``HardSwish`` as ``hard_swish``."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().replace("mat_mul", "matmul")


def named(function: Function, name: str, equation: str, *, rounding: Rounding = "exact") -> Rule:
    """Make a rule of one member of a family; the template's own docstring follows the member's equation."""
    return make_rule(function, name=name, text=_stated(function, equation), rounding=rounding)


def of_arity(function: Function, count: int | Mapping[str, int], equation: str, *, rounding: Rounding = "exact") -> Rule:
    """Make a rule of a function of lists: each list parameter becomes ``count`` variables ``x1, x2, ...``.

    With one count for all lists it ends the rule's name."""
    closure = function if isinstance(function, Closure) else closure_of(function)
    lists = [each.name for each in closure.syntax.parameters if each.annotation.startswith("list[")]
    counts = dict.fromkeys(lists, count) if isinstance(count, int) else {name: count[name] for name in lists}
    base = function.name if isinstance(function, Closure) else function.__name__
    name = f"{base}_{count}" if isinstance(count, int) else base
    return make_rule(function, name=name, text=_stated(function, equation), lists=counts, rounding=rounding)


def _stated(function: Function, equation: str) -> str:
    because = function.text if isinstance(function, Closure) else inspect.getdoc(function)
    return equation + (f"\n\n{because}" if because else "")


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that undoes ``perm``."""
    return tuple(perm.index(axis) for axis in range(len(perm)))

