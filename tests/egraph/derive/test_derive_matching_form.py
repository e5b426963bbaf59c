"""The laws of forms hold at every point, and two forms have equal texts exactly if their values are equal."""

from __future__ import annotations

from random import Random
from typing import Any, Literal

import numpy as np
import pytest

from egraph.derive.matching.conditions import interval, pieces_of
from egraph.derive.matching.form import form
from egraph.derive.matching.match import match
from egraph.errors import EinsatError
from egraph.tensor import Node, attributes, rewrite, walk
from egraph.tensor.expr.conditions import bound_of, tightest
from egraph.tensor.expr.evaluate import Evaluator
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.index import Index, Iterator, index, length
from egraph.tensor.expr.laws import affine, tidy
from egraph.tensor.expr.parsing import parse_scope
from egraph.tensor.expr.scope import Compare, Guarded, Number, Scalar, Tensor, number
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate, fragment_expression
from tests.egraph.derive.test_derive_matching_operators import CONTRACTIONS, MOVEMENTS, WINDOWS, samples

ITERATORS = tuple(Iterator(name, 0, size) for name, size in (("a", 6), ("b", 4), ("c", 3)))
ENVIRONMENT = {i: np.arange(length(i)).reshape([-1 if i is j else 1 for j in ITERATORS]) for i in ITERATORS}
OPERATORS: tuple[Literal["<", "<=", "==", "!="], ...] = ("<", "<=", "==", "!=")
EVALUATOR = Evaluator({}, "float64", {})


