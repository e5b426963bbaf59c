"""Read informal rewrites that a sound verifier must reject, or accept only with the precondition that they state."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from bench.corpora.entries import Entry, Reading, tried
from bench.corpora.informal import OPERATORS, WORDS, integers
from bench.corpora.informal import informal_rule as rule_of
from bench.corpora.statements import Guard, free_names
from bench.corpora.taso_guards import candidates
from bench.corpora.terms import Application, Term, names, parse, walk
from egraph.errors import RuleError
from egraph.rule import Rule


def read_rejected(data: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the entries; those described in prose are not expressible."""
    for item in data["items"]:
        text = f"{item['lhs']} => {item['rhs']}"
        try:
            reading = _reading(str(item["id"]), str(item["lhs"]), str(item["rhs"]), str(item["shapes"]))
        except RuleError as error:
            yield Entry(str(item["id"]), text, (), "unsound", str(item["verdict"]), error.what, conditional=True)
            continue
        claim = f"{item['verdict']}; sound: {item.get('sound_variant')}"
        accepted = str(item["verdict"]).startswith("ACCEPT")
        yield Entry(str(item["id"]), text, (reading,), "sound" if accepted else "unsound", claim, conditional=not accepted)


def _reading(name: str, left: str, right: str, sizes: str) -> Reading:
    equations = list(_equations(left, right))
    flat = [side for pair in equations for side in pair]
    for node in (node for side in flat for node in walk(side)):
        if node.operator not in OPERATORS:
            raise RuleError(f"{node.operator} is not an operator but prose")
    shapes = _shapes(sizes, [n for n in free_names(tuple(flat)) if not _is_word(n)], flat)

    def rules(typed: bool, guards: tuple[Guard, ...]) -> tuple[Rule, ...]:
        several = len(equations) > 1
        return tuple(
            rule_of(f"{name}.{i}" if several else name, left, right, _used(shapes, left, right), typed=typed, guards=guards)
            for i, (left, right) in enumerate(equations)
        )

    for rule in rules(False, ()):
        tried(rule)
    return Reading(rules, candidates([pair[0] for pair in equations]))


def _used(shapes: Mapping[str, tuple[int, ...]], left: Term, right: Term) -> Mapping[str, tuple[int, ...]]:
    return {name: shape for name, shape in shapes.items() if name in names([left, right])}


def _equations(left: str, right: str) -> Iterator[tuple[Term, Term]]:
    """Yield the equations of a statement: alternatives stand between bars, the parts of a split between commas."""
    left, right = re.sub(r" with .*", "", left), re.sub(r" for any .*", "", right)
    if "..." in left + right or ":" in left + right or re.search(r"\w\*\w", left + right):
        raise RuleError("an operand or an attribute is described, not stated")
    left, right = _called(left), _called(right)
    lefts, rights = [part.strip() for part in left.split("|")], [part.strip() for part in right.split("|")]
    if len(lefts) == 1 and left.startswith("(split_equal "):
        for position, part in enumerate(right.split(",")):
            yield parse(left.replace("split_equal", f"half_{position}")), parse(part.strip())
        return
    for left_text, right_text in zip(lefts, rights, strict=True):
        yield parse(left_text), parse(right_text)


def _called(text: str) -> str:
    """Return the text with calls as s-expressions: ``f(g x)`` is ``(f (g x))``."""
    while (call := re.search(r"(\w+)\(", text)) is not None:
        depth, end = 1, call.end()
        while end < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        inner = _called(text[call.end() : end - 1])
        inner = inner if inner.startswith("(") else f"({inner})"
        text = f"{text[: call.start()]}({call.group(1)} {inner}){text[end:]}"
    return text


def _is_word(name: str) -> bool:
    return name in WORDS or name.startswith(("stride=", "[")) or name == "relu" or bool(re.fullmatch(r"[\d.]+", name))


def _shapes(text: str, variables: list[str], terms: list[Term]) -> Mapping[str, tuple[int, ...]]:
    """Return the stated shapes; scalars of ``smul`` have none, and a variable that may be any tensor is a matrix."""
    shapes: dict[str, tuple[int, ...]] = {}
    for group, shape in re.findall(r"((?:\w+,)*\w+):(\[[^\]]*\])", text):
        sizes = integers(shape)
        if sizes is None:
            raise RuleError(f"the shape {shape} has no numbers")
        shapes |= dict.fromkeys(group.split(","), sizes)
    scalars = {n.arguments[1] for term in terms for n in walk(term) if n.operator == "smul" and isinstance(n.arguments[1], str)}
    windows = any(isinstance(n, Application) and n.operator == "conv2d" for term in terms for n in walk(term))
    common = next(iter(shapes.values()), (2, 2, 3, 3) if windows else (2, 3))
    return {name: () if name in scalars else shapes.get(name, common) for name in variables}
