"""The possible changes in the text of a function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

from bench.mutation.vocabulary import FUNCTIONS, KINDS, LEFT_OUT, NAMES, OPERATORS, ORDERED, REQUIRE, WAYS

Change: TypeAlias = tuple[str, ast.AST, Callable[[], None]]
"""The name of the change, its place, and a function that makes it."""


@dataclass(frozen=True)
class Surroundings:
    """The names that a function uses. ``bundles``: attributes of its parameters; ``values``: values from around it.

    ``right``: whether all of the function makes right sides, like the function that builds a merge.
    """

    bundles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    right: bool = False


def changes(definition: ast.FunctionDef, around: Surroundings) -> Iterator[Change]:
    """Yield the possible changes of a function, in a fixed order."""
    right = _right_side(definition, around)
    operands = _parameters(definition, ("Tensor", "Weight"))
    for parent in ast.walk(definition):
        if parent is not definition and isinstance(parent, ast.FunctionDef | ast.Lambda | ast.arg):
            continue
        yield from _of_statements(parent)
        for slot, node in _children(parent):
            if isinstance(node, ast.arguments) or slot.name in ("returns", "annotation"):
                continue
            yield from _of_node(node)
            if isinstance(node, ast.expr):
                yield from _replacements(slot, node, around)
                if id(node) in right:
                    yield from _on_the_right(slot, node, around, operands)


@dataclass(frozen=True)
class Place:
    """The place of a node in a tree."""

    parent: ast.AST
    name: str
    position: int | None

    def put(self, node: ast.AST) -> None:
        """Put another node there."""
        if self.position is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.position] = node


def _children(parent: ast.AST) -> Iterator[tuple[Place, ast.AST]]:
    for name, value in ast.iter_fields(parent):
        if isinstance(value, ast.AST):
            yield Place(parent, name, None), value
        elif isinstance(value, list):
            yield from ((Place(parent, name, i), each) for i, each in enumerate(value) if isinstance(each, ast.AST))


def _right_side(definition: ast.FunctionDef, around: Surroundings) -> set[int]:
    """Return the nodes that make the right side: the second operand of an equation, what follows the first ``yield``."""
    if around.right:
        return {id(node) for node in ast.walk(definition)}
    nodes: set[int] = set()
    past = False
    for statement in definition.body:
        if past:
            nodes |= {id(node) for node in ast.walk(statement)}
        past = past or any(isinstance(node, ast.Yield) for node in ast.walk(statement))
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Compare):
            nodes |= {id(node) for node in ast.walk(statement.value.comparators[0])}
    return nodes


def _parameters(definition: ast.FunctionDef, kinds: Sequence[str]) -> tuple[str, ...]:
    arguments = definition.args.args
    return tuple(a.arg for a in arguments if isinstance(a.annotation, ast.Name) and a.annotation.id in kinds)


def called(value: ast.AST) -> str:
    """Return the name of the function that is called; '' if none is called by name."""
    return value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""


def _of_statements(holder: ast.AST) -> Iterator[Change]:
    for block in ("body", "orelse"):
        statements = getattr(holder, block, None)
        for position, statement in enumerate(statements if isinstance(statements, list) else ()):
            drop = partial(Place(holder, block, position).put, ast.Pass())
            match statement:
                case ast.Expr(value=ast.Call() as call) if called(call) in REQUIRE:
                    yield "guard dropped", statement, drop
                    if called(call) == "require":
                        yield "guard turned round", statement, partial(_negate, call.args, 0)
                case ast.AugAssign() | ast.Assign(value=ast.Name()):
                    yield "statement dropped", statement, drop
                case ast.If(orelse=[]):
                    yield "condition turned round", statement.test, partial(_set, statement, "test", _not(statement.test))
                case ast.If(body=body, orelse=orelse):
                    yield "branches swapped", statement.test, partial(_set_both, statement, "body", orelse, "orelse", body)


def _of_node(node: ast.AST) -> Iterator[Change]:
    match node:
        case ast.BinOp(op=operator):
            if type(operator) in OPERATORS:
                yield "operator replaced", node, partial(_set, node, "op", OPERATORS[type(operator)]())
            if not isinstance(operator, ast.Add | ast.Mult):
                yield "operands swapped", node, partial(_set_both, node, "left", node.right, "right", node.left)
        case ast.Compare(ops=[operator]) if type(operator) in OPERATORS and not _is_equation(node):
            yield "comparison replaced", node, partial(_set, node, "ops", [OPERATORS[type(operator)]()])
        case ast.BoolOp(values=values):
            for position in range(len(values)):
                remaining = [*values[:position], *values[position + 1 :]]
                yield "condition weakened", node, partial(_set, node, "values", remaining if len(remaining) > 1 else remaining * 2)
        case ast.IfExp(body=body, orelse=orelse):
            yield "branches swapped", node, partial(_set_both, node, "body", orelse, "orelse", body)
        case ast.comprehension(ifs=[condition, *_] as conditions):
            yield "condition weakened", condition, partial(_remove, conditions, 0)
            yield "condition turned round", condition, partial(_negate, conditions, 0)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            if name in FUNCTIONS:
                yield "function replaced", node, partial(_set, node.func, "id", FUNCTIONS[name])
            if name not in ORDERED:
                plain = [i for i, a in enumerate(arguments) if not isinstance(a, ast.Starred | ast.Constant)]
                for first, second in pairwise(plain):
                    yield "arguments swapped", node, partial(_exchange, arguments, first, second)
            if name == "zip" and len(arguments) > 1:
                yield "order turned round", node, partial(arguments.__setitem__, 1, _call("_backwards", arguments[1]))
            yield from _of_keywords(node)
        case ast.Call(func=ast.Attribute(attr="but"), keywords=keywords):
            for position in range(len(keywords)):
                yield "attribute left as it was", node, partial(_remove, keywords, position)
            yield from _of_keywords(node)
        case ast.Call(func=ast.Attribute(attr="reshape" | "transpose"), args=arguments):
            for first, (left, right) in enumerate(pairwise(arguments)):
                if not isinstance(left, ast.Starred) and not isinstance(right, ast.Starred):
                    yield "arguments swapped", node, partial(_exchange, arguments, first, first + 1)
        case ast.Starred(value=value, ctx=ast.Load()):
            yield "order turned round", node, partial(_set, node, "value", _call("_backwards", value))
        case ast.Tuple(elts=elements, ctx=ast.Load()):
            for first in range(len(elements) - 1):
                yield "entries swapped", node, partial(_exchange, elements, first, first + 1)
        case ast.Slice(lower=lower, upper=upper):
            for name, bound in (("lower", lower), ("upper", upper)):
                if bound is not None and not isinstance(bound, ast.Constant):
                    yield "number off by one", node, partial(_set, node, name, _more(bound))
        case ast.Subscript(slice=ast.Name() | ast.BinOp() | ast.Attribute() as index, ctx=ast.Load()):
            yield "number off by one", node, partial(_set, node, "slice", ast.BinOp(index, ast.Sub(), ast.Constant(1)))


def _of_keywords(node: ast.Call) -> Iterator[Change]:
    keywords = [keyword for keyword in node.keywords if keyword.arg not in (None, "strict", "a", "by")]
    for first, second in pairwise(keywords):
        yield "attributes swapped", node, partial(_set_both, first, "value", second.value, "value", first.value, second)
    for keyword in keywords:
        for way in range(WAYS):
            name = KINDS.get(str(keyword.arg), "attribute changed")
            yield name, node, partial(_set, keyword, "value", _call("_changed", keyword.value, ast.Constant(way)))


def _replacements(slot: Place, node: ast.expr, around: Surroundings) -> Iterator[Change]:
    """Yield replacements of a node: an operand for an operator, another number or name from its surroundings."""
    match node:
        case ast.BinOp(left=left, right=right):
            yield "operand dropped", node, partial(slot.put, left)
            yield "operand dropped", node, partial(slot.put, right)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "function left out", node, partial(slot.put, operand)
        case ast.Call(func=ast.Name(id=name), args=[first, *others]) if name in LEFT_OUT and not isinstance(first, ast.Starred):
            yield "function left out", node, partial(slot.put, others[0] if name == "unary" and others else first)
        case ast.Call(func=ast.Attribute(attr="reshape" | "transpose", value=value)):
            yield "function left out", node, partial(slot.put, value)
        case ast.Name(id=name, ctx=ast.Load()) if name in around.values:
            yield from _of_constant(slot, node, around.values[name])
        case ast.Constant(value=value):
            yield from _of_constant(slot, node, value)


def _of_constant(slot: Place, node: ast.expr, value: object) -> Iterator[Change]:
    match value:
        case bool():
            if isinstance(node, ast.Name):
                yield "condition turned round", node, partial(slot.put, ast.Constant(not value))
        case int():
            yield "number off by one", node, partial(slot.put, ast.Constant(value + 1))
            yield "number off by one", node, partial(slot.put, ast.Constant(value - 1))
        case float():
            yield "constant replaced", node, partial(slot.put, ast.Constant(value + 1.0))
            if value:
                yield "constant replaced", node, partial(slot.put, ast.Constant(-value))
        case str() if value in NAMES:
            yield "name replaced", node, partial(slot.put, ast.Constant(NAMES[value]))


def _on_the_right(slot: Place, node: ast.expr, around: Surroundings, operands: Sequence[str]) -> Iterator[Change]:
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or isinstance(slot.parent, ast.Attribute):
        return
    for operand in operands if node.id in operands else ():
        if operand != node.id:
            yield "operand replaced", node, partial(slot.put, ast.Name(operand, ast.Load()))
    if node.id in operands:
        yield "operand negated", node, partial(slot.put, ast.UnaryOp(ast.USub(), node))
    if node.id in around.bundles and isinstance(slot.parent, ast.Call | ast.keyword):
        for attribute in around.bundles[node.id]:
            for way in range(WAYS):
                made = _call("_altered", node, ast.Constant(attribute), ast.Constant(way))
                yield KINDS.get(attribute, "attribute changed"), node, partial(slot.put, made)


def _is_equation(node: ast.Compare) -> bool:
    return isinstance(node.ops[0], ast.Eq) and not isinstance(node.comparators[0], ast.Constant | ast.Tuple) and not any(
        isinstance(each, ast.Attribute | ast.Subscript) for side in (node.left, node.comparators[0]) for each in ast.walk(side)
    )


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _not(condition: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), condition)


def _more(value: ast.expr) -> ast.expr:
    return ast.BinOp(value, ast.Add(), ast.Constant(1))


def _negate(values: list[ast.expr], position: int) -> None:
    values[position] = _not(values[position])


def _remove(values: list[Any], position: int) -> None:
    del values[position]


def _exchange(values: list[ast.expr], first: int, second: int) -> None:
    values[first], values[second] = values[second], values[first]


def _set(node: ast.AST, name: str, value: object) -> None:
    setattr(node, name, value)


def _set_both(node: ast.AST, name: str, value: object, other_name: str, other_value: object, other_node: ast.AST | None = None) -> None:
    setattr(node, name, value)
    setattr(other_node or node, other_name, other_value)
