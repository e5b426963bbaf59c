"""Every derivation rule keeps the value of every scope: operators with all their attributes are compared before and after, in F_p."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator as Iterable
from random import Random

import numpy as np
import pytest

from egraph.derive.rules.bodies import Refusal, every, pulled
from egraph.derive.rules.boundary import relax, tighten
from egraph.derive.rules.expressions import merge_expressions, split_terms, split_values
from egraph.derive.rules.indices import substitute_indices
from egraph.derive.rules.instances import instantiate, sum_within, without_axis
from egraph.derive.rules.substitution import merge_iterators, reverse, skew, solve, split_iterator, unimodular
from egraph.derive.rules.summation import guards_outward, merge_traversal, split_summation
from egraph.tensor.expr.bodies import flattened, indices_of, with_reads
from egraph.tensor.expr.canonical import canonical
from egraph.tensor.expr.evaluate import evaluate
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.expr.index import Index, Iterator, index, known, length
from egraph.tensor.expr.laws import iterators_of
from egraph.tensor.expr.parsing import parse_scope
from egraph.tensor.expr.printing import format_scalar, format_scope
from egraph.tensor.expr.scope import Read, Scalar, Scope, Tensor
from egraph.tensor.ops import OPS

DRAWN = (
    "Conv", "ConvTranspose", "MatMul", "Expression", "MaxPool", "AveragePool", "ReduceSum", "ReduceMax", "ReduceProd", "Softmax",
    "LayerNormalization", "Add", "PRelu", "Concat", "Pad", "Slice", "Transpose",
)  # fmt: skip


def drawn(random: Random, name: str) -> Scope:
    """Return the canonical meaning of an operator with drawn sizes and attributes."""
    spec = OPS[name]
    shapes, attributes = spec.sample(random)
    return canonical(spec.meaning([Tensor(str(k), shape) for k, shape in enumerate(shapes)], attributes))


def tensors_of(body: Scalar) -> Iterable[Tensor]:
    match body:
        case Read(Tensor() as source, _):
            yield source
        case Read(Scope() as source, _):
            yield from tensors_of(source.body)
        case _:
            for part in (*getattr(body, "arguments", ()), *(getattr(body, k) for k in ("then", "otherwise") if hasattr(body, k))):
                yield from tensors_of(part)


def assert_equal(before: Scope, after: Scope) -> None:
    """Compare two scopes on one random draw of operands, exactly in F_p; maxima and functions act on residues."""
    random = np.random.default_rng(3)
    values = {t.name: random.integers(0, PRIME, [known(n) for n in t.shape]) for t in sorted(tensors_of(before.body), key=str)}
    one, other = evaluate(before, values, "prime"), evaluate(after, values, "prime")
    assert np.array_equal(one, other), f"{format_scope(before)}\n{format_scope(after)}"


Ways = Iterable[Scope | Refusal]


def _split_sums(scope: Scope, random: Random) -> Ways:
    yield split_summation(scope, [i for i in scope.summation if random.random() < 0.5])


def _splits(scope: Scope, random: Random) -> Ways:
    for iterator in every(scope):
        for factor in range(2, length(iterator)):
            yield split_iterator(scope, iterator, factor)


def _merges(scope: Scope, random: Random) -> Ways:
    for group in (scope.traversal, scope.summation):
        if len(group) > 1:
            yield merge_iterators(scope, *random.sample(group, 2))


def _unimodular(scope: Scope, random: Random) -> Ways:
    for group in (scope.traversal, scope.summation):
        if len(group) > 1:
            a = random.choice((-2, -1, 1, 2))
            yield unimodular(scope, random.sample(group, 2), ((1, a), (0, random.choice((1, -1)))))


def _relaxed(scope: Scope, random: Random) -> Ways:
    for iterator in every(scope):
        yield relax(scope, iterator, random.randrange(3), random.randrange(3))


def _tightened(scope: Scope, random: Random) -> Ways:
    for iterator in every(scope):
        yield tighten(scope, iterator)
        wider = relax(scope, iterator, 1, 2)
        if isinstance(wider, Scope) and iterator in scope.summation:
            yield tighten(wider, next(i for i in wider.summation if i.name == iterator.name))


def _indices(scope: Scope, random: Random) -> Ways:
    reduced = frozenset(scope.summation)
    for value in dict.fromkeys(indices_of(scope.body)):
        outer = sum((Index((t,)) for t in value.terms if t[0] and not iterators_of(Index((t,))) & reduced), Index(()))
        if iterators_of(outer):
            yield substitute_indices(scope, [outer], random.choice(("outward", "inward")))
        outside = split_summation(scope, [i for i in scope.summation if i in iterators_of(value)])
        if isinstance(outside, Scope) and isinstance(outside.body, Read) and isinstance(outside.body.source, Scope):
            inner = substitute_indices(outside.body.source, [value])
            if isinstance(inner, Scope):
                inner = outside.with_body(Read(inner, outside.body.indices))
            yield inner


def _instances(scope: Scope, random: Random) -> Ways:
    for part in flattened("mul", pulled(scope.body, scope.reduction)[1]):
        yield instantiate(scope, part)
        if isinstance(part, Read):
            moving = [i for i in part.indices if len(i.terms) > 1]
            yield instantiate(scope, part, moving)


def _merged_traversals(scope: Scope, random: Random) -> Ways:
    yield merge_traversal(scope)
    for ways in (_split_sums, _relaxed, _tightened, _splits):
        for nested in ways(scope, random):
            if isinstance(nested, Scope):
                yield merge_traversal(nested)


def _skews(scope: Scope, random: Random) -> Ways:
    for iterator in scope.summation:
        others = [i for i in every(scope) if i != iterator]
        if others:
            by = index(random.choice(others)) * random.choice((-1, 1, 2))
            yield skew(scope, iterator, by // 2 if random.random() < 0.3 else by)


def _solved(scope: Scope, random: Random) -> Ways:
    for iterator in scope.summation:
        yield solve(scope, iterator)
        for factor in (2, 3):
            split = split_iterator(scope, iterator, factor)
            if isinstance(split, Scope):
                yield from (solve(split, i) for i in split.summation)


LEAST = {"split_terms": 1, "sum_within": 0}
"""Rules that apply to few operators, with the least number of their applications; they also have tests of their own."""
RULES: dict[str, Callable[[Scope, Random], Ways]] = {
    "split_summation": _split_sums,
    "merge_traversal": _merged_traversals,
    "guards_outward": lambda scope, _: iter([guards_outward(scope)]),
    "split_iterator": _splits,
    "merge_iterators": _merges,
    "unimodular": _unimodular,
    "skew": _skews,
    "reverse": lambda scope, _: (reverse(scope, i) for i in every(scope)),
    "solve": _solved,
    "relax": _relaxed,
    "tighten": _tightened,
    "substitute_indices": _indices,
    "instantiate": _instances,
    "sum_within": lambda scope, _: (sum_within(scope, i) for i in scope.summation),
    "without_axis": lambda scope, _: (without_axis(scope, i) for i in scope.traversal),
    "split_values": lambda scope, _: (split_values(scope, i) for i in scope.traversal),
    "split_terms": lambda scope, _: iter([split_terms(scope)]),
}


@pytest.mark.parametrize("name", RULES)
def test_rule_keeps_the_value_of_operators(name: str) -> None:
    random, applied = Random(name), 0
    for operator in DRAWN:
        for _ in range(30 if (name, operator) == ("solve", "ConvTranspose") else 4 if operator.startswith("Conv") else 2):
            scope = drawn(random, operator)
            for result in RULES[name](scope, random):
                if isinstance(result, Scope):
                    assert_equal(scope, result)
                    assert_equal(scope, canonical(result))
                    applied += 1
                else:
                    assert result.reason
    assert applied >= LEAST.get(name, 3), f"{name} was applied {applied} times"


def parsed(text: str, **shapes: tuple[int, ...]) -> Scope:
    return parse_scope(text, {name[1:]: Tensor(name[1:], shape) for name, shape in shapes.items()})


@pytest.mark.parametrize("image", ["x+2*y", "x-2*y+6", "7-x-2*y"])
def test_skewed_images_are_read_at_one_index(image: str) -> None:
    """In EinNet's Rule2 cases, x in 2 and y in 4 become one iterator of 8 values, whatever their signs."""
    scope = parsed("{x<2,y<4} sum(t<5) ($0[" + image + "+t] * $1[t])", t0=(12,), t1=(5,))
    place = next(iter(indices_of(scope.body))) - index(scope.summation[0])
    result = substitute_indices(scope, [place])
    assert isinstance(result, Scope) and isinstance(result.body, Read) and result.body.source.shape == (8,)
    assert_equal(scope, result)


