"""Find rules of TASO, TENSAT and TensorRight that equal one of ours: as graphs, up to names and attributes.

The operators' attributes are not compared, because a rule of ours may hold for more of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path

from bench.corpora.terms import Application, Term, parse
from bench.corpora.xla import parse_call
from bench.corpora.xla_operators import is_scalar
from egraph.errors import EinsatError
from egraph.rule import MergeRule, Rule
from egraph.tensor import Node
from verify.cases import pattern_operators
from verify.random_testing import Instance, draws

SYSTEMS = ("TASO", "TENSAT", "TensorRight")
OPERATORS: Mapping[str, str] = {
    "ewadd": "Add", "ewmul": "Mul", "smul": "Mul", "matmul": "MatMul", "conv2d": "Conv", "relu": "Relu", "transpose": "Transpose",
    "concat": "Concat", "poolmax": "MaxPool", "poolavg": "AveragePool", "Add": "Add", "Sub": "Sub", "Mul": "Mul", "Divide": "Div",
    "Min": "Min", "Max": "Max", "Negate": "Neg", "Abs": "Abs", "Transpose": "Transpose", "Concat": "Concat", "Dot": "MatMul",
    "Slice": "Slice", "Pad": "Pad", "Select": "Where", "Reduce": "ReduceSum", "Broadcast": "Expand",
}  # fmt: skip
"""Our names of the systems' operators; rules with other operators are not compared."""
ACTIVATED = 2
"""TASO's number of a relu that follows a convolution."""
DRAWS = 3000
CONSTANT = "c"
"""The prefix of the names of our constant operands."""
COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})


@dataclass(frozen=True)
class Published:
    """A rule of other systems, in our operators. ``seconds``: the proof's time, as its authors report it."""

    systems: tuple[str, ...]
    name: str
    left: Term
    right: Term
    seconds: float | None = None

    def __str__(self) -> str:
        return self.name + (f", {1e3 * self.seconds:.0f} ms" if self.seconds is not None else "")


@cache
def published() -> tuple[Published, ...]:
    """Return the rules of other systems that our operators can write."""
    rows = json.loads(Path(__file__).with_name("published.json").read_text())["rules"]
    rules = []
    for row in rows:
        read = parse_call if "TensorRight" in row["systems"] else parse
        left, right = (_ours(read(row[side])) for side in ("left", "right"))
        if left is not None and right is not None:
            rules.append(Published(tuple(row["systems"]), row["name"], left, right, row.get("seconds")))
    return tuple(rules)


def _ours(term: Term) -> Term | None:
    """Return a term with our operators' names and without attributes; None if it has an operator that we lack."""
    if not isinstance(term, Application):
        return str(term)
    if term.operator not in OPERATORS:
        return None
    operands = [a for a in term.arguments if not isinstance(a, int) and a != "..." and a not in PARAMETERS]
    translated = [_ours(operand) for operand in operands]
    if any(operand is None for operand in translated):
        return None
    result = Application(OPERATORS[term.operator], tuple(k for k in translated if k is not None))
    activated = term.operator == "conv2d" and term.arguments[3] == ACTIVATED
    return Application("Relu", (result,)) if activated else result


PARAMETERS = frozenset({"?sx", "?sy", "?p", "?c", "?kx", "?ky", "?k", "?a", "dims"})


def same_rules(rule: Rule | MergeRule) -> tuple[Published, ...]:
    """Return the published rules that equal a rule, in either direction."""
    if isinstance(rule, MergeRule) or not pattern_operators(rule.pattern) <= set(OPERATORS.values()):
        return ()
    try:
        instances = list(islice(draws(rule, 0, DRAWS), 3))
    except EinsatError:
        return ()
    instances += [replace(each, numbers={}) for each in instances]  # a constant that happens to be one number is a constant
    pairs = {(_term(each.left[0], each), _term(each.right[0], each)) for each in instances}
    return tuple(rule for rule in published() if any(_equal(pair, rule) for pair in pairs))


def _term(node: Node, instance: Instance) -> Term:
    if node.op == "Placeholder":
        number = instance.numbers.get(node.integer("index"))
        kind = CONSTANT if node.attribute("constant") else "v"
        return f"{kind}{node.integer('index')}" if number is None else f"{number:g}"
    return Application(node.op, tuple(_term(operand, instance) for operand in node.inputs))


def _equal(pair: tuple[Term, Term], rule: Published) -> bool:
    for left, right in ((rule.left, rule.right), (rule.right, rule.left)):
        for names in _renamings(pair[0], left, {}):
            if next(_renamings(pair[1], right, names), None) is not None:
                return True
    return False


def _renamings(left: Term, right: Term, names: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield the ways, one to one, to rename one term's variables into the other's."""
    match left, right:
        case str(), str() if _is_number(left) or _is_number(right):
            if left == right:
                yield names
        case str(), str():
            if is_scalar(right) and not left.startswith(CONSTANT):
                return
            if names.get(left, right) == right and (left in names or right not in names.values()):
                yield {**names, left: right}
        case Application(operator, operands), Application(same, places) if operator == same and len(operands) == len(places):
            orders = (places, places[::-1]) if operator in COMMUTATIVE else (places,)
            for order in orders:
                yield from _together(operands, order, names)


def _together(ones: tuple[Term, ...], others: tuple[Term, ...], names: dict[str, str]) -> Iterator[dict[str, str]]:
    if not ones:
        yield names
        return
    for extended in _renamings(ones[0], others[0], names):
        yield from _together(ones[1:], others[1:], extended)


def _is_number(name: str) -> bool:
    return name.lstrip("-").replace(".", "").isdigit()
