"""The parts of a function of the rule language: the functions that it may call, the values that it reads, its text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache

from egraph.errors import RuleError
from egraph.rewrite import syntax
from egraph.rewrite.values import Closure, Names, Namespace, Value


@dataclass(frozen=True, eq=False)
class Overlay:
    """A scope of some names inside an enclosing scope."""

    names: Mapping[str, Value]
    around: Names

    def find(self, name: str) -> Value:
        return self.names[name] if name in self.names else self.around.find(name)


@lru_cache(maxsize=4096)
def mentioned(node: syntax.Function) -> frozenset[str]:
    """Return every name that a function reads and does not bind itself."""
    every = [*pieces(node.body), *pieces(tuple(each.default for each in node.parameters))]
    bound = {each.name for each in node.parameters}
    for each in every:
        match each:
            case syntax.Assign(targets=targets):
                bound |= {name.name for name in pieces(targets) if isinstance(name, syntax.Name)} - _read_in(targets)
            case syntax.For(target=target):
                bound |= {name.name for name in pieces(target) if isinstance(name, syntax.Name)} - _read_in((target,))
    return frozenset(each.name for each in every if isinstance(each, syntax.Name)) - bound


def _read_in(targets: tuple[syntax.Target, ...]) -> frozenset[str]:
    """Return the names that assignment targets read: those whose elements are changed."""
    elements = (each for each in pieces(targets) if isinstance(each, syntax.Element | syntax.Field))
    return frozenset(name.name for each in elements for name in pieces(each) if isinstance(name, syntax.Name))


def pieces(node: object) -> Iterator[object]:
    """Yield a piece of syntax and all pieces inside it."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, tuple):
            waiting += reversed(each)
        elif names := _field_names(type(each)):
            yield each
            waiting += [getattr(each, name) for name in names]


_FIELD_NAMES: dict[type, tuple[str, ...]] = {}
"""Cached names of the fields of each type, because ``fields`` is slow."""


def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of a piece's fields, the last one first; () if the type is not one of a piece."""
    if kind not in _FIELD_NAMES:
        _FIELD_NAMES[kind] = tuple(field.name for field in reversed(fields(kind))) if is_dataclass(kind) else ()
    return _FIELD_NAMES[kind]


def misplaced_text(node: object) -> int | None:
    """Return the line of an f-string that is not the reason of a refusal, None if there is none."""
    match node:
        case syntax.Text():
            return node.line
        case syntax.Assert(test=test):
            return misplaced_text(test)
        case syntax.Call(function=syntax.Name(name="require"), arguments=(condition, *_)):
            return misplaced_text(condition)
        case tuple():
            lines = (misplaced_text(each) for each in node)
        case syntax.Function(body=body):
            lines = (misplaced_text(each) for each in body)
        case _ if is_dataclass(node):
            lines = (misplaced_text(getattr(node, field.name)) for field in fields(node))
        case _:
            return None
    return next((line for line in lines if line is not None), None)


def reachable(closure: Closure) -> Iterator[tuple[str, object]]:
    """Yield a function, the functions that it may call and the values that they read, each with its name."""
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [("", closure)]
    while waiting:
        name, value = waiting.pop(0)
        if isinstance(value, tuple) and any(isinstance(each, Closure) for each in value):
            waiting += [(name, each) for each in value]
            continue
        if not isinstance(value, Closure):
            yield name, value
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield name, value
        waiting += sorted(value.defaults.items())
        for each in sorted(mentioned(value.syntax)):
            try:
                member = value.around.find(each)
            except KeyError:
                continue
            if isinstance(member, Namespace):
                waiting += [(f"{each}.{name}", member.members[name]) for name in _used_of(value.syntax, each) if name in member.members]
            else:
                waiting.append((each, member))


@lru_cache(maxsize=4096)
def _used_of(node: syntax.Function, module: str) -> tuple[str, ...]:
    """Return the members of a module that a function uses."""
    read = (each for each in pieces(node) if isinstance(each, syntax.Field))
    return tuple(sorted({each.name for each in read if isinstance(each.value, syntax.Name) and each.value.name == module}))


def exchanged(closure: Closure, old: Closure, new: Closure, made: dict[int, Closure]) -> Closure:
    """Return a function with ``new`` in place of ``old`` wherever ``old`` is called; unchanged if it is never called."""
    if id(closure) in made:
        return made[id(closure)]
    made[id(closure)] = closure  # for a function that calls itself
    names: dict[str, Value] = {}
    for each in mentioned(closure.syntax):
        try:
            value = closure.around.find(each)
        except (KeyError, RuleError):
            continue
        if isinstance(value, Closure) and (other := exchanged(value, old, new, made)) is not value:
            names[each] = other
    if closure is old or names:
        base = new if closure is old else closure
        made[id(closure)] = replace(base, around=Overlay(names, base.around)) if names else base
    return made[id(closure)]
