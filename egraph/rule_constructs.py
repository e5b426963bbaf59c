"""The constructs of Python that a rule file may not use, each with the reason and what to write instead."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
KINDS = frozenset({"type", "isinstance", "issubclass", "callable", "getattr", "setattr", "delattr", "hasattr", "dir", "vars"})
TEXTS = frozenset({"str", "repr", "format", "ascii", "bytes", "bytearray"})
ALLOWED = frozenset({
    "abs", "all", "any", "bool", "dict", "divmod", "enumerate", "filter", "float", "frozenset", "int", "iter", "len", "list", "map", "max",
    "min", "next", "object", "pow", "property", "range", "reversed", "round", "set", "slice", "sorted", "staticmethod", "classmethod",
    "sum", "super", "tuple", "zip", "NotImplemented", "Ellipsis", "__name__",
    *(name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, Exception)),
})  # fmt: skip
"""Builtin names that mean the same for a symbolic size as for a plain one, or refuse it."""
CHANGES = frozenset({
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft", "remove", "reverse", "send",
    "setdefault", "sort", "update",
})  # fmt: skip
INNER = frozenset({"term", "node"})
"""What a tensor is made of: nodes at a match, terms of the prover in a proof."""
BY_VALUE = "ask for values: x.rank == 2, x.shape[0] == 1, a.layout == 'NCHW'"
KIND = "a size is a symbol in a proof and a plain number at a match, and this can tell them apart"
TEXT = "a size reads otherwise in a proof"
IN_REASONS = "compare numbers; f-strings may stand in the reason of require(...), in raise and assert, and where rules are made and named"
STATE = "what a rule does may depend on its arguments alone, not on earlier calls"
IN_CALL = "make a new value in each call and return it"


@dataclass(frozen=True)
class Refusal:
    """What is refused, why, and how to write it instead."""

    line: int
    what: str
    why: str
    fix: str


def refusals(tree: ast.Module, applied: frozenset[Function]) -> Iterator[Refusal]:
    """Yield what a file may not use; ``applied``: its functions that may run on sizes."""
    yield from _Reader(applied).read(tree, _Place())


@dataclass(frozen=True)
class _Place:
    """Where a node stands: the names of the functions around it, whether sizes come there, and whether it may be text."""

    names: frozenset[str] = frozenset()
    """Bound by any function around it: these are no builtins."""
    own: frozenset[str] = frozenset()
    """Bound by the functions around it that run on sizes: made anew in each call."""
    sizes: bool = False
    reason: bool = False
    annotation: bool = False


@dataclass(frozen=True)
class _Reader:
    applied: frozenset[Function]

    def read(self, node: ast.AST, place: _Place) -> Iterator[Refusal]:
        """Yield what is refused of a node and of all below it."""
        yield from _of_structure(node)
        yield from _of_names(node, place)
        if place.sizes:
            yield from _of_texts(node, place)
            yield from _of_changes(node, place)
        for field, value in ast.iter_fields(node):
            inner = self._inside(node, field, place)
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.read(child, inner)

    def _inside(self, node: ast.AST, field: str, place: _Place) -> _Place:
        """Return the place of what a field of a node holds."""
        if isinstance(node, Function) and field in ("args", "body"):
            bound = _bound(node)
            if field == "args":
                return replace(place, names=place.names | bound)
            sizes = node in self.applied
            return replace(place, names=place.names | bound, own=place.own | (bound if sizes else frozenset()), sizes=sizes)
        if field in ("annotation", "returns"):
            return replace(place, annotation=True)
        said = isinstance(node, ast.Raise) or (isinstance(node, ast.Assert) and field == "msg")
        asked = isinstance(node, ast.Call) and _name(node.func) == "require" and "require" not in place.names and field != "func"
        return replace(place, reason=True) if said or asked else place


def _of_structure(node: ast.AST) -> Iterator[Refusal]:
    match node:
        case ast.While(test=test) if not _names(test) & {_changed(each) for each in ast.walk(node)}:
            why = "nothing that its condition reads is changed in its body: it would never end, and nor would a proof"
            yield _refusal(node, "while", why, "change what the condition reads, or count with `for ... in range(...)`")
        case ast.Try() | ast.TryStar() | ast.With() | ast.AsyncWith():
            what = "with" if isinstance(node, ast.With | ast.AsyncWith) else "try"
            why = "what a symbolic size refuses would be taken for an answer, and plain sizes refuse nothing"
            yield _refusal(node, what, why, "ask first: require(...) refuses a match, `if` chooses")
        case ast.Global() | ast.Nonlocal():
            yield _refusal(node, type(node).__name__.lower(), STATE, IN_CALL)
        case ast.AsyncFunctionDef() | ast.Await() | ast.AsyncFor():
            yield _refusal(node, "async", "a rule is a function of its arguments", "write a plain function")
        case ast.Compare() if any(map(_is_identity, node.ops, [node.left, *node.comparators], node.comparators)):
            why = "equal sizes may be one object or two, in a proof and at a match"
            yield _refusal(node, "`is`", why, "compare with ==; only None is asked with `is`")
        case ast.MatchClass() | ast.MatchSingleton(value=True | False):
            yield _refusal(node, "a pattern of `match` that asks for a kind of object", KIND, BY_VALUE)
        case ast.arguments():
            for value in [*node.defaults, *(each for each in node.kw_defaults if each)]:
                call = isinstance(value, ast.Call) and _name(value.func) in ("list", "dict", "set", "iter")
                if call or isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp | ast.GeneratorExp):
                    yield _refusal(value, "a default argument that can change", STATE, "use None, or a tuple")


def _of_names(node: ast.AST, place: _Place) -> Iterator[Refusal]:
    if isinstance(node, ast.Attribute):
        written = node.attr in ("__name__", "__doc__") and not isinstance(node.ctx, ast.Load)
        if (node.attr.startswith("__") and not written) or node.attr in INNER:
            yield _refusal(node, f".{node.attr}", "what lies inside an object is another thing in a proof", BY_VALUE)
    if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load) or node.id in place.names or node.id in ALLOWED:
        return
    if node.id in TEXTS:
        if not place.reason and not place.annotation:
            yield _refusal(node, node.id, TEXT, IN_REASONS)
    elif node.id in KINDS:
        if not (place.annotation and node.id == "type"):
            yield _refusal(node, node.id, KIND, BY_VALUE)
    elif node.id in ("id", "hash"):
        yield _refusal(node, node.id, "it differs from run to run, and in a proof", "compare values with ==")
    elif node.id in vars(builtins) or node.id.startswith("__"):
        yield _refusal(node, node.id, "a rule neither reads nor writes nor runs anything else", "say what you need in require(...)")


def _of_texts(node: ast.AST, place: _Place) -> Iterator[Refusal]:
    if place.reason:
        return
    match node:
        case ast.JoinedStr():
            yield _refusal(node, "an f-string", TEXT, IN_REASONS)
        case ast.BinOp(op=ast.Mod(), left=ast.JoinedStr() | ast.Constant(value=str() | bytes())):
            yield _refusal(node, "text made with %", TEXT, IN_REASONS)
        case ast.Attribute(attr="format" | "format_map"):
            yield _refusal(node, f".{node.attr}", TEXT, IN_REASONS)


def _of_changes(node: ast.AST, place: _Place) -> Iterator[Refusal]:
    """Yield changes of what outlives the call: of anything that the functions around, as far as they run on sizes, do not make."""
    changed = _changed(node)
    if changed is not None and changed not in place.own and isinstance(node, ast.expr) and not isinstance(node, ast.Name):
        yield _refusal(node, f"a change of {changed}, which outlives the call", STATE, IN_CALL)


def _changed(node: ast.AST) -> str | None:
    """Return the name that a node binds anew, or whose value it changes."""
    match node:
        case ast.Attribute(ctx=ast.Store() | ast.Del()) | ast.Subscript(ctx=ast.Store() | ast.Del()):
            return _root(node)
        case ast.Call(func=ast.Attribute(attr=method, value=value)) if method in CHANGES:
            return _root(value)
        case ast.Call(func=ast.Name(id="next"), args=[value, *_]):
            return _root(value)
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return name
    return None


def _names(node: ast.AST) -> set[str | None]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _root(node: ast.expr) -> str | None:
    """Return the name that an attribute or element is reached from."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return _name(node)


def _name(node: ast.expr) -> str | None:
    return node.id if isinstance(node, ast.Name) else None


def _is_identity(operator: ast.cmpop, left: ast.expr, right: ast.expr) -> bool:
    none = any(isinstance(side, ast.Constant) and side.value is None for side in (left, right))
    return isinstance(operator, ast.Is | ast.IsNot) and not none


def _bound(function: Function) -> frozenset[str]:
    """Return the names that a function itself binds."""
    every = function.args
    arguments = [*every.posonlyargs, *every.args, *every.kwonlyargs, *(each for each in (every.vararg, every.kwarg) if each)]
    found = {each.arg for each in arguments}
    todo: list[ast.AST] = [*function.body] if isinstance(function.body, list) else [function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, Function | ast.ClassDef):
            found |= {node.name} if not isinstance(node, ast.Lambda) else set()
            continue
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        todo += ast.iter_child_nodes(node)
    return frozenset(found)


def _refusal(node: ast.stmt | ast.expr | ast.pattern, what: str, why: str, fix: str) -> Refusal:
    return Refusal(node.lineno, what, why, fix)