def test_taps_beyond_the_image_are_tightened_away() -> None:
    """In EinNet's Relaxation case, 226 of 230 rows hold nonzero values, and the other rows are cut off."""
    scope = parsed("{i<230} sum(r<3) [0<=i+r-4, i+r-4<224 ? ($0[i+r-4] * $1[r]) : 0]", t0=(224,), t1=(3,))
    result = tighten(scope, scope.traversal[0])
    assert isinstance(result, Scope)
    assert format_scope(result).startswith("{i<230} [2<=i, i<228 ? {{i<226} sum(r<3)")
    assert_equal(scope, result)


def source_of(part: Scope) -> Tensor | Scope:
    """Return the tensor or scope that a scope's body reads."""
    assert isinstance(part.body, Read)
    return part.body.source


def test_matmuls_merge_into_one() -> None:
    tensors = {"a": (3, 4), "b": (4, 5), "c": (3, 4), "d": (4, 5)}
    shapes = {f"t{k}": shape for k, shape in tensors.items()}
    first, apart = (parsed("{m<3,n<5} sum(k<4) ($" + a + "[m,k] * $" + b + "[k,n])", **shapes) for a, b in ("ab", "cd"))
    batched = merge_expressions([first, apart])
    assert not isinstance(batched, Refusal)
    values = {k: np.random.default_rng(0).integers(0, PRIME, shape) for k, shape in tensors.items()}
    for one, other in zip((first, apart), batched, strict=True):
        assert np.array_equal(evaluate(one, values, "prime"), evaluate(other, values, "prime"))
    assert len({id(source_of(part)) for part in batched}) == 1


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (lambda s: split_summation(s, [s.traversal[0]]), "only summation iterators"),
        (lambda s: split_iterator(s, s.summation[0], 2), "does not split"),
        (lambda s: merge_iterators(s, s.traversal[0], s.summation[0]), "two traversal iterators"),
        (lambda s: unimodular(s, s.summation, ((2, 0), (0, 1))), "determinant"),
        (lambda s: relax(s, s.traversal[0], 0, 0), "must grow"),
        (lambda s: tighten(s, s.traversal[0]), "may hold"),
        (lambda s: merge_traversal(s), "not a read of an inner scope"),
        (lambda s: substitute_indices(s, [index(s.traversal[0])]), "iterators themselves"),
        (lambda s: substitute_indices(s, [index(s.traversal[0]) + s.traversal[1]]), "no iterator occurs"),
        (lambda s: split_terms(s), "no sum of terms"),
        (lambda s: merge_expressions([s, s]), "one and the same"),
        (lambda s: solve(s, s.summation[0]), "no guard is an equation"),
        (lambda s: guards_outward(s), "depends on a summation iterator"),
    ],
)
def test_a_rule_that_does_not_apply_says_why(result: Callable[[Scope], Scope | Refusal], reason: str) -> None:
    scope = parsed("{h<4,f<2} sum(r<3,c<5) [0<=h+r-1, h+r-1<4 ? ($0[c,h+r-1] * $1[f,h,c,r]) : 0]", t0=(5, 4), t1=(2, 4, 5, 3))
    refusal = result(scope)
    assert isinstance(refusal, Refusal) and reason in refusal.reason


