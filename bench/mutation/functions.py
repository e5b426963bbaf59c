"""The functions that a rule is made of, and a rule with one of them replaced.

A rule's function may be one of a family, made inside another function, and it may call functions of its module: whatever
decides what the rule says can be changed.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import CellType, CodeType, FunctionType
from typing import Any, TypeAlias

from egraph import rule_operators
from egraph.rule import MergeRule, Rule
from egraph.rule import rule as make_rule

Function: TypeAlias = Callable[..., Any]
FIXED = ("egraph.rule", "egraph.rule_terms", "egraph.rule_operators", "egraph.rules.family")
"""Modules of the rule language itself."""
SHIPPED = "egraph.rules."


def roots(rule: Rule | MergeRule) -> tuple[Function, ...]:
    """Return the functions that a rule holds: of a merge, what it builds and what one member is."""
    return (rule.function,) if isinstance(rule, Rule) else (rule.function, rule.member.function)


def parts(rule: Rule | MergeRule) -> tuple[FunctionType, ...]:
    """Return the functions whose text decides what a rule says, its own first."""
    found: list[FunctionType] = []
    waiting = [root for root in roots(rule) if isinstance(root, FunctionType)]
    for function in waiting:
        for _, value in references(function):
            if value not in waiting:
                waiting.append(value)
        if function.__module__ not in FIXED:
            found.append(function)
    homes = {function.__module__ for function in found[:1]}
    return tuple(function for function in found if function.__module__ in homes or function.__module__.startswith(SHIPPED))


def references(function: FunctionType) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions that a function reads by name, from around it and from its module."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if isinstance(value := _content(cell), FunctionType):
            yield name, value
    for name in sorted(_names(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, FunctionType) and value.__module__ not in FIXED:
            yield name, value


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return None


def _names(code: CodeType) -> set[str]:
    inner = (_names(constant) for constant in code.co_consts if isinstance(constant, CodeType))
    return set(code.co_names).union(*inner)


def definition(function: FunctionType) -> ast.FunctionDef | None:
    """Return the text of a function as a tree without decorators, None where there is no text."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None
    found = tree.body[0]
    if not isinstance(found, ast.FunctionDef) or found.name != function.__code__.co_name:
        return None
    found.decorator_list = []
    return found


def compiled(original: FunctionType, text: ast.FunctionDef, extra: Mapping[str, Any]) -> FunctionType:
    """Return a changed function with the original's globals and closure; ``extra`` holds what changes may call."""
    closure = inspect.getclosurevars(original).nonlocals
    module = ast.parse(f"def _outer({', '.join(closure)}):\n    return {text.name}")
    outer = module.body[0]
    assert isinstance(outer, ast.FunctionDef)
    outer.body.insert(0, text)
    ast.fix_missing_locations(module)
    space: dict[str, Any] = {**vars(rule_operators), **original.__globals__, **extra}
    exec(compile(module, f"<mutant of {original.__name__}>", "exec", flags=0, dont_inherit=True), space)
    function: FunctionType = space["_outer"](**closure)
    return _dressed(function, original)


def _dressed(function: FunctionType, original: FunctionType) -> FunctionType:
    function.__annotations__, function.__doc__, function.__name__ = dict(original.__annotations__), original.__doc__, original.__name__
    function.__module__, function.__kwdefaults__ = original.__module__, original.__kwdefaults__
    function.__dict__.update(original.__dict__)
    return function


def exchanged(function: FunctionType, old: FunctionType, new: FunctionType, above: tuple[FunctionType, ...] = ()) -> FunctionType:
    """Return a function with another one in place of ``old``, wherever it is called from; the same where it is not."""
    if function is old:
        return new
    if function in above:  # it calls itself
        return function
    changed = {name: made for name, value in references(function) if (made := exchanged(value, old, new, (*above, function))) is not value}
    if not changed:
        return function
    names = function.__code__.co_freevars
    cells = tuple(
        CellType(changed[name]) if name in changed else cell for name, cell in zip(names, function.__closure__ or (), strict=True)
    )
    space = {**function.__globals__, **{name: made for name, made in changed.items() if name not in names}}
    return _dressed(FunctionType(function.__code__, space, function.__name__, function.__defaults__, cells), function)


def rebuilt(rule: Rule | MergeRule, name: str, old: FunctionType, new: FunctionType) -> Rule | MergeRule:
    """Return a rule with a function replaced, its pattern read anew."""
    made = [exchanged(root, old, new) if isinstance(root, FunctionType) else root for root in roots(rule)]
    if isinstance(rule, Rule):
        return replace(make_rule(rounding=rule.rounding, phase=rule.phase)(made[0]), name=name)
    member = rule.member if made[1] is rule.member.function else make_rule(made[1])
    return replace(rule, name=name, function=made[0], member=member)
