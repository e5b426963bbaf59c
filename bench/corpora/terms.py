"""Terms of rule corpora: operators over variables and integers, read from s-expressions or nested lists."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from egraph.errors import RuleError

Term: TypeAlias = "Application | str | int"
"""A string is a variable (or a named constant), an integer a parameter."""


@dataclass(frozen=True)
class Application:
    """An operator applied to terms, parameters among them."""

    operator: str
    arguments: tuple[Term, ...]
    _hash: int = field(init=False, repr=False, compare=False)
    """Cached, because terms are keys of dictionaries, and hashing goes through all their arguments."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.operator, self.arguments)))

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return f"({' '.join([self.operator, *map(str, self.arguments)])})"


def from_lists(tree: object) -> Term:
    """Return nested lists, as JSON holds them, as a term; raises ``RuleError`` on anything else."""
    match tree:
        case int() | str():
            return tree
        case [str(operator), *arguments]:
            return Application(operator, tuple(from_lists(argument) for argument in arguments))
    raise RuleError(f"not a term: {tree!r}", fix="a term is [operator, argument, ...], a variable or an integer")


def parse(text: str) -> Term:
    """Return an s-expression as a term: ``(ewadd ?x (relu ?y))``; raises ``RuleError`` if parentheses do not match."""
    tokens = re.findall(r"[()]|[^\s()]+", text)
    stack: list[list[object]] = [[]]
    for token in tokens:
        if token == "(":
            stack.append([])
        elif token == ")":
            if len(stack) == 1:
                raise RuleError(f"a parenthesis too many in {text!r}")
            finished = stack.pop()
            stack[-1].append(finished)
        else:
            stack[-1].append(int(token) if re.fullmatch(r"-?\d+", token) else token)
    if len(stack) != 1 or len(stack[0]) != 1:
        raise RuleError(f"not one s-expression: {text!r}")
    return from_lists(stack[0][0])


def walk(term: Term) -> Iterator[Application]:
    """Yield every application in a term, outermost first."""
    if isinstance(term, Application):
        yield term
        for argument in term.arguments:
            yield from walk(argument)


def names(terms: Sequence[Term]) -> tuple[str, ...]:
    """Return every name in the terms once, in order of appearance."""
    variables: dict[str, None] = {}

    def visit(term: Term) -> None:
        if isinstance(term, str):
            variables.setdefault(term)
        elif isinstance(term, Application):
            for argument in term.arguments:
                visit(argument)

    for term in terms:
        visit(term)
    return tuple(variables)


def substitute(term: Term, values: Mapping[str, Term]) -> Term:
    """Return the term with names replaced."""
    if isinstance(term, str):
        return values.get(term, term)
    if isinstance(term, Application) and values:
        return Application(term.operator, tuple(substitute(argument, values) for argument in term.arguments))
    return term
