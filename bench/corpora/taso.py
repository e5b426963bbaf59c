"""Read the rules of TASO and TENSAT: decoded substitutions, equations, rewrite rules, pairs of rules, axioms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any

from bench.corpora.entries import Entry, Expected, reading_of
from bench.corpora.statements import SEED, Guard, Statement, free_names, infer_ranks
from bench.corpora.taso_guards import candidates
from bench.corpora.terms import Application, Term, from_lists, names, substitute

PARAMETERS: Mapping[str, tuple[int, ...]] = {
    "?sx": (1, 2), "?sy": (1, 2), "?p": (0, 1), "?c": (0, 2), "?kx": (3, 1), "?ky": (3,), "?k": (3,), "?a": (0, 1, 2, 3),
}  # fmt: skip
"""Values of an axiom's parameters: strides, padding, activation, kernel sizes, axis."""
PLACES = {
    "conv2d": 4, "poolavg": 5, "poolmax": 5, "concat": 1, "split_0": 1, "split_1": 1, "split": 1, "enlarge": 2, "Cpool": 2, "Iconv": 2,
}  # fmt: skip
"""The number of parameters that an operator has before its tensors."""
RANKS = (2, 3, 4)
"""Ranks of variables that may have any."""


def read_taso(data: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the entries of decoded TASO substitutions."""
    for rule in data["rules"]:
        equations = [(from_lists(e["lhs_tree"]), from_lists(e["rhs_tree"])) for e in rule["equations"]]
        ranks = {f"?{variable['name']}": int(variable["rank"]) for variable in rule["variables"]}
        yield _entry(str(rule["id"]), equations, str(rule.get("verdict", "")), ranks)


def read_tensat(data: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the entries of TENSAT's files: single and multi-pattern rules, hand-written ones, axioms, all equations."""
    for section in ("single_rules", "hand_single_rules", "full_taso_equations"):
        for rule in data.get(section, ()):
            pair = from_lists(rule["lhs_tree"]), from_lists(rule["rhs_tree"])
            yield _entry(str(rule["id"]), [pair], str(rule.get("verdict", "")), _input_ranks(pair), section)
    for section in ("multi_rules", "multi_rules_cleaned", "hand_multi_rules"):
        for rule in data.get(section, ()):
            pairs = [(from_lists(p["src_tree"]), from_lists(p["dst_tree"])) for p in rule["patterns"]]
            yield _entry(str(rule["id"]), pairs, str(rule.get("verdict", "")), {}, section)
    for rule in data.get("verifier_axioms", ()):
        pair = from_lists(rule["lhs_tree"]), from_lists(rule["rhs_tree"])
        yield _entry(f"axiom {rule['name']}", [pair], "", {}, "verifier_axioms")


def _input_ranks(terms: Sequence[Term]) -> Mapping[str, int]:
    """Return the ranks that the numbers of TENSAT's inputs stand for."""
    result = {}
    for name in names(terms):
        if name.startswith("input_"):
            number = int(name.removeprefix("input_"))
            result[name] = 2 if number <= 6 else 4 if number <= 19 else 0
    return result


def _entry(name: str, pairs: Sequence[tuple[Term, Term]], claim: str, attributes: Mapping[str, int], section: str = "") -> Entry:
    text = " and ".join(f"{left} => {right}" for left, right in pairs)
    statements = tuple(_statements(name, pairs, attributes))
    expected: Expected | None = None
    if claim:
        expected = "unsound" if claim.startswith("UNSOUND") else "sound"
    guards: tuple[Guard, ...] = candidates(tuple(left for left, _ in pairs))
    return Entry(name, text, (reading_of(statements, guards),), expected, claim, section=section)


def _statements(name: str, pairs: Sequence[tuple[Term, Term]], attributes: Mapping[str, int]) -> Iterator[Statement]:
    """Yield a statement for every choice of parameters and of free ranks."""
    flat = [side for pair in pairs for side in pair]
    parameters = [p for p in names(flat) if p in PARAMETERS and _is_parameter(flat, p)]
    for choice in product(*(PARAMETERS[p] for p in parameters)):
        values: dict[str, Term] = dict(zip(parameters, choice, strict=True))
        lefts = tuple(substitute(left, values) for left, _ in pairs)
        rights = tuple(substitute(right, values) for _, right in pairs)
        variables = free_names((*lefts, *rights))
        ranks: dict[str, int | None] = {**infer_ranks((*lefts, *rights)), **{v: attributes[v] for v in variables if v in attributes}}
        if not variables:
            ranks = {SEED: 1}
        axis = values.get("?a")
        for rank in RANKS if None in ranks.values() else (0,):
            if isinstance(axis, int) and rank and axis >= rank:
                continue
            suffix = "".join(f" {p[1:]}={v}" for p, v in values.items()) + (f" rank={rank}" if rank else "")
            settled = {v: rank if r is None else r for v, r in ranks.items()}
            yield Statement(name + suffix, tuple(left for left, _ in pairs), tuple(right for _, right in pairs), settled, values)


def _is_parameter(terms: Sequence[Term], name: str) -> bool:
    """Return whether a name stands at a place where operators have parameters, not tensors."""
    def found(term: Term) -> bool:
        if not isinstance(term, Application):
            return False
        return name in term.arguments[: PLACES.get(term.operator, 0)] or any(found(a) for a in term.arguments)

    return any(found(term) for term in terms)
