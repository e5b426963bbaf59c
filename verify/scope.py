"""The coverage of a proof as data: a tree of the choices of ranks and attributes that symbolic cases made, with leaves yes or no.

    {"rank of x": [[[2, 3], {"a.axis": [[[0, 1], true]]}], [[4], "n must be small"]]}

A match is covered if the path of its own ranks and attributes through the tree ends in ``true``. Choices that the tree
does not contain are not covered.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from egraph.rule import Binding, MergeRule, Rule

Leaf: TypeAlias = "bool | str"
"""True if covered, else False or the reason why not."""
Tree: TypeAlias = "Leaf | dict[str, list[list[Any]]]"
Judged: TypeAlias = tuple[Mapping[str, Any], Leaf]
"""The choices of a case, and whether it is proved."""
MEMBERS = "members"


def tree_of(cases: Sequence[Judged]) -> Tree:
    """Return the tree of cases.

    Cases that made the same choices are covered only if all of them are proved. A case that did not make a choice holds for
    all values of that choice; only the values that some case chose are known.
    """
    if not cases:
        return False
    for choices, leaf in cases:
        if leaf is not True and not choices:
            return leaf
    name = next((name for choices, _ in cases for name in choices), None)
    if name is None:
        return True
    values: dict[str, Any] = {}
    keyed: list[tuple[str | None, Judged]] = []
    """Cases with this choice removed, each with the text of the value it chose; None if it did not make the choice."""
    for choices, leaf in cases:
        key = None
        if name in choices:
            value = plain(choices[name])
            key = json.dumps(value)
            values[key] = value
        keyed.append((key, ({another: chosen for another, chosen in choices.items() if another != name}, leaf)))
    merged: dict[str, list[Any]] = {}
    for key, value in values.items():
        inner = [case for chosen, case in keyed if chosen is None or chosen == key]
        subtree = tree_of(inner)
        merged.setdefault(json.dumps(subtree, sort_keys=True), [[], subtree])[0].append(value)
    return {name: [[group, subtree] for group, subtree in merged.values()]}


def plain(value: Any) -> Any:
    """Return a choice as JSON data."""
    return [plain(entry) for entry in value] if isinstance(value, tuple | list | range) else value


def together(rule: Rule | MergeRule, bindings: Sequence[Binding]) -> Binding:
    """Return the bindings of a merge rule's members as one binding, with the members' own variables numbered from one."""
    if isinstance(rule, Rule):
        return bindings[0]
    types = {name: type_ for name, type_ in bindings[0].types.items() if name in rule.shared}
    numbers = {name: value for name, value in bindings[0].numbers.items() if name in rule.shared}
    for position, binding in enumerate(bindings, start=1):
        types |= {f"{name}{position}": type_ for name, type_ in binding.types.items() if name not in rule.shared}
        numbers |= {f"{name}{position}": value for name, value in binding.numbers.items() if name not in rule.shared}
    return Binding(types, bindings[0].attributes, numbers)


def outside(tree: Tree, rule: Rule | MergeRule, bindings: Sequence[Binding]) -> str:
    """Return why a match (or the matches of a merge rule's member) is not covered; '' if it is."""
    binding = together(rule, bindings)
    choices: list[str] = []
    while not isinstance(tree, bool | str):
        ((name, groups),) = tree.items()
        try:
            choice = len(bindings) if name == MEMBERS else plain(answer(name, binding))
        except (KeyError, IndexError, TypeError):
            return f"no proof covers it: {name} is not known"
        choices.append(f"{name} {_shown(choice)}")
        tree = next((subtree for values, subtree in groups if choice in values), False)
    if tree is True:
        return ""
    return f"no proof covers {', '.join(choices) or 'it'}" + (f": {tree}" if tree else "")


def _shown(value: Any) -> str:
    return f"({', '.join(map(str, value))})" if isinstance(value, list) else str(value)


def answer(name: str, binding: Binding) -> Any:
    """Return a match's value of a choice; raises KeyError if it has none."""
    match name.split(" "):
        case ["rank", "of", subject] if "." in subject:
            return len(_attribute(binding, subject))
        case ["rank", "of", subject]:
            return len(binding.types[subject].sizes)
        case [subject, "is", "one", "number"]:
            return subject in binding.numbers
        case [bundle, "goes", "down", "axis", axis]:
            return _attribute(binding, f"{bundle}.steps")[int(axis)] < 0
        case ["kind", "of", subject]:
            value = _attribute(binding, subject) if "." in subject else binding.numbers[subject]
            return "finite" if math.isfinite(value) else str(value)
        case ["type", "of", subject]:
            return binding.types[subject].dtype
        case [subject, "is", "finite"]:
            return math.isfinite(_attribute(binding, subject))
        case [subject]:
            return _attribute(binding, subject)
    raise KeyError(name)


def _attribute(binding: Binding, path: str) -> Any:
    bundle, _, attribute = path.partition(".")
    attribute, _, position = attribute.partition("[")
    value: Any = dict(binding.attributes[bundle])[attribute]
    return value[int(position.rstrip("]"))] if position else value


def described(cases: Iterable[Mapping[str, Any]]) -> str:
    """Return which ranks and attributes occur: ``ranks of x 2 to 4, a.layout NCHW or NHWC``."""
    seen: dict[str, list[Any]] = {}
    for choices in cases:
        for name, value in choices.items():
            entries = seen.setdefault(name, [])
            if plain(value) not in entries:
                entries.append(plain(value))
    parts = []
    for name, values in seen.items():
        if name.endswith(("finite", "one number")) or name.startswith("kind of ") or " goes down " in name or len(values) > SHOWN:
            continue
        parts.append(f"{name} {_series(values)}")
    return ", ".join(parts)


SHOWN = 6
"""Most values of a choice that are spelt out. More values, such as permutations and axes, are not named: they are all of their rank."""


def _series(values: list[Any]) -> str:
    if len(values) > 2 and all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        ordered = sorted(values)
        if ordered == list(range(ordered[0], ordered[-1] + 1)):
            return f"{ordered[0]} to {ordered[-1]}"
    return " or ".join(map(_shown, values))
