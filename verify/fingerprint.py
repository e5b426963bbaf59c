"""Hash what a proof depends on: the rule's text, the meanings of the operators it may use, and the prover itself.

A rule is represented by its function as it is evaluated, with every function and value that this may use
(``egraph.rewrite.law.digest``). The rest of its file does not matter.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from weakref import ReferenceType, ref

from egraph.rewrite.law import digest, natives, texts
from egraph.rule import MergeRule, Rule
from egraph.tensor import ops
from egraph.tensor.ops import OPS

PROVER = "verify.prove"
"""The module that, with everything it imports, is the prover."""
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\([^)]*\)|[^\n]*)|import[ \t]+([\w., \t]+))", re.MULTILINE)
_OPERATION = re.compile(r"^def (\w+)\(.*?return operation\(\"(\w+)\"", re.MULTILINE | re.DOTALL)
_STRING = re.compile(r"[\"'](\w+)[\"']")
_MEANINGS = "egraph.tensor.ops"
_OPERATORS_MODULE = "egraph.rule_operators"
_TENSORS_MODULE = "egraph.rewrite.terms"


_KEYS: dict[int, tuple[ReferenceType[Rule | MergeRule], str]] = {}
"""Cached hashes of the existing rules, by ``id``; a rule does not change during its lifetime."""


def rule_key(rule: Rule | MergeRule) -> str:
    """Return the hash of a rule's content and of the meanings of the operators that it may use; it is computed once per rule."""
    place = id(rule)
    found = _KEYS.get(place)
    if found is None or found[0]() is not rule:
        found = _KEYS[place] = ref(rule, lambda _: _KEYS.pop(place, None)), _rule_key(rule)
    return found[1]


def _rule_key(rule: Rule | MergeRule) -> str:
    laws = (rule.law,) if isinstance(rule, Rule) else (rule.law, rule.member.law)
    member = _pattern_rule(rule)
    shared = repr(rule.shared) if isinstance(rule, MergeRule) else "corrected" if rule.corrected else ""
    values = (rule.name, rule.text, rule.rounding, repr(member.pattern), repr(member.variables), repr(member.attribute_variables), shared)
    operators = _named((_source(_TENSORS_MODULE), repr(member.pattern)))
    for law in laws:
        operators |= {text for text in texts(law) if text in OPS}
        operators |= {_operator_functions()[name] for name in natives(law) if name in _operator_functions()}
    return _hash((*values, *map(digest, laws), *map(_meaning, sorted(operators)), _typing()))


@cache
def verifier_key() -> str:
    """Return the hash of the prover: of every module of this project that it imports, except the table of operators."""
    names = closure(frozenset({PROVER}))
    return _hash(_source(name) for name in sorted(names) if not name.startswith(_MEANINGS))


def _pattern_rule(rule: Rule | MergeRule) -> Rule:
    return rule.member if isinstance(rule, MergeRule) else rule


def _parts(value: Any, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Yield (module, '') for every function and ('', text) for every value that a function closes over."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, partial):
        yield from _parts((value.func, value.args, sorted(value.keywords.items())), seen)
    elif inspect.isfunction(value):
        yield value.__module__, ""
        yield "", value.__qualname__ if _is_ours(value.__module__) else Path(value.__code__.co_filename).read_text(encoding="utf-8")
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        for inner in (*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            yield from _parts(inner, seen)
    elif isinstance(value, dict):
        yield from _parts(tuple(value.items()), seen)
    elif isinstance(value, tuple | list | set | frozenset):
        for inner in sorted(value, key=repr) if isinstance(value, set | frozenset) else value:
            yield from _parts(inner, seen)
        yield "", f"{type(value).__name__} of {len(value)}"
    elif isinstance(value, type) or inspect.ismodule(value):
        yield str(getattr(value, "__module__", None) or getattr(value, "__name__", "")), ""
    else:
        yield "", f"{type(value).__name__} {value!r}"


def closure(start: frozenset[str], within: str = "") -> frozenset[str]:
    """Return the modules of this project (and of a user) that ``start`` imports, directly or not; all begin with ``within``."""
    modules: set[str] = set()
    todo = sorted(start)
    while todo:
        name = todo.pop()
        if name in modules or not name.startswith(within) or _file(name) is None:
            continue
        modules.add(name)
        if within or not name.startswith(_MEANINGS):
            todo += _imports(name)
    return frozenset(modules)


def _is_ours(name: str) -> bool:
    return name.split(".")[0] in ("egraph", "verify")


def _imports(name: str) -> tuple[str, ...]:
    return _imported(_source(name))


@cache
def _imported(text: str) -> tuple[str, ...]:
    imports: list[str] = []
    for origin, names, plain in _IMPORT.findall(text):
        parts = re.sub(r"#[^\n]*", "", names).strip("()").split(",")
        imports += [origin, *(f"{origin}.{part.split(' as ')[0].strip()}" for part in parts)] if origin else []
        imports += [part.strip() for part in plain.split(",") if part.strip()]
    return tuple(dict.fromkeys(imports))


def _file(name: str) -> Path | None:
    """Return the file of a module; None for modules of the standard library and of installed dependencies."""
    return _our_file(name) if _is_ours(name) else _find(name)


@cache
def _our_file(name: str) -> Path | None:
    return _find(name)


def _find(name: str) -> Path | None:
    if name.split(".")[0] in sys.stdlib_module_names:
        return None
    module = sys.modules.get(name)
    origin = getattr(module, "__file__", None)
    if module is None:
        try:
            spec = find_spec(name)
        except (ImportError, ValueError, AttributeError):
            return None
        origin = spec.origin if spec else None
    if not origin or not origin.endswith(".py"):
        return None
    return Path(origin) if _is_ours(name) or "site-packages" not in origin else None


def _source(name: str) -> str:
    return _our_source(name) if _is_ours(name) else _read(name)


@cache
def _our_source(name: str) -> str:
    return _read(name)


def _read(name: str) -> str:
    path = _file(name)
    return path.read_text(encoding="utf-8") if path else ""


@cache
def _meaning(op: str) -> str:
    """Return the hash of an operator's facts: of its modules and of what they import from the operators' package."""
    functions = [field for field in vars(OPS[op]).values() if callable(field)]
    parts = [part for function in functions for part in _parts(function, set())]
    modules = closure(frozenset(module for module, _ in parts if module.startswith(_MEANINGS)), _MEANINGS)
    return _hash((op, *(value for _, value in parts), *(_source(name) for name in sorted(modules))))


@cache
def _operator_functions() -> dict[str, str]:
    return dict(_OPERATION.findall(_source(_OPERATORS_MODULE)))


def _named(texts: Iterable[str]) -> frozenset[str]:
    return frozenset[str]().union(*map(_named_in, texts))


@cache
def _named_in(text: str) -> frozenset[str]:
    return frozenset(word for word in _STRING.findall(text) if word in OPS)


@cache
def _typing() -> str:
    return _digest(_source(ops.__name__).split("def apply", 1)[-1])


@cache
def _digest(text: str) -> str:
    return _hash([text])


def _hash(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{len(part)}:".encode())
        digest.update(part.encode())
    return digest.hexdigest()[:32]
