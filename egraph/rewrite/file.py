"""Read rules from a user's Python file, which ends in ``RULES = (my_rule, ...)``. Python never runs the file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from egraph.errors import EinsatError, RuleError
from egraph.rewrite import syntax
from egraph.rewrite.evaluator import Evaluator
from egraph.rewrite.frames import Frame
from egraph.rewrite.law import Law, value_of
from egraph.rewrite.library import BUILTINS, MODULES, TERMS
from egraph.rewrite.parts import misplaced_text
from egraph.rewrite.reader import read_module
from egraph.rewrite.refusals import Mismatch
from egraph.rewrite.values import Closure, Namespace, Native, Refusal, Value
from egraph.rule import MergeRule, Rule, make_rule, merge_rule

Found: TypeAlias = Rule | MergeRule | Refusal
"""A rule, or the error that refuses it."""
BROKEN = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError, RecursionError)
"""Errors that a mistake in a file's own text raises."""
RULES = "egraph.rules"
FAMILIES = ("named", "of_arity", "snake")
"""Functions that generate the rules of a family and their names."""


def load_rules(path: Path) -> tuple[Rule | MergeRule, ...]:
    """Return a file's ``RULES``; raise ``RuleError`` for the first rule that is not part of the language."""
    results = read_rules(path)
    for each in results:
        if isinstance(each, Refusal):
            raise each.error
    return tuple(each for each in results if not isinstance(each, Refusal))


def read_rules(path: Path) -> tuple[Found, ...]:
    """Return a file's ``RULES``, with the error in place of a rule outside the language; raise ``RuleError`` if the file has none."""
    if not path.is_file():
        raise RuleError(f"rule file {path} {'is a folder' if path.is_dir() else 'does not exist'}", fix="check the path")
    if path.suffix != ".py":
        raise RuleError(f"rule file {path} is not a Python file", fix="give a file that ends in .py")
    names = Module(path, {})
    rules = names.names.get("RULES")
    if isinstance(rules, Refusal):
        raise rules.error
    if not isinstance(rules, list | tuple) or not all(isinstance(each, Rule | MergeRule | Refusal) for each in rules):
        raise RuleError(f"rule file {path} has no tuple RULES of rules", where=str(path), fix="end the file with RULES = (my_rule, ...)")
    return tuple(map(_whole, rules))


def _whole(each: Found) -> Found:
    """Return a rule, or the error of something that it uses and that is not part of the language."""
    if isinstance(each, Refusal):
        return each
    laws = (each.law,) if isinstance(each, Rule) else (each.law, each.member.law)
    for law in laws:
        try:
            broken = next((value for _, value in law.parts() if isinstance(value, Refusal)), None) or _deciding_text(law)
        except RuleError as error:
            broken = Refusal(error)
        if broken is not None:
            return Refusal(broken.error, each.name)
    return each


def _deciding_text(law: Law) -> Refusal | None:
    """Return the error of a rule that builds text outside of reasons, where the text could decide something."""
    for _, value in law.parts():
        if isinstance(value, Closure) and (line := misplaced_text(value.syntax)) is not None:
            fix = "compare numbers; f-strings may stand in the reason of require(...), in assert, and where rules are made and named"
            return Refusal(RuleError("an f-string: a size reads otherwise in a proof", where=f"{value.path}:{line}", fix=fix))
    return None


