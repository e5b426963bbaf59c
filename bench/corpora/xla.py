"""Read informal statements of XLA's simplifier: ``Slice(Concat(A, B)) => Slice(B)``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from random import Random
from typing import Any

from bench.corpora.entries import Entry, Expected, Reading, tried
from bench.corpora.statements import Guard
from bench.corpora.taso_values import refuse
from bench.corpora.terms import Application, Term, names, walk
from bench.corpora.xla_operators import COUNTS, XlaReading, is_number, is_scalar, is_tensor, unknowns
from egraph.errors import RuleError, TypeMismatch
from egraph.rewrite.law import Stated
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import Binding, Mismatch, Rule, Steps, Tensor, require
from egraph.rule_operators import expand, unary
from egraph.tensor import TensorType, placeholder
from verify.random_binding import Refused

WAYS = (
    "the right side's attributes are the left side's", "moved, turned or joined as the left side does",
    "those of two operators of the left side as one",
)  # fmt: skip
SLOTS = r"dims|\.\.\.|low\w*|.*size.*"
SIZES = (1, 1, 2, 2, 3, 4, 5)


def parse_call(text: str) -> Term:
    """Return ``Add(A, Slice(B, ...))`` as a term; a closing parenthesis may be missing at the end."""
    tokens = re.findall(r"[(),]|\.\.\.|-?[\w.]+(?: \+ [\w.]+)*", re.sub(r" when .*", "", text))
    position = 0

    def one() -> Term:
        nonlocal position
        name = str(tokens[position])
        position += 1
        if position >= len(tokens) or tokens[position] != "(":
            return name
        position += 1
        arguments: list[Term] = []
        while position < len(tokens) and tokens[position] != ")":
            if tokens[position] == ",":
                position += 1
            else:
                arguments.append(one())
        position += 1
        return Application(name, tuple(arguments))

    if not tokens:
        raise RuleError(f"nothing is stated: {text!r}")
    return one()


def read_xla(data: Mapping[str, Any]) -> Iterator[Entry]:
    """Yield the entries; a statement that names something the operator set lacks, or omits an operand, is not expressible."""
    for item in data["rules"]:
        name, text = str(item["id"]), f"{item['lhs']} => {item['rhs']}"
        claim = str(item["status"])
        try:
            readings = tuple(_readings(name, *(_lettered(parse_call(str(item[side]))) for side in ("lhs", "rhs"))))
        except RuleError as error:
            yield Entry(name, text, (), None, claim, error.what)
            continue
        yield Entry(name, text, readings, _expected(claim), claim, open=True, conditional=_expected(claim) == "unsound")


OPERANDS: Mapping[str, str] = {"input": "A", "weights": "B"}
"""Operands that statements spell out."""


def _lettered(term: Term) -> Term:
    """Return a term with its operands as letters."""
    if isinstance(term, Application):
        return Application(term.operator, tuple(map(_lettered, term.arguments)))
    return OPERANDS.get(term, term) if isinstance(term, str) else term


def _expected(claim: str) -> Expected | None:
    return "sound" if claim == "proven" else "unsound" if claim.startswith(("refuted", "unsound", "REJECT")) else None


def _readings(name: str, left: Term, right: Term) -> Iterator[Reading]:
    operators = {node.operator for side in (left, right) for node in walk(side)}
    for missing in operators & {"Rem"}:
        raise RuleError(f"the operator set has no {missing}")
    said = names([left])
    for variable in (*said, *names([right])):
        if not (is_tensor(variable) or is_scalar(variable) or is_number(variable) or re.fullmatch(rf"True|False|{SLOTS}", variable)):
            raise RuleError(f"{variable} is not stated in terms of tensors")
    ranks = (3,) if "Conv" in operators else (2,) if operators & {"Dot", "Transpose"} else (1, 2)
    missing = ""
    any_reading = False
    along = bool(operators & {"Concat", "ConcatList", "Reverse", "Reduce"})
    axes: tuple[int | None, ...] = (0, 1) if along and "Dot" in operators else (None,)  # one of a product's axes is meant, else any
    for (way, note), axis in product(enumerate(WAYS), axes):
        rules = _rules(name, left, right, ranks, way, axis)
        try:
            for rule in rules(False, ()):
                tried(rule)
        except RuleError as error:
            missing = missing or error.what
            continue
        any_reading = True
        yield Reading(rules, tuple(_guards({node.operator for node in walk(left)}, {node.operator for node in walk(right)})), note)
    if not any_reading:
        raise RuleError(missing)
    if operators & {"Log", "Sqrt", "Rsqrt", "Pow", "Power"}:
        yield Reading(_rules(name, left, right, ranks, 0, None, positive=True), (), WAYS[0], "the operands are positive")


def _rules(
    name: str, left: Term, right: Term, ranks: tuple[int, ...], way: int, only: int | None, *, positive: bool = False
) -> Callable[[bool, tuple[Guard, ...]], tuple[Rule, ...]]:
    def rules(typed: bool, guards: tuple[Guard, ...]) -> tuple[Rule, ...]:
        operators = {node.operator for side in (left, right) for node in walk(side)}
        along = operators & {"Concat", "ConcatList", "Reverse", "Reduce"}
        return tuple(
            _rule(f"{name} rank={rank} axis={axis}", left, right, rank, axis, way, typed, guards, positive)
            for rank in ranks for axis in ((only,) if only is not None else range(rank) if along else (0,))
        )  # fmt: skip

    return rules


def _rule(
    name: str, left: Term, right: Term, rank: int, axis: int, way: int, typed: bool, guards: tuple[Guard, ...], positive: bool
) -> Rule:
    ranks = {n: rank if is_tensor(n) else 0 for n in names([left, right]) if is_tensor(n) or is_scalar(n)}
    ranks = ranks or {"seed": rank}
    ranks |= {f"attributes{i}": COUNTS[operator] * rank for i, operator in enumerate(unknowns(left))}
    variables = tuple(Variable(variable, False) for variable in ranks)
    nested = frozenset(o.operator for o in walk(left) if any(n.operator == o.operator for a in o.arguments for n in walk(a)))

    def function(**tensors: Tensor) -> Steps:
        if positive:  # exp reaches every positive number
            tensors = {n: t if n.startswith("attributes") else unary("Exp", t) for n, t in tensors.items()}
        reading = XlaReading(tensors, axis, rank, way, nested)
        left_value = reading.tensor(left)
        for guard in guards:
            require(guard.holds(reading), guard.text)  # type: ignore[arg-type]  # a guard over this language's readings
        reading.left = left_value

        def other() -> Tensor:
            result = reading.condition(right) if left_value.type.dtype == "bool" else reading.tensor(right)
            return expand(result, shape=left_value.shape) if result.rank == 0 else result

        if typed:
            require(other().shape == left_value.shape, "the right side must have the left's type")
        yield left_value
        result = other()
        if result.shape != left_value.shape:
            refuse("the right side has another type")
        yield result

    def draw(random: Random) -> Binding:
        for _ in range(60):
            chance, common = random.choice((0.0, 0.2, 0.6)), [random.choice(SIZES) for _ in range(rank)]
            small = random.random() < 0.6
            drawn = {
                n: tuple(random.choice((1, 1, 2) if small else (1, 2, 3)) if n.startswith("attributes")
                         else random.choice(SIZES) if random.random() < chance else common[i % rank] for i in range(r))
                for n, r in ranks.items()
            }  # fmt: skip
            nodes = {v.name: Tensor(placeholder(i, TensorType("float32", drawn[v.name]))) for i, v in enumerate(variables)}
            try:
                next(function(**nodes))
            except (TypeMismatch, Mismatch):
                continue
            return Binding({variable: TensorType("float32", shape) for variable, shape in drawn.items()}, {})
        raise Refused("no draw is well-typed")

    pattern = Pattern("statement", (), variables)
    return Rule(name, f"{left} = {right}", pattern, variables, (), Stated(function), "assumes finite", draw=draw, ranks=ranks)


def _guards(operators: set[str], right: set[str]) -> Iterator[Guard]:
    """Yield preconditions on the numbers that a statement omits; some only if the right side lacks an operator."""
    gone = operators - right

    def of(reading: Any, operator: str, row: int) -> list[int]:
        return [value for noted in reading.noted.get(operator, ()) for value in noted[row]]

    if "Reverse" in gone:
        yield Guard("the reversed axis has one element", lambda r: r.tensors["A"].shape[r.axis] == 1)  # type: ignore[attr-defined]
    if "Slice" in operators:
        yield Guard("slices take every element", lambda r: all(step == 1 for step in of(r, "Slice", 2)))
        yield Guard("the slices agree off the axis and meet on it, and take every element", _adjacent)
        yield Guard("the slice ends inside the padding", _in_padding)
        yield Guard("the slice is what was padded", _unpadded)
    if "Conv" in gone:
        yield Guard("strides are one and there is no padding", lambda r: all(v == 1 for row in (0, 1) for v in of(r, "Conv", row)[:1]))
    if operators | right >= {"DynamicSlice", "DynamicUpdateSlice"}:
        yield Guard("what is written back is where it was taken", _written_back)
    if operators >= {"Concat", "Dot"}:
        yield Guard("corresponding parts have equal sizes", _parts_match)
    elif "Dot" in gone:
        yield Guard("nothing is contracted", lambda r: r.tensors["A"].shape[1] == 1)  # type: ignore[attr-defined]


def _adjacent(reading: Any) -> bool:
    noted = reading.noted.get("Slice", ())
    if len(noted) != 2:
        return False
    (start, count, step), (second_start, _, steps) = noted
    meet = all(o == s + (c if i == reading.axis else 0) for i, (s, c, o) in enumerate(zip(start, count, second_start, strict=True)))
    return meet and all(each == 1 for each in (*step, *steps))


def _in_padding(reading: Any) -> bool:
    slices, pads = reading.noted.get("Slice", ()), reading.noted.get("Pad", ())
    if not slices or not pads:
        return False
    (start, count, step), (low, _) = slices[0], pads[0]
    return bool(start[0] - 1 + (count[0] - 1) * step[0] < low[0] - 1)


def _unpadded(reading: Any) -> bool:
    slices, pads = reading.noted.get("Slice", ()), reading.noted.get("Pad", ())
    if not slices or not pads:
        return False
    (start, _, step), (low, _) = slices[0], pads[0]
    return all(s == p for s, p in zip(start, low, strict=True)) and all(each == 1 for each in step)


def _written_back(reading: Any) -> bool:
    (start, _), (outer,) = reading.noted["DynamicSlice"][0], reading.noted["DynamicUpdateSlice"][-1]
    size = reading.tensors["A"].shape
    return all(a == b for a, b in zip(start, outer, strict=True)) and all(
        a - 1 + c <= s for a, c, s in zip(start, reading.noted["DynamicSlice"][0][1], size, strict=True)
    )


def _parts_match(reading: Any) -> bool:
    t = reading.tensors
    return all(n in t for n in "XYCD") and t["X"].shape[1] == t["C"].shape[0]