def drawn(random: Random, deep: int = 2) -> Index:
    """Draw an index with divisions."""
    value = index(random.randint(-3, 6))
    for iterator in ITERATORS:
        value = value + random.choice((0, 0, 1, 1, 2, 3, 4, 6, -1)) * index(iterator)
    if deep and random.random() < 0.7:
        inner, by, times = drawn(random, deep - 1), random.choice((2, 3, 4, 6)), random.choice((1, 2, 3))
        kind = random.random()
        if kind < 0.3:
            value = value + times * (inner // by)
        elif kind < 0.6:
            value = value + times * (inner % by)
        else:
            value = value + times * by * (inner // by) + times * (inner % by)
    return value


def values(value: Index) -> np.ndarray:
    return np.broadcast_to(EVALUATOR.index(value, ENVIRONMENT), (6, 4, 3))


def test_tidy_indices_are_equal_everywhere() -> None:
    random = Random(1)
    for _ in range(600):
        written = drawn(random)
        assert np.array_equal(values(tidy(written)), values(written)), written


def test_tightest_conditions_hold_at_the_same_points() -> None:
    random = Random(2)
    for _ in range(400):
        conditions = [Compare(drawn(random, 1), random.choice(OPERATORS), drawn(random, 1)) for _ in range(random.randint(1, 4))]
        before = np.broadcast_to(EVALUATOR.conditions(conditions, ENVIRONMENT), (6, 4, 3))
        kept = tightest(conditions)
        after = np.zeros_like(before) if kept is None else np.broadcast_to(EVALUATOR.conditions(kept, ENVIRONMENT), (6, 4, 3))
        assert np.array_equal(before, after), conditions


def test_bounds_and_intervals_say_what_their_conditions_say() -> None:
    random, compared = Random(3), 0
    for _ in range(400):
        place = sum((random.choice((0, 1, 2, 3)) * index(i) for i in ITERATORS), index(random.randint(-3, 2)))
        scale, size = random.choice((1, 2, -1, -3)), random.randint(1, 9)
        condition = Compare(index(0), "<=", place * scale + random.randint(-4, 6))
        parts, (kept,) = affine(place), (tightest([condition]) or (None,)) if tightest([condition]) else (None,)
        if parts is None or kept is None or not parts[1]:
            continue
        holds = np.broadcast_to(EVALUATOR.condition(condition, ENVIRONMENT), (6, 4, 3))
        where, positions = interval(parts, size, [kept]), values(place)
        inside = (positions >= 0) & (positions < size)
        assert np.array_equal((where.low <= positions) & (positions < where.high), holds & inside)
        limit = bound_of(kept)
        if limit is not None:
            at = np.broadcast_to(ENVIRONMENT[limit.iterator], (6, 4, 3))
            assert limit.exact and np.array_equal((limit.low <= at) & (at < limit.high), holds)
            compared += 1
    assert compared > 10


def test_pieces_are_the_choice() -> None:
    random, iterator = Random(4), ITERATORS[0]
    for _ in range(200):
        choice: Scalar = number(0)
        for value in range(1, random.randint(2, 5)):
            sides = [index(iterator), index(random.randint(-1, 6))]
            random.shuffle(sides)
            choice = Guarded((Compare(sides[0], random.choice(OPERATORS[:3]), sides[1]),), number(value), choice)
        assert isinstance(choice, Guarded)
        pieces = pieces_of(choice)
        if pieces is None:  # no condition depends on the iterator
            continue
        assert pieces[0] == iterator
        expected = np.broadcast_to(EVALUATOR.scalar(choice, {iterator: np.arange(6)}, None), 6)
        found = [[p.value for p in pieces[1] if p.low <= k < p.high] for k in range(6)]
        assert [[Number(x.value) for x in row if isinstance(x, Number)] for row in found] == [[number(int(v))] for v in expected]


def changed(program: Node, random: Random) -> Node | None:
    """Change one attribute, the order of operands or a layout of a program; return None if the result is no valid program."""
    node = random.choice([n for n in walk((program,)) if n.op != "Placeholder"])
    values: dict[str, Any] = dict(node.attributes)
    operands = list(node.inputs)
    listed = [key for key, value in node.attributes if isinstance(value, tuple)]
    if listed and random.random() < 0.7:
        key = random.choice(listed)
        entries = list(values[key])
        first, second = random.randrange(len(entries)), random.randrange(len(entries))
        if key in ("perm", "shape"):
            entries[first], entries[second] = entries[second], entries[first]
        else:
            entries[first] += random.choice((-1, 1))
        values[key] = tuple(entries)
    elif len(operands) > 1:
        random.shuffle(operands)
    else:
        operands[0] = apply("Transpose", operands[0], perm=tuple(random.sample(range(operands[0].type.rank), operands[0].type.rank)))
    try:
        new = apply(node.op, *operands, attributes=attributes(**values))
        built = rewrite((program,), lambda o, i: new if o is node else (apply(o.op, *i, attributes=o.attributes) if i else o))
    except EinsatError:
        return None
    return built[program] if built[program].type == program.type else None


@pytest.mark.parametrize("operator", CONTRACTIONS + WINDOWS[:3] + MOVEMENTS)
def test_forms_agree_exactly_where_values_do(operator: str) -> None:
    """Programs of a match and changed programs have equal forms exactly if their values are equal."""
    random, compared = Random(operator), 0
    for node in samples(operator, 12 if operator in CONTRACTIONS else 24):
        text, generator = form(fragment_expression(node)).text, np.random.default_rng(1)
        leaves = {leaf: generator.integers(0, PRIME, leaf.type.sizes) for leaf in node.inputs}
        (expected,) = evaluate((node,), leaves, "prime")
        programs = [p for p in match(fragment_expression(node), node.inputs)[:3] if p.op not in ("Expression", "Placeholder")]
        for other in [changed(program, random) for program in programs for _ in range(3)]:
            if other is not None:
                (value,) = evaluate((other,), leaves, "prime")
                assert (form(fragment_expression(other)).text == text) == np.array_equal(value, expected), other
                compared += 1
    assert compared > 5


def test_a_sum_over_an_equal_index_is_found_through_inner_scopes() -> None:
    """A sum over an equal index is found in inner scopes, which are split like the scopes around them."""
    tensors = {"0": Tensor("0", (6, 4)), "1": Tensor("1", (6, 4))}
    nested = parse_scope("{i<24} exp({{a<6,b<4} sum(k<4) ($0[a,k] * $1[a,b])}[i//4,i%4])", tensors)
    plain = parse_scope("{a<6,b<4} exp({{x<6,y<4} sum(j<4) ($1[x,y] * $0[x,j])}[a,b])", tensors)
    assert form(nested).digits != () and form(nested).text.split("} ", 1)[1] == form(plain).text.split("} ", 1)[1]