def test_a_maximum_of_sums_stays_two_scopes() -> None:
    nested = parsed("{h<4} max(r<3) {{h<4,r<3} sum(c<5) $0[h,r,c]}[h,r]", t0=(4, 3, 5))
    assert isinstance(merge_traversal(nested), Refusal)


def test_sums_of_terms_are_split() -> None:
    scope = parsed("{h<4} sum(r<3) [h+r<5 ? ($0[h] - $1[r]) : 0]", t0=(4,), t1=(3,))
    result = split_terms(scope)
    assert isinstance(result, Scope)
    assert_equal(scope, result)


def test_iterators_in_a_shape_with_unit_sizes_are_one_value() -> None:
    assert length(Iterator("i", 2, 7)) == 5


def test_a_sum_over_one_factor_is_done_first() -> None:
    scope = parsed("{h<4} sum(k<3,b<5) [b+k<6 ? ($0[h,k] * $1[k,b]) : 0]", t0=(4, 3), t1=(3, 5))
    result = sum_within(scope, scope.summation[1])
    assert isinstance(result, Scope) and len(result.summation) == 1
    assert_equal(scope, result)
    across = parsed("{h<4} sum(k<3,b<5) [b+h<6 ? ($0[h,k] * $1[k,b]) : 0]", t0=(4, 3), t1=(3, 5))
    assert isinstance(sum_within(across, across.summation[1]), Refusal)


