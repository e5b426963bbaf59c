"""The functions that a rule is made of, and a rule with one of them replaced.

A rule's function may be one of a family, made inside another function, and it may call functions of its module: every
function that decides what the rule says can be changed.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from egraph import rules as shipped
from egraph.rewrite.law import Written
from egraph.rewrite.library import OPERATORS
from egraph.rewrite.parts import exchanged, reachable
from egraph.rewrite.reader import read_function
from egraph.rewrite.values import Closure, Names, Native, Value
from egraph.rule import MergeRule, Rule, make_rule

SHIPPED = Path(shipped.__file__).parent
FIXED = SHIPPED / "family.py"
"""The file that names and makes rules, which is the same for all."""


def roots(rule: Rule | MergeRule) -> tuple[Written, ...]:
    """Return the laws that a rule holds: of a merge, what it builds and what one member is."""
    laws = (rule.law,) if isinstance(rule, Rule) else (rule.law, rule.member.law)
    return tuple(law for law in laws if isinstance(law, Written))


def parts(rule: Rule | MergeRule) -> tuple[Closure, ...]:
    """Return the functions whose text decides what a rule says, its own first."""
    closures: list[Closure] = []
    for law in roots(rule):
        closures += [value for _, value in reachable(law.closure) if isinstance(value, Closure) and value not in closures]
    home = closures[0].path if closures else ""
    return tuple(each for each in closures if each.path == home or (Path(each.path).parent == SHIPPED and Path(each.path) != FIXED))


@lru_cache(maxsize=64)
def _definitions(path: str) -> Mapping[tuple[str, int], ast.FunctionDef]:
    tree = ast.parse(Path(path).read_bytes())
    return {(node.name, node.lineno): node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def definition(function: Closure) -> ast.FunctionDef | None:
    """Return the text of a function as a tree without decorators; None if there is no text."""
    try:
        syntax_tree = _definitions(function.path).get((function.syntax.name, function.syntax.line))
    except (OSError, SyntaxError):
        return None
    if syntax_tree is None:
        return None
    return ast.FunctionDef(
        syntax_tree.name, syntax_tree.args, syntax_tree.body, [], syntax_tree.returns, syntax_tree.type_comment,
        lineno=syntax_tree.lineno, col_offset=0,
    )  # fmt: skip


def values_around(function: Closure) -> Mapping[str, int | float | str]:
    """Return the plain values that a function reads from around it."""
    read = reachable(function)
    return {name: value for name, value in read if isinstance(value, int | float | str) and not isinstance(value, bool)}


def rebuilt(rule: Rule | MergeRule, name: str, old: Closure, text: ast.FunctionDef, extra: Mapping[str, Native]) -> Rule | MergeRule:
    """Return a rule with a function's text replaced and its pattern read again; ``extra`` holds what changes may call."""
    new = replace(old, syntax=read_function(text, old.path), around=Behind(old.around, {**OPERATORS, **extra}))
    laws = [Written(exchanged(law.closure, old, new, {}), law.lists) for law in roots(rule)]
    if isinstance(rule, Rule):
        made = make_rule(laws[0].closure, name=rule.name, text=rule.text, lists=laws[0].lists, rounding=rule.rounding, phase=rule.phase)
        return replace(made, name=name)
    member = make_rule(laws[1].closure, name=rule.member.name, text=rule.member.text, is_member=True)
    return replace(rule, name=name, law=laws[0], member=member)


@dataclass(frozen=True, eq=False)
class Behind:
    """Names, with more that are used if a name is not among them."""

    around: Names
    more: Mapping[str, Value]

    def find(self, name: str) -> Value:
        try:
            return self.around.find(name)
        except KeyError:
            return self.more[name]
