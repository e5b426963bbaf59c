"""Families: one equation stated for many operators or arities gives one rule each.

Patterns name their operator, so ``f(transpose x) = transpose(f x)`` is written once, as a function of f's name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from egraph.rule import Rounding, Rule, Tensor, Weight, rule

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


def named(function: Callable[..., Any], name: str, equation: str, *, rounding: Rounding = "exact") -> Rule:
    """Make a rule of one member of a family; the template's own docstring follows the member's equation."""
    because = inspect.getdoc(function)
    function.__name__ = name
    function.__doc__ = equation + (f"\n\n{because}" if because else "")
    return rule(rounding=rounding)(function)


def of_arity(function: Callable[..., Any], count: int | Mapping[str, int], equation: str, *, rounding: Rounding = "exact") -> Rule:
    """Make a rule of a function of lists: each list parameter becomes ``count`` variables ``x1, x2, ...``.

    With one count for all lists it ends the rule's name."""
    counts = dict.fromkeys(inspect.signature(function).parameters, count) if isinstance(count, int) else count
    bundles = inspect.signature(function, eval_str=True).parameters
    parameters: list[inspect.Parameter] = []
    for name, parameter in bundles.items():
        if parameter.annotation in (list[Tensor], list[Weight]):
            kind = Weight if parameter.annotation == list[Weight] else Tensor
            parameters += [parameter.replace(name=f"{name}{i + 1}", annotation=kind) for i in range(counts[name])]
        else:
            parameters.append(parameter)

    def spread(**given: Any) -> Any:
        return function(**{
            name: given[name] if name in given else [given[f"{name}{i + 1}"] for i in range(counts[name])] for name in bundles
        })

    spread.__dict__["__signature__"] = inspect.Signature(parameters)
    spread.__doc__ = function.__doc__
    name = f"{function.__name__}_{count}" if isinstance(count, int) else function.__name__
    return named(spread, name, equation, rounding=rounding)


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that undoes ``perm``."""
    return tuple(perm.index(axis) for axis in range(len(perm)))

