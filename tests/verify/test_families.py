"""A proof for any function in an operator's place covers the rules that differ only in that operator, and no others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, Weight, require, require_number
from egraph.rule_operators import binary, pad, reduce_sum, relu, slice_, transpose, unary
from egraph.rules import RULES, rule_named
from egraph.rules.family import BINARY, named
from egraph.tensor.expr.index import index
from egraph.tensor.expr.scope import Apply, IndexNumber, Scope
from egraph.tensor.ops import OPS
from verify import prove as proving
from verify.certificates import Certificate
from verify.families import Family, _is_pointwise, families, family_of
from verify.fingerprint import closure
from verify.prove import Effort, prove

QUICK = Effort(tests=16, tries=800, ranks=(0, 1, 2), applications=2)
ANY = "as for any function in place of"
Made = Callable[[str], Rule]


@pytest.fixture(autouse=True)
def nothing_is_proved_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proving, "_SHARED", {})


def family(op: str, law: Callable[..., Equation | Steps], rounding: str = "exact") -> Rule:
    return replace(named(law, f"some_law_of_{op.lower()}", f"a law of {op}"), rounding=rounding)  # type: ignore[arg-type]  # it is one


def transposed(op: str) -> Rule:
    def law(x: Tensor, y: Tensor, p: Attributes) -> Equation:
        return binary(op, transpose(x, p), transpose(y, p)) == transpose(binary(op, x, y), p)

    return family(op, law)


def turned(op: str) -> Rule:
    """Exchange the operands: true if f is commutative."""

    def law(x: Tensor, y: Tensor, p: Attributes) -> Steps:
        yield binary(op, transpose(x, p), transpose(y, p))
        yield transpose(binary(op, y, x), p)

    return family(op, law)


def padded(op: str) -> Rule:
    """True if f(0, 0) is 0: 0 / 0 is not, 0 ** 0 is 1."""

    def law(x: Tensor, y: Tensor, a: Attributes) -> Steps:
        yield pad(binary(op, x, y), a)
        require(a.mode == "constant" and x.shape == y.shape, "a border of one number")
        require(a.value == 0.0, "a border of zeros")
        yield binary(op, pad(x, a), pad(y, a))

    return family(op, law)


def cut_beside_a_zero(op: str) -> Rule:
    """True if 0 is neutral."""

    def law(x: Tensor, zero: Weight, a: Attributes) -> Steps:
        yield slice_(binary(op, x, zero), a)
        require_number(zero, 0.0)
        require(zero.rank <= x.rank, "it must not add axes")
        require(zero.type.elements == 1, "one number")
        yield slice_(x, a)

    return family(op, law, "reassociates")


def of_sums(op: str) -> Rule:
    """True if f is linear in both operands together."""

    def law(x: Tensor, y: Tensor, a: Attributes) -> Steps:
        yield reduce_sum(binary(op, x, y), a)
        require(x.shape == y.shape, "nothing is repeated")
        yield binary(op, reduce_sum(x, a), reduce_sum(y, a))

    return family(op, law, "reassociates")


def is_addition(op: str) -> Rule:
    """True of addition only, because the right side names it."""

    def law(x: Tensor, y: Tensor, p: Attributes) -> Steps:
        yield binary(op, transpose(x, p), transpose(y, p))
        yield transpose(x + y, p)

    return family(op, law)


def chosen_by_name(op: str) -> Rule:
    """The rule's function branches on the operator's name."""

    def law(x: Tensor, y: Tensor, p: Attributes) -> Steps:
        yield binary(op, transpose(x, p), transpose(y, p))
        yield transpose(binary(op, x, y) if op == "Add" else binary(op, y, x), p)

    return family(op, law)


def chosen_in_a_helper(op: str) -> Rule:
    """The rule passes the operator's name to a helper, which branches on it."""

    def twisted(name: str, x: Tensor, y: Tensor) -> Tensor:
        return binary(name, x, y) if name != "Sub" else binary(name, y, x)

    def law(x: Tensor, y: Tensor, p: Attributes) -> Steps:
        yield binary(op, transpose(x, p), transpose(y, p))
        yield transpose(twisted(op, x, y), p)

    return family(op, law)


def chosen_by_default(op: str) -> Rule:
    """The operator's name is the default value of a helper's parameter."""

    def twisted(x: Tensor, y: Tensor, name: str = op) -> Tensor:
        return binary(name, x, y) if name != "Sub" else binary(name, y, x)

    def law(x: Tensor, y: Tensor, p: Attributes) -> Steps:
        yield binary(op, transpose(x, p), transpose(y, p))
        yield transpose(twisted(x, y), p)

    return family(op, law)


