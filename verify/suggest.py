"""Find help for a rule that is not proved: where its sides differ, and a guard that makes it provable.

A suggestion is one guard of a usual form or two together. Guards are first tried on random instances. A useful guard refuses every
instance on which the sides differ; those that keep the most other instances come first. The first guard with which the rule is then
proved is the suggestion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, islice
from random import Random
from typing import Any

from egraph.errors import EinsatError
from egraph.rewrite.law import Written
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import MergeRule, Mismatch, Rule
from egraph.tensor import format_fragment
from egraph.tensor.boxes import axis_names
from egraph.tensor.ops import OPS
from egraph.tensor.ops.reference import fragment_expression
from verify.disagreement import LITTLE_WORK, disagreement
from verify.parametric import Parametric, parametric
from verify.prove import Effort, prove
from verify.random_binding import Refused, draw_binding
from verify.random_testing import CRASHES, Data, compare, draws, instantiate

INSTANCES, DRAWS = 60, 1500
"""Number of instances on which guards are tried, and most draws to find them."""
DATA: tuple[tuple[int, Data], ...] = ((0, "integers"), (1, "signed"))
SHOWN_CASES = 3
"""Most cases of a rule, those of the lowest ranks, for which the differing positions are reported."""
COMPARED = 40
"""Number of random draws for instances of a refuted rule whose sides are compared position by position."""
PROOFS = 8
"""Most guards that are passed to the prover, the weakest first."""
EFFORT = Effort(tests=24, tries=3000, open_cases=1, applications=0)

_BY_ATTRIBUTE = {
    "group": ("{a}.group == 1",),
    "strides": ("all(s == 1 for s in {a}.strides)",),
    "dilations": ("all(d == 1 for d in {a}.dilations)",),
    "pads": ("all(p == 0 for p in {a}.pads)",),
    "kernel_shape": ("all(k % 2 == 1 for k in {a}.kernel_shape)", "all(k == 1 for k in {a}.kernel_shape)"),
    "steps": ("all(s == 1 for s in {a}.steps)",),
    "layout": ('{a}.layout == "NCHW"',),
    "mode": ('{a}.mode == "constant"',),
    "value": ("{a}.value == 0",),
    "count_include_pad": ("{a}.count_include_pad == 0",),
    "alpha": ("{a}.alpha >= 0",),
}
_BY_PAIR_OF_BUNDLES = ("{a}.values == {b}.values",)
_BY_TENSOR = ("{x}.rank == 2", "{x}.rank >= 2", "{x}.type.elements == 1")
_BY_WEIGHT = ("{x}.number is not None", "{x}.number is not None and {x}.number >= 0")
_BY_KERNEL = ("all(k % 2 == 1 for k in {x}.shape[2:])", "all(k == 1 for k in {x}.shape[2:])")
_BY_PAIR_OF_TENSORS = (
    "{x}.rank == {y}.rank", "{x}.shape[2:] == {y}.shape[2:]", "{x}.shape[1:] == {y}.shape[1:]", "{x}.shape[:1] == {y}.shape[:1]",
    "{x}.shape == {y}.shape", "{x}.rank <= {y}.rank",
)  # fmt: skip
_BY_TENSOR_AND_AXIS = ("{x}.rank == {y}.rank and {x}.shape[{a}.axis] == 1",)


@dataclass(frozen=True)
class Tried:
    """A guard, the numbers of the good instances that it keeps, and the numbers of the bad ones that it lets through."""

    guards: tuple[str, ...]
    kept: frozenset[int]
    missed: frozenset[int]


def suggestion(rule: Rule) -> str:
    """Return a guard with which the rule is proved, as a line of text; '' if none of the usual ones helps."""
    good, bad = _instances(rule)
    singles = [_tried(rule, text, good, bad) for text in (*guards_from_boxes(_parametric(rule)), *candidates(rule))]
    singles = [tried for tried in singles if tried.kept and (tried.missed != frozenset(range(len(bad))) or not bad)]
    pairs = [Tried(a.guards + b.guards, a.kept & b.kept, a.missed & b.missed) for a, b in combinations(singles, 2)]
    useful = [tried for tried in (*singles, *pairs) if not tried.missed and len(tried.kept) > 1]
    useful.sort(key=lambda tried: (-len(tried.kept), len(tried.guards)))
    if not bad:  # without bad instances, a guard has to refuse a good one, or it changes nothing
        useful = [tried for tried in useful if len(tried.kept) < len(good)]
    for tried in useful[:PROOFS]:
        if prove(guarded(rule, tried.guards), EFFORT).verdict == "proved":
            lines = "; ".join(f'require({text}, "...")' for text in tried.guards)
            return f"it is proved with the guard: {lines}"
    return ""


def candidates(rule: Rule) -> tuple[str, ...]:
    """Return the usual guards over a rule's variables, as Python expressions."""
    bundles: dict[str, str] = {}
    kernels: list[str] = []

    def visit(term: Pattern | Variable) -> None:
        if isinstance(term, Variable):
            return
        if isinstance(term.attributes, str):
            bundles[term.attributes] = term.op
        if term.op in ("Conv", "ConvTranspose") and isinstance(term.operands[1], Variable):
            kernels.append(term.operands[1].name)
        for operand in term.operands:
            visit(operand)

    visit(rule.pattern)
    tensors = [variable.name for variable in rule.variables]
    weights = [variable.name for variable in rule.variables if variable.constant]
    pairs = list(combinations(tensors, 2))
    guards = [text.format(a=a) for a, op in bundles.items() for name in OPS[op].attributes for text in _BY_ATTRIBUTE.get(name, ())]
    guards += [t.format(a=a, b=b) for a, b in combinations(bundles, 2) if bundles[a] == bundles[b] for t in _BY_PAIR_OF_BUNDLES]
    both = [*pairs, *((y, x) for x, y in pairs)]
    along = [a for a, op in bundles.items() if "axis" in OPS[op].attributes]
    guards += [text.format(x=x, y=y, a=a) for a in along for x, y in both for text in _BY_TENSOR_AND_AXIS]
    guards += [text.format(x=x, y=y) for x, y in pairs for text in _BY_PAIR_OF_TENSORS]
    guards += [text.format(x=y, y=x) for x, y in pairs for text in _BY_PAIR_OF_TENSORS[-1:]]
    guards += [text.format(x=x) for x in kernels for text in _BY_KERNEL]
    guards += [text.format(x=x) for x in tensors for text in _BY_TENSOR]
    guards += [text.format(x=x) for x in weights for text in _BY_WEIGHT]
    return tuple(dict.fromkeys(guards))