class Module:
    """A rule file, or a single-file module beside it: its names with their values."""

    def __init__(self, path: Path, beside: dict[Path, Module]) -> None:
        self.path, self.folder = str(path), path.absolute().parent
        self.names: dict[str, Value] = {}
        self._beside = beside
        beside[path.absolute()] = self
        run, frame = Evaluator(loading=True), Frame(self, self.names)
        for statement in read_module(path.read_bytes(), self.path):
            try:
                if isinstance(statement, syntax.Import):
                    self.names[statement.alias] = self._imported(statement)
                else:
                    run.block((statement,), frame)
            except RuleError as error:
                self._refuse(statement, RuleError(error.what, where=error.where or f"{self.path}:{statement.line}", fix=error.fix))
            except (*BROKEN, EinsatError, Mismatch) as error:
                what = f"rule file {path} raised {type(error).__name__}: {error}"
                self._refuse(statement, RuleError(what, where=f"{self.path}:{statement.line}", fix="correct the line"))

    def find(self, name: str) -> Value:
        if name in self.names:
            return self.names[name]
        return BUILTINS[name]

    def _refuse(self, statement: syntax.Statement, error: RuleError) -> None:
        """Bind a statement's names to the error; raise the error if the statement binds no names."""
        names = _bound_by(statement)
        if not names:
            raise error
        self.names |= {name: Refusal(error, name) for name in names}

    def _imported(self, node: syntax.Import) -> Value:
        where = f"{self.path}:{node.line}"
        if node.module in MODULES:
            members = MODULES[node.module]
            if node.name is None:
                return Namespace(node.module, members)
            if node.name in members:
                return members[node.name]
        elif node.module == "egraph.rule" and node.name is not None and node.name in STATED:
            return STATED[node.name]
        elif node.module == RULES or node.module.startswith(f"{RULES}."):
            if node.name is not None:
                return _of_ours(node.module, node.name, where)
        elif (neighbour := self._neighbour(node.module)) is not None:
            names = self._beside[neighbour] if neighbour in self._beside else Module(neighbour, self._beside)
            if node.name is None:
                return Namespace(node.module, names.names)
            if node.name not in names.names:
                raise RuleError(f"{neighbour} has no {node.name}", where=where, fix="import a name that it defines")
            return names.names[node.name]
        imported = node.module if node.name is None else f"{node.module}.{node.name}"
        raise RuleError(
            f"a rule file imports {imported}: it is no part of the language", where=where,
            fix=f"what there is: names of egraph.rule, egraph.rule_operators, egraph.rules.*, {', '.join(sorted(MODULES))}, and of "
            "modules of one file beside yours, which are read alike",
        )  # fmt: skip

    def _neighbour(self, module: str) -> Path | None:
        """Return the file of a module that is neither in the standard library nor installed nor part of this project."""
        if "." in module or module in ("egraph", "verify", "lower", "runtime"):
            return None
        beside = self.folder / f"{module}.py"
        if beside.is_file():
            return beside
        try:
            spec = find_spec(module)
        except (ImportError, ValueError):
            return None
        origin = spec.origin if spec is not None and spec.submodule_search_locations is None else None
        if origin is None or module in sys.stdlib_module_names or "site-packages" in origin or not origin.endswith(".py"):
            return None
        return Path(origin)


def _of_ours(module: str, name: str, where: str) -> Value:
    """Return the value of a name in a module of the shipped rules."""
    try:
        home = import_module(module)
    except ImportError as error:
        raise RuleError(f"there is no {module}", where=where, fix="see egraph/rules") from error
    if module == f"{RULES}.family" and name in FAMILIES:
        made = getattr(home, name)
        return Native(name, made if name == "snake" else _unless_refused(made))
    value = getattr(home, name, None)
    if value is None or getattr(value, "__module__", module).split(".")[:2] != RULES.split("."):
        what = f"a rule file imports {module}.{name}: it is no part of the language"
        raise RuleError(what, where=where, fix="import a function or a constant")
    if isinstance(value, Rule | MergeRule) or (isinstance(value, tuple) and all(isinstance(each, Rule | MergeRule) for each in value)):
        return value
    return value_of(value, name, where)


def _bound_by(statement: syntax.Statement) -> Sequence[str]:
    match statement:
        case syntax.Function(name=name):
            return (name,)
        case syntax.Assign(targets=targets):
            return [name for target in targets for name in _targeted(target)]
        case syntax.Import(alias=alias):
            return (alias,)
    return ()


def _targeted(target: syntax.Target) -> Sequence[str]:
    match target:
        case syntax.Name(name=name):
            return (name,)
        case syntax.Targets(targets=targets):
            return [name for each in targets for name in _targeted(each)]
    return ()


def _unless_refused(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that makes rules of functions, so that it returns a refused argument unchanged."""

    def made(*arguments: Any, **named: Any) -> Any:
        refused = next((each for each in (*arguments, *named.values()) if isinstance(each, Refusal)), None)
        return function(*arguments, **named) if refused is None else refused

    return made


def _rule(function: Any = None, /, **options: Any) -> Any:
    if function is None:
        return Native("rule", _unless_refused(lambda each: make_rule(each, **options)))
    return make_rule(function, **options)


def _merge_rule(**options: Any) -> Any:
    if isinstance(options.get("member"), Refusal):
        return Native("merge_rule", lambda _: options["member"])
    return Native("merge_rule", _unless_refused(merge_rule(**options)))


STATED: Mapping[str, Value] = {**TERMS, "rule": Native("rule", _unless_refused(_rule)), "merge_rule": Native("merge_rule", _merge_rule)}
"""The names of ``egraph.rule`` that a rule file may import."""
