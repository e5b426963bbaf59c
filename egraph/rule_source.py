"""Read a user's rule file before it runs, and refuse what could do one thing in a proof and another with plain sizes.

A proof runs a rule's function on symbolic sizes and trusts that the same function is the same mathematics on plain integers. A
function that asks for the type of a size, turns it into text, compares identities, remembers earlier calls or looks at the clock
breaks that, and could be called proved. This finds honest mistakes and plain cheating; it is no sandbox: a rule file is a program
that its user chose to run.

Text made of values (f-strings) is welcome where it decides nothing: in reasons, and in functions that make and name rules while the
file is loaded.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from inspect import ismodule
from pathlib import Path

from egraph.errors import RuleError
from egraph.rule_constructs import Function, Refusal, refusals

STANDARD = ("__future__", "collections", "collections.abc", "dataclasses", "fractions", "functools", "itertools", "math", "typing")
LANGUAGE = ("egraph.rule", "egraph.rule_operators", "egraph.rules")
MEMBERS = {"functools": ("partial", "reduce")}
"""All that may be imported of a module, where that is not everything it exports: the rest of functools remembers or looks at types."""
ENDLESS = ("count", "cycle", "repeat")
PLAIN = frozenset({"str", "int", "float", "bool", "tuple", "list", "dict", "Sequence", "Mapping", "Callable", "Any", "Rounding", "Literal"})
"""What parameters of functions that make rules are annotated with."""


@dataclass(frozen=True)
class Source:
    """A file of rules, or a module beside it."""

    path: Path
    tree: ast.Module


def check_source(path: Path) -> None:
    """Raise RuleError for the first thing in a rule file, or in a module that it imports, that a proof could not vouch for."""
    sources = list(_sources(path, set()))
    applied = _applied([source.tree for source in sources])
    for source in sources:
        found = [*refusals(source.tree, applied), *(refusal for refusal, _ in _imports(source.tree) if refusal)]
        if found:
            first = min(found, key=lambda each: each.line)
            raise RuleError(f"{first.what}: {first.why}", where=f"{source.path}:{first.line}", fix=first.fix)


def _sources(path: Path, seen: set[Path]) -> Iterator[Source]:
    """Yield a file and the modules that it imports of those that are no part of Python and of this project."""
    seen.add(path)
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # running it says more
    yield Source(path, tree)
    for _, neighbour in _imports(tree):
        if neighbour is not None and neighbour not in seen:
            yield from _sources(neighbour, seen)


# Imports


def _imports(tree: ast.Module) -> Iterator[tuple[Refusal | None, Path | None]]:
    """Yield for every module that is imported, and for every use of one, why it is refused, or the file that has to be read too."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                modules[alias.asname or alias.name] = alias.name
                yield _judged(node, alias.name, ())
        elif isinstance(node, ast.ImportFrom):
            yield _judged(node, "." * node.level + (node.module or ""), [alias.name for alias in node.names])
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and modules.get(node.value.id) in STANDARD:
            yield _judged(node, modules[node.value.id], [node.attr])


def _judged(node: ast.stmt | ast.expr, module: str, names: Sequence[str]) -> tuple[Refusal | None, Path | None]:
    ours = module in LANGUAGE or module.startswith("egraph.rules.")
    if (module in STANDARD and (names or "." not in module)) or (ours and names):
        wrong = next((name for name in names if not _exported(module, name)), None)
        return (None if wrong is None else _refused(node, f"{module}.{wrong}")), None
    if module.split(".")[0] not in sys.stdlib_module_names and not module.startswith((".", "egraph", "verify", "lower", "runtime")):
        try:
            spec = find_spec(module.split(".")[0])
        except (ImportError, ValueError):
            return _refused(node, module), None
        if spec is None:
            return None, None  # running the file says that it is not there
        origin = spec.origin or ""
        if spec.submodule_search_locations is None and origin.endswith(".py") and "site-packages" not in origin and "*" not in names:
            return None, Path(origin)
    return _refused(node, module), None


def _exported(module: str, name: str) -> bool:
    """Return whether a module offers a name as its own: not a module, nor a class of the e-graph, that it imports itself."""
    home = import_module(module)
    if module in MEMBERS or name in ENDLESS:
        return name in MEMBERS.get(module, ())
    if not hasattr(home, name):
        return name != "*"  # running the file says that it is not there
    if hasattr(home, "__all__"):
        return name in home.__all__
    value = getattr(home, name)
    return not ismodule(value) and (module in STANDARD or str(getattr(value, "__module__", module)).startswith(LANGUAGE))


def _refused(node: ast.stmt | ast.expr, what: str) -> Refusal:
    return Refusal(
        node.lineno, f"a rule file imports {what}", "what it gives may be another thing in a proof, or in the next run",
        f"what may be imported by name: {', '.join(LANGUAGE)}.*, {', '.join(STANDARD[1:])} (no {', '.join(ENDLESS)}; of functools "
        f"{', '.join(MEMBERS['functools'])}), and single files of your own, which are read alike",
    )  # fmt: skip


# What runs on sizes


def _applied(trees: Sequence[ast.Module]) -> frozenset[Function]:
    """Return the functions that may run on sizes: all but those that make rules, as long as nothing that runs on sizes names them."""
    bound: dict[str, list[ast.stmt]] = {}
    todo: list[ast.AST] = []
    for tree in trees:
        makers = {statement for statement in tree.body if _makes_rules(statement)}
        todo += [node for node in ast.walk(tree) if isinstance(node, Function) and node not in makers]
        for node in ast.walk(tree):
            if isinstance(node, ast.stmt):
                for name in _binds(node):
                    bound.setdefault(name, []).append(node)
    found: set[Function] = set()
    named: set[str] = set()
    while todo:
        node = todo.pop()
        found |= {node} if isinstance(node, Function) else set()
        new = _mentions(node) - named
        named |= new
        todo += [statement for name in new for statement in bound.get(name, ())]
    return frozenset(found)


def _makes_rules(statement: ast.stmt) -> bool:
    if not isinstance(statement, ast.FunctionDef) or statement.decorator_list:
        return False
    every = statement.args
    parameters = [*every.posonlyargs, *every.args, *every.kwonlyargs, *(each for each in (every.vararg, every.kwarg) if each)]
    return all(each.annotation is not None and frozenset() < _mentions(each.annotation) <= PLAIN for each in parameters)


def _binds(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef() | ast.ClassDef():
            yield statement.name
        case ast.Import() | ast.ImportFrom():
            yield from (alias.asname or alias.name for alias in statement.names)
        case _:
            names = [node for node in ast.walk(statement) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)]
            within = [each.target for each in ast.walk(statement) if isinstance(each, ast.comprehension)]
            hidden = {node for target in within for node in ast.walk(target)}
            yield from (node.id for node in names if node not in hidden)


def _mentions(node: ast.AST) -> frozenset[str]:
    """Return the names that a piece of a file reads; attributes too, since they may be a module's functions.

    What a statement outside of functions calls runs while the file is loaded, and is not read later.
    """
    called = set() if isinstance(node, Function) else {each.func for each in ast.walk(node) if isinstance(each, ast.Call)}
    every = [each for each in ast.walk(node) if each not in called]
    found = {each.id for each in every if isinstance(each, ast.Name)}
    found |= {each.attr for each in every if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)}
    return frozenset(found) | {alias.name for each in every if isinstance(each, ast.Import | ast.ImportFrom) for alias in each.names}
