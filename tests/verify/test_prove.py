"""Rules are proved, refuted with a runnable counterexample, or unknown with an obligation; hard failures do not pass."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest

from egraph.rule import Attributes, Binding, Equation, MergeRule, Rule, Steps, Tensor, Weight, require, require_number, rule
from egraph.rule_operators import conv, exp, log, reduce_max, relu, slice_, softmax, transpose
from egraph.rules import RULES, rule_named
from egraph.tensor import TensorType, attributes, walk
from egraph.tensor.expr.index import RealSymbol, Symbol, index
from egraph.tensor.expr.scope import Compare
from egraph.tensor.ops.reference import evaluate
from verify import prove as module
from verify.application import objection
from verify.counterexamples import smallest
from verify.models import small_values
from verify.numpy_script import script
from verify.outcome import Equal, Open
from verify.prove import Effort, Growth, prove
from verify.random_testing import check_rule, draw_values, draws
from verify.rounding import keeps_rounding
from verify.scope import answer, outside, tree_of
from verify.suggest import candidates, suggestion

QUICK = Effort(tests=8, tries=1500, applications=2)


@rule(rounding="reassociates")
def matmul_associative(a: Tensor, b: Tensor, c: Tensor) -> Equation:
    """(A B) C = A (B C)"""
    return (a @ b) @ c == a @ (b @ c)


@rule
def operands_swapped(a: Tensor, b: Tensor) -> Equation:
    """A B = B A"""
    return a @ b == b @ a


@rule(rounding="assumes finite")
def largest_of_nearly_all(x: Tensor, p: Attributes) -> Steps:
    """max(x[:b]) = max(x): false from 64 elements on, where b is no longer the size"""
    yield reduce_max(slice_(x, p), axes=(0,))
    require(x.rank == 1 and p.steps[0] == 1 and p.starts[0] == 0 and p.ends[0] >= x.shape[0] - x.shape[0] // 64, "nearly all")
    yield reduce_max(x, axes=(0,))


@rule(rounding="assumes finite")
def softmax_of_shifted_rows(x: Tensor, shift: Tensor, a: Attributes) -> Equation:
    """softmax(x + shift) = softmax(x)"""
    return softmax(x + shift, a) == softmax(x, a)


def test_a_proof_without_a_proved_case_stops_early() -> None:
    proof = prove(rule_named("conv_transpose_is_overlapping_sum"), Effort(tests=0, applications=0))
    assert proof.verdict == "unknown" and len(proof.obligations) == 8 and "given up after 8 open cases" in proof.reason
    fewer = prove(rule_named("conv_transpose_is_overlapping_sum"), Effort(tests=0, applications=0, open_cases=2))
    assert len(fewer.obligations) == 2


def test_a_true_rule_is_proved_for_all_sizes() -> None:
    proof = prove(matmul_associative, QUICK)
    assert (proof.verdict, proof.failure, proof.obligations) == ("proved", "", ())
    assert proof.scope.startswith("all sizes, ranks 2 to ")
    assert proof.paths > 0 and proof.cases == proof.exact_cases == QUICK.tests
    assert proof.tests == "also tested on 8 shapes, exact in F_p"


def test_a_named_number_of_thousands_of_digits_is_no_example() -> None:
    """Z3 proposes such numbers if powers and bounds differ greatly in size, but Python does not parse them."""
    numbers = [index(RealSymbol(f"c{at}")) for at in range(16)]
    steps = [Compare(small * 10**300, "<", large) for small, large in pairwise((index(1), *numbers))]
    values = small_values(steps, [Symbol("n")])
    assert values is not None and RealSymbol("c0") in values and RealSymbol("c15") not in values


def test_an_open_case_is_looked_at_where_its_inequalities_are_strict() -> None:
    """An open case is examined at strict inequalities because its slice drops nothing at the smallest and at all drawn sizes."""
    proof = prove(largest_of_nearly_all, QUICK)
    assert proof.verdict in ("unknown", "refuted"), proof.scope


@pytest.mark.parametrize("wrong", [operands_swapped, softmax_of_shifted_rows], ids=lambda each: each.name)
def test_a_wrong_rule_has_a_small_counterexample_that_needs_numpy_alone(wrong: Rule) -> None:
    proof = prove(wrong, Effort(tests=60))
    assert proof.verdict == "refuted" and proof.failure == "difference" and proof.counterexample
    assert proof.counterexample.difference.instance.elements <= 8
    text = proof.counterexample.script()
    assert "egraph" not in text and "verify" not in text
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "the sides differ" in done.stderr and "first difference at" in done.stdout
    lines = "\n".join(proof.explanation())
    assert "operand 0 float32" in lines and "first difference at" in lines


def test_a_script_computes_what_the_reference_computes() -> None:
    """Scripts agree with the reference for every operator of every family, on instances that random tests draw."""
    seen: set[str] = set()
    for each in RULES:
        operators = {node.op for instance in islice(draws(each, 3, 40), 1) for node in walk(instance.left)}
        if operators <= seen:
            continue
        seen |= operators
        instance = next(draws(each, 3, 40))
        values = draw_values(instance, 5, "signed")
        scope: dict[str, Any] = {"print": lambda *printed: None}
        text = script(instance.left[0], instance.left[0], values)
        exec(text, scope)
        name = text.split("wrong = ~np.isclose(")[1].split(",")[0]
        with np.errstate(all="ignore"):
            (expected,) = evaluate(instance.left[:1], values)
        assert np.allclose(scope[name], expected, rtol=1e-12, atol=1e-12, equal_nan=True), (each.name, text)
    assert len(seen) > 35


def test_a_guard_that_nothing_passes_is_no_pass() -> None:
    @rule
    def never(x: Tensor) -> Steps:
        """relu(x) = x"""
        yield relu(x)
        require(x.rank > 99, "a hundred axes are needed")
        yield x

    proof = prove(never, QUICK)
    assert (proof.verdict, proof.failure) == ("refuted", "vacuous")
    assert "a hundred axes are needed" in proof.reason


def test_a_right_side_that_is_the_left_side_is_no_pass() -> None:
    @rule
    def same(x: Tensor) -> Equation:
        """relu(x) = relu(x)"""
        return relu(x) == relu(x)

    assert prove(same, QUICK).failure == "same sides"


def test_a_shape_that_passes_the_guard_with_an_ill_typed_right_side_is_no_pass() -> None:
    """For example, conv(x, v) + conv(y, w) = conv([x y], [v w]) needs inputs of equal size, but a stride may hide a difference."""

    @rule(rounding="reassociates")
    def add(x: Tensor, v: Weight) -> Steps:
        """relu(x) + v = relu(x reshaped) + v"""
        yield relu(x) + v
        require(x.rank == 1, "a vector")
        yield relu(x.reshape(2)).reshape(*x.shape) + v

    proof = prove(add, QUICK)
    assert (proof.verdict, proof.failure) == ("refuted", "missing guard")
    assert "a guard is missing" in proof.reason and " of shape (" in proof.reason


def test_a_rule_that_raises_is_no_pass() -> None:
    @rule
    def crashes(x: Tensor) -> Steps:
        """relu(x) = x"""
        yield relu(x)
        yield x.reshape(x.shape[7])

    proof = prove(crashes, QUICK)
    assert (proof.verdict, proof.failure) == ("refuted", "raises") and "IndexError" in proof.reason


def test_a_proof_that_a_random_test_contradicts_refutes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prove_equal", lambda left, right, assumptions: Equal(frozenset()))
    assert prove(operands_swapped, Effort(tests=60)).verdict == "refuted"


def test_an_open_obligation_is_unknown_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prove_equal", lambda left, right, assumptions: Open("no partner for 1 x[i]", assumptions.conditions))
    proof = prove(matmul_associative, Effort(tests=8, applications=0, ranks=(2,)))
    assert proof.verdict == "unknown" and proof.obligations
    assert any("no partner for 1 x[i]" in line for line in proof.explanation())


def test_what_is_open_in_general_may_be_proved_at_its_own_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prove_equal", lambda left, right, assumptions: Open("too hard", ()))
    proof = prove(matmul_associative, replace(QUICK, ranks=(2,)))
    assert proof.verdict == "proved for these sizes" and proof.covers == {"tree": False}
    assert proof.scope == "each application at its own sizes, as 2 of 2 random ones"


def test_applications_are_proved_and_wrong_ones_are_not() -> None:
    square = {"a": TensorType("float32", (2, 2)), "b": TensorType("float32", (2, 2)), "c": TensorType("float32", (2, 3))}
    assert objection(matmul_associative, [Binding(square, {})]) == ""
    assert objection(operands_swapped, [Binding(square, {})]) != ""

    @rule
    def product_with_two(x: Tensor, two: Weight) -> Steps:
        """x * 2 = x + x"""
        yield x * two
        require_number(two, 2.0)
        yield x + x

    types = {"x": TensorType("float32", (2,)), "two": TensorType("float32", ())}
    assert objection(product_with_two, [Binding(types, {}, {"two": 2.0})]) == ""


@pytest.mark.parametrize("name", ["relu_twice", "merge_matmuls", "conv_channels_last", "transpose_twice", "transpose_into_softmax"])
def test_every_kind_of_rule_has_applications_that_are_proved(name: str) -> None:
    each = rule_named(name)
    instances = list(islice(draws(each, 0, 400), 3))
    assert instances and not any(objection(each, instance.bindings) for instance in instances)


# Rounding


def test_a_rule_may_not_state_a_weaker_rounding_than_it_needs() -> None:
    @rule
    def associate(x: Tensor, y: Tensor, z: Tensor) -> Equation:
        """(x y) z = x (y z)"""
        return (x @ y) @ z == x @ (y @ z)

    proof = prove(associate, QUICK)
    assert (proof.verdict, proof.failure) == ("unknown", "rounding")
    assert 'rounding="reassociates"' in proof.reason

    @rule(rounding="reassociates")
    def exponent_of_logarithm(x: Tensor) -> Equation:
        """exp(2 log x) = x x,  x > 0"""
        return exp(log(x) + log(x)) == x * x

    proof = prove(exponent_of_logarithm, Effort(tests=0, applications=0))
    assert proof.failure == "rounding" and 'rounding="assumes finite"' in proof.reason


def test_the_algebra_without_associativity_knows_what_keeps_rounding() -> None:
    def holds(build: Callable[[Tensor, Tensor, Tensor], Equation]) -> set[bool | None]:
        def law(x: Tensor, y: Tensor, z: Tensor) -> Equation:
            return build(x, y, z)

        law.__doc__ = "left = right"
        return {keeps_rounding(instance) for instance in islice(draws(rule(rounding="reassociates")(law), 1, 400), 6)}

    assert holds(lambda x, y, z: (x + y) * z == z * (y + x)) == {True}
    assert holds(lambda x, y, z: (x - y) - z == (-y + x) + (-z)) == {True}
    assert holds(lambda x, y, z: (x + y) + z == x + (y + z)) == {False}
    assert holds(lambda x, y, z: (x * y) * z == x * (y * z)) == {False}
    assert holds(lambda x, y, z: (x + y) * z == x * z + y * z) == {False}


# Scopes


def test_a_match_is_led_through_what_was_proved() -> None:
    tree = tree_of([
        ({"rank of x": 2, "a.axis": 0}, True), ({"rank of x": 2, "a.axis": 1}, True), ({"rank of x": 3, "a.axis": 0}, "open"),
        ({"rank of x": 3, "a.axis": 1}, True),
    ])  # fmt: skip

    def at(shape: tuple[int, ...], axis: int) -> str:
        return outside(tree, matmul_associative, [Binding({"x": TensorType("float32", shape)}, {"a": attributes(axis=axis)})])

    assert at((4, 5), 1) == "" and at((4, 5, 6), 1) == ""
    assert at((4, 5, 6), 0) == "no proof covers rank of x 3, a.axis 0: open"
    assert at((4, 5, 6, 7), 0) == "no proof covers rank of x 4"
    assert "no proof covers" in at((4, 5), 2)


def test_a_case_that_made_no_choice_holds_for_all_that_others_made() -> None:
    tree = tree_of([({"rank of x": 1}, True), ({"rank of x": 1, "c is one number": True}, True)])
    binding = Binding({"x": TensorType("float32", (3,)), "c": TensorType("float32", ())}, {}, {"c": 2.0})
    assert outside(tree, matmul_associative, [binding]) == ""
    open_one = tree_of([({"rank of x": 1}, "open"), ({"rank of x": 1, "c is one number": True}, True)])
    assert "open" in outside(open_one, matmul_associative, [binding])
    assert tree_of([]) is False


def test_choices_are_read_from_matches() -> None:
    types = {"x": TensorType("float32", (2, 3))}
    binding = Binding(types, {"a": attributes(steps=(1, -1), max=float("inf"), strides=(1, 2), shape=(2, 3, 1))}, {"c": 1.0})
    assert answer("rank of x", binding) == 2 and answer("rank of a.shape", binding) == 3
    assert answer("a goes down axis 1", binding) is True and answer("a.max is finite", binding) is False
    assert answer("a.strides[1]", binding) == 2 and answer("c is one number", binding) is True
    with pytest.raises(KeyError):
        answer("something else entirely here", binding)


def test_members_of_a_merge_are_numbered() -> None:
    merge = rule_named("merge_matmuls")
    assert isinstance(merge, MergeRule)
    tree = tree_of([({"members": 2, "rank of x": 2, "rank of w1": 2, "rank of w2": 2}, True)])
    member = Binding({"x": TensorType("float32", (2, 3)), "w": TensorType("float32", (3, 4))}, {})
    assert outside(tree, merge, [member, member]) == ""
    assert outside(tree, merge, [member] * 3) == "no proof covers members 3"


# Suggestions


def test_the_guard_that_is_missing_is_suggested() -> None:
    assert "shift.shape[a.axis] == 1" in suggestion(softmax_of_shifted_rows)


def test_guards_are_made_of_the_rule_s_own_variables() -> None:
    @rule
    def law(x: Tensor, w: Weight, a: Attributes) -> Equation:
        """relu(conv(x, w)) = conv(relu(x), w)"""
        return relu(conv(x, w, a)) == conv(relu(x), w, a)

    guards = candidates(law)
    assert {"a.group == 1", "all(s == 1 for s in a.strides)", "all(k % 2 == 1 for k in w.shape[2:])", "w.type.elements == 1"} <= set(guards)


def test_no_guard_is_suggested_where_none_of_the_usual_ones_helps() -> None:
    @rule
    def wrong(x: Tensor, y: Tensor) -> Equation:
        """x - y = y - x"""
        return x - y == y - x

    assert suggestion(wrong) == ""


def test_the_smallest_counterexample_is_deterministic() -> None:
    first = check_rule(operands_swapped, cases=60).differences[0]
    assert smallest(operands_swapped, first).script() == smallest(operands_swapped, first).script()


def test_a_transpose_is_proved_for_every_permutation() -> None:
    @rule
    def there_and_back(x: Tensor, p: Attributes) -> Steps:
        """transpose(transpose(relu(x))) = relu(x)"""
        yield relu(transpose(x, p))
        yield transpose(relu(x), p)

    proof = prove(there_and_back, QUICK)
    assert proof.verdict == "proved" and proof.paths > 30


def test_a_rank_of_too_many_cases_is_left_to_single_applications() -> None:
    """Twelve cases per axis are 144 for two axes; five are 25 for two axes and 125 for three."""

    def last_rank(different: int, ways: int = 2) -> int:
        growth = Growth()
        for rank in (3, 4, 5):
            if not growth.goes_on({"rank of x": rank, "layout": 0}):
                return rank - 1
            for number in range(different ** (rank - 2) * ways):
                growth.count({"rank of x": rank, "layout": number % ways}, new=True)
        return 5

    assert [last_rank(each) for each in (1, 4, 5, 10, 12)] == [5, 5, 4, 4, 3]
    assert Growth().goes_on({}) and Growth().goes_on({"members": 2})


def test_ranks_that_were_completed_are_covered_where_a_higher_one_is_left_out() -> None:
    proof = prove(rule_named("conv_transpose_is_conv_of_phases"), Effort(tests=4, tries=400))
    assert proof.verdict == "proved" and proof.scope == "all sizes, rank 3" and proof.paths == 24
    assert proof.covers is not None and [group for group, _ in proof.covers["tree"]["rank of x"]] == [[3]]