def guarded(rule: Rule, guards: tuple[str, ...]) -> Rule:
    """Return the rule with more guards, which are tested first."""
    law = rule.law
    assert isinstance(law, Written), "guards are suggested for rules that people write"
    for text in reversed(guards):
        law = law.requiring(text)
    return replace(rule, law=law)


def _instances(rule: Rule) -> tuple[list[Any], list[Any]]:
    """Return bindings on which both sides agree, and bindings on which they differ or the right side is ill-typed."""
    random = Random(f"suggest {rule.name}")
    good: list[Any] = []
    bad: list[Any] = []
    for _ in range(DRAWS):
        if len(good) + len(bad) >= INSTANCES:
            break
        try:
            binding = draw_binding(rule, random)
        except (Refused, EinsatError):
            continue
        try:
            instance = instantiate(rule, (binding,))
            agrees = not any(compare(instance, seed, kind, bits=False)[1] for seed, kind in DATA)
            (good if agrees else bad).append(instance.bindings[0])
        except Mismatch as mismatch:
            if mismatch.reason.startswith("ill-typed"):
                bad.append(binding)
        except (*CRASHES, Refused, EinsatError):
            continue
    return good, bad


def _tried(rule: Rule, text: str, good: list[Any], bad: list[Any]) -> Tried:
    narrowed = guarded(rule, (text,))
    kept = frozenset(i for i, binding in enumerate(good) if not _refuses(narrowed, text, binding))
    return Tried((text,), kept, frozenset(i for i, binding in enumerate(bad) if not _refuses(narrowed, text, binding)))


def _refuses(rule: Rule, text: str, binding: Any) -> bool:
    try:
        rule.apply(binding)
    except Mismatch as mismatch:
        return mismatch.reason == text
    except (*CRASHES, TypeError, AttributeError, EinsatError):
        return True
    return False


def guards_from_boxes(located: Sequence[Parametric]) -> tuple[str, ...]:
    """Return conditions under which no differing position is left; conditions on attributes cover all of their axes at once."""
    guards: dict[str, None] = {}
    for each in located:
        conditions = each.empty()
        of_axes = [re.fullmatch(r"(\w+\.\w+)\[\d+\] == 0", condition) for condition in conditions]
        names = dict.fromkeys(match[1] for match in of_axes if match)
        if conditions and all(of_axes):
            guards[" and ".join(f"all(n == 0 for n in {name})" for name in names)] = None
        elif conditions:
            guards[" and ".join(conditions)] = None
    return tuple(guards)


def difference_of(rule: Rule | MergeRule) -> tuple[str, tuple[dict[str, Any], ...]]:
    """Return where the sides of a rule differ, if they are equal elsewhere, as text and as data: for all sizes if that is known."""
    located = _parametric(rule)
    if located:
        text = f"{located[0].describe()}: proved for all sizes, {located[0].case}"
        return text, tuple(each.to_json() for each in located)
    return _at_sizes(rule)


@lru_cache(maxsize=1)
def _parametric(rule: Rule | MergeRule) -> tuple[Parametric, ...]:
    if isinstance(rule, MergeRule) or rule.ranks is not None:
        return ()
    return tuple(islice(parametric(rule), SHOWN_CASES))


def _at_sizes(rule: Rule | MergeRule, seed: int = 0) -> tuple[str, tuple[dict[str, Any], ...]]:
    """Return ``equal except where h = 7 mod 8, for <left side>`` for the instance with the largest share of equal positions, if any."""
    best, text, data = 0.0, "", tuple[dict[str, Any], ...]()
    for instance in draws(rule, seed, COMPARED):
        for left, right in zip(instance.left, instance.right, strict=True):
            try:
                first, second = (fragment_expression(side, instance.numbers) for side in (left, right))
                difference = disagreement(first, second, LITTLE_WORK)
            except EinsatError:
                continue
            if difference is None or not difference.boxes or difference.is_total:
                continue
            share = 1 - difference.cells / left.type.elements
            if share > best:
                names = axis_names(left)
                best, text = share, f"{difference.describe(names)}, for {format_fragment(left)} == {format_fragment(right)}"
                data = (difference.to_json(names),)
    return text, data