def test_rules_that_differ_in_an_operator_are_proved_by_one_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    members = [transposed(op) for op in ("Sub", "Div", "Max")]
    assert [len(group) for group in families(members)] == [3]
    attempts: list[str] = []
    attempt = proving._attempt

    def counted(rule: Rule, *others: Any) -> Any:
        attempts.append(rule.name)
        return attempt(rule, *others)

    monkeypatch.setattr(proving, "_attempt", counted)
    proofs = [prove(rule, QUICK) for rule in members]
    assert attempts == ["some_law_of_sub"]
    assert [proof.scope.split(", ")[-1] for proof in proofs] == [f"{ANY} {op}" for op in ("Sub", "Div", "Max")]
    monkeypatch.setattr(proving, "_shared", lambda rule, effort: None)
    for rule, proof in zip(members, proofs, strict=True):
        alone = prove(rule, QUICK)
        assert alone.verdict == proof.verdict == "proved"
        assert (alone.covers, alone.paths, alone.facts, alone.cases) == (proof.covers, proof.paths, proof.facts, proof.cases)
        assert proof.scope == f"{alone.scope}, {proof.scope.split(', ')[-1]}"


@pytest.mark.parametrize(
    ("made", "true", "false"),
    [(turned, "Add", "Sub"), (padded, "Add", "Div"), (padded, "Mul", "Pow"), (cut_beside_a_zero, "Add", "Mul"), (of_sums, "Add", "Mul"),
     (is_addition, "Add", "Mul"), (chosen_by_name, "Add", "Div"), (chosen_in_a_helper, "Add", "Sub"), (chosen_by_default, "Div", "Sub")],
)  # fmt: skip
def test_what_holds_of_one_operator_is_not_said_of_another(made: Made, true: str, false: str) -> None:
    proof = prove(made(true), QUICK)
    assert proof.verdict == "proved" and ANY not in proof.scope, proof
    wrong = prove(made(false), QUICK)
    assert not wrong.is_proved and ANY not in wrong.scope, wrong
    alone = prove(made(true), replace(QUICK, tests=0))
    assert ANY not in alone.scope


@pytest.mark.parametrize("made", [chosen_by_name, chosen_in_a_helper, chosen_by_default])
def test_a_rule_that_looks_at_the_name_has_no_family(made: Made) -> None:
    assert all(family_of(made(op)) is None for op in BINARY)


def test_what_else_computes_is_proved_of_each_operator() -> None:
    """A rule with a further operator is proved for each operator, because the further one determines rounding, infinities and NaN."""

    def made(op: str) -> Rule:
        def law(x: Tensor, y: Tensor, p: Attributes) -> Equation:
            return relu(binary(op, transpose(x, p), transpose(y, p))) == transpose(relu(binary(op, x, y)), p)

        return family(op, law)

    assert family_of(made("Mul")) is not None
    proof = prove(made("Mul"), QUICK)
    assert proof.verdict == "proved" and ANY not in proof.scope


@pytest.mark.parametrize("op", ["Less", "And", "Softmax", "LeakyRelu", "Quantize", "Where", "Concat"])
def test_operators_of_other_types_or_with_attributes_or_axes_have_none(op: str) -> None:
    assert not _is_pointwise(op)


def test_an_operand_that_broadcasts_otherwise_is_another_family() -> None:
    def made(op: str) -> Family | None:
        return family_of(transposed(op))

    sub, div, prelu = made("Sub"), made("Div"), made("PRelu")
    assert sub is not None and div is not None and prelu is not None
    assert sub.key == div.key != prelu.key


def by_its_place(scope: Scope) -> Scope:
    return scope.with_body(Apply("mul", (scope.body, IndexNumber(index(scope.traversal[-1]) + 1)))) if scope.traversal else scope


def by_its_extent(scope: Scope) -> Scope:
    return scope.with_body(Apply("mul", (scope.body, IndexNumber(index(scope.traversal[0].high))))) if scope.traversal else scope


@pytest.mark.parametrize("change", [by_its_place, by_its_extent])
def test_an_operator_that_knows_where_an_element_stands_is_not_pointwise(
    change: Callable[[Scope], Scope], monkeypatch: pytest.MonkeyPatch
) -> None:
    sub = OPS["Sub"]
    wrong = replace(sub, meaning=lambda operands, values: change(sub.meaning(operands, values)))
    monkeypatch.setattr("verify.families.OPS", {**OPS, "Sub": wrong})
    assert not _is_pointwise.__wrapped__("Sub") and _is_pointwise.__wrapped__("Add")


def test_every_operator_that_a_shipped_family_has_is_pointwise() -> None:
    members = [rule for rule in RULES if rule.name.startswith(("slice_into_", "expand_into_", "transpose_into_"))]
    shared = [group for group in families(members) if len(group) > 1]
    assert sorted(map(len, shared)) == [4, 4, 7, 7]


def test_a_certificate_says_that_it_is_a_family_s_and_hangs_on_what_decides_that() -> None:
    assert "verify.families" in closure(frozenset({"verify.prove"}))
    rule = rule_named("transpose_into_div")
    assert family_of(rule) is not None
    assert Certificate.of(prove(rule, QUICK), "").scope.endswith(f"{ANY} Div")


def test_a_unary_operator_stands_for_any_function_of_one_element() -> None:
    def law(x: Tensor, p: Attributes) -> Equation:
        return unary("Exp", transpose(x, p)) == transpose(unary("Exp", x), p)

    assert family_of(named(law, "exponential", "names its operator")) is None  # its text names the operator, so it belongs to no family
    assert f"{ANY} Exp" in prove(rule_named("transpose_out_of_exp"), QUICK).scope