def test_reads_are_exchanged_where_they_stand() -> None:
    tensors = {"0": Tensor("0", (4,)), "1": Tensor("1", (1, 4))}
    scope = parse_scope("{i<4} [i<2 ? ($0[i] * table(4: 1 2 3 4)[i]) : max($0[i], $1[0,i])]", tensors)
    assert with_reads(scope.body, lambda read: read) is scope.body
    other = with_reads(scope.body, lambda read: Read(Tensor("2", read.source.shape), read.indices))
    assert format_scalar(other) == format_scalar(scope.body).replace("$0", "$2").replace("$1", "$2")


def test_alike_iterators_beyond_the_orders_compared_are_left_as_they_are() -> None:
    """Twelve interchangeable iterators keep their order because comparing all orders would be about 500 million cases.

    The canonical form is still stable and has the same value.
    """
    names = [f"k{n}" for n in range(12)]
    text = f"{{i<2}} sum({','.join(f'{name}<2' for name in names)}) $0[i+{'+'.join(names)}]"
    scope = parse_scope(text, {"0": Tensor("0", (14,))})
    assert canonical(scope) == canonical(canonical(scope))
    values = {"0": np.arange(14)}
    assert np.array_equal(evaluate(scope, values, "prime"), evaluate(canonical(scope), values, "prime"))


@pytest.mark.parametrize(
    ("guards", "left"),
    [
        ("0<=i+r-4, i+r-4<1", 0),  # two bounds that leave one value
        ("0<=i+r-4, i+r<=4", 0),
        ("0<=i+r-4, i+r-4<2", 1),  # two values
        ("0<=i+r-4, i+2*r-4<1", 1),  # bounds of different indices
    ],
)
def test_bounds_that_leave_one_value_determine_an_iterator(guards: str, left: int) -> None:
    scope = parsed("{i<5} sum(r<5) [" + guards + " ? ($0[r] * $1[i]) : 0]", t0=(5,), t1=(5,))
    result = solve(scope, scope.summation[0])
    assert isinstance(result, Refusal) == bool(left)
    if isinstance(result, Scope):
        assert not result.summation
        assert_equal(scope, result)
