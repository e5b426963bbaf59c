"""The symbolic cases of a rule cover what its left side admits, and state what they omit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest

from egraph.rule import Attributes, Binding, Equation, MergeRule, Rule, Steps, Tensor, Weight, require, require_number, rule
from egraph.rule_operators import clip, concat, conv, dequantize, leaky_relu, max_pool, relu, reshape, slice_, transpose
from egraph.rules import RULES, rule_named
from egraph.tensor import TensorType
from egraph.tensor.expr.scope import Scope
from verify import cases as case_stages
from verify.bindings import Fixed
from verify.cases import FLOAT32, Case, Survey, cases, tells_bytes_apart
from verify.certificates import shipped
from verify.equality import Equal, prove_equal
from verify.fragments import Workshop
from verify.isomorphism import Names
from verify.paths import LeftOut, Path
from verify.prove import Effort, prove
from verify.scope import outside


@rule
def associate(a: Tensor, b: Tensor, c: Tensor) -> Equation:
    """(A B) C = A (B C)"""
    return (a @ b) @ c == a @ (b @ c)


@rule
def distribute(x: Tensor, y: Tensor, s: Tensor) -> Equation:
    """(x + y) * s = x * s + y * s"""
    return (x + y) * s == x * s + y * s


@rule
def unguarded_concat(x: Tensor, y: Tensor, w: Weight, a: Attributes) -> Steps:
    """conv(x, w) + conv(y, w) = conv(concat(x, y), w) on the batch: ill-typed where strides leave out a border"""
    yield conv(x, w, a) + conv(y, w, a)
    yield conv(concat(x, y, axis=0), w, a)


@rule
def half(x: Tensor, two: Weight) -> Steps:
    """x / 2 = x * 0.5, were it so"""
    yield x / two
    require_number(two, 2.0)
    yield x * two


@rule
def last_of_nothing(x: Tensor, a: Attributes) -> Steps:
    """A rule whose code fails on scalars."""
    yield reshape(x, a)
    require(x.shape[0] == 1, "the first axis must be one")
    yield reshape(x, a)


def proved(case: Case) -> bool:
    return all(isinstance(prove_equal(left, right, case.assumptions), Equal) for left, right in zip(case.left, case.right, strict=True))


def single(name: str) -> Rule:
    shipped = rule_named(name)
    assert isinstance(shipped, Rule)
    return shipped


def all_cases(each: Rule) -> tuple[list[Case], Survey]:
    survey = Survey()
    return list(cases(each, survey=survey)), survey


def test_a_pointwise_rule_is_one_case_for_all_ranks() -> None:
    symbolic, survey = all_cases(distribute)
    assert survey.pointwise
    assert [case.ranks for case in symbolic] == [None]
    assert proved(symbolic[0])


def test_a_rule_that_looks_at_shapes_is_run_rank_by_rank() -> None:
    symbolic, survey = all_cases(single("number_into_matmul_left"))
    assert not survey.pointwise
    assert {case.ranks["c"] for case in symbolic if case.ranks} == {0, 1, 2, 3, 4}
    assert all(case.assumptions.equal(size, 1) for case in symbolic for size in case.shapes["c"])


def test_matmul_associativity_for_all_sizes() -> None:
    symbolic, _ = all_cases(associate)
    assert {tuple(case.ranks.values()) for case in symbolic if case.ranks} >= {(2, 2, 2), (3, 3, 3), (3, 2, 3)}
    assert proved(next(case for case in symbolic if case.ranks == {"a": 2, "b": 2, "c": 2}))


@pytest.mark.parametrize("name", ["scale_into_conv", "add_convs_of_one_weight", "pad_into_conv"])
def test_convolution_rules_are_cases_for_every_rank_and_layout(name: str) -> None:
    symbolic, _ = all_cases(single(name))
    assert {(case.ranks["x"], case.choices["a.layout"]) for case in symbolic if case.ranks} == {
        (rank, layout) for rank in (3, 4, 5) for layout in ("NCHW", "NHWC")
    }
    assert not any(case.ill_typed or case.failure or case.left_out for case in symbolic)
    assert proved(symbolic[0])


def test_a_missing_guard_is_a_case_with_an_instance() -> None:
    symbolic, _ = all_cases(unguarded_concat)
    assert any("differs from operand 0" in case.ill_typed for case in symbolic)


def test_a_number_that_the_guard_asks_for_is_fixed_and_noted() -> None:
    symbolic, _ = all_cases(half)
    assert len(symbolic) == 1
    assert FLOAT32 in symbolic[0].scope_note
    assert not proved(symbolic[0])


def test_errors_of_the_rule_itself_are_told() -> None:
    symbolic, _ = all_cases(last_of_nothing)
    assert any(case.failure.startswith("IndexError") for case in symbolic)


def test_merge_rules_are_proved_for_two_and_three_members() -> None:
    symbolic = list(cases(rule_named("merge_matmuls")))
    assert {(len(case.left), case.choices["members"]) for case in symbolic} == {(2, 2), (3, 3)}
    assert all(isinstance(side, Scope) for case in symbolic for side in (*case.left, *case.right))
    assert proved(symbolic[0])


def test_attributes_may_be_enumerated_over_small_sets() -> None:
    symbolic = list(cases(rule_named("max_pool_of_one"), Fixed(ranks=(3,), sets={"kernel_shape": (1, 2), "dilations": (1,)})))
    assert {case.choices["a.kernel_shape[0]"] for case in symbolic} == {1}
    assert {rank for case in symbolic for rank in (case.ranks or {}).values()} == {3, 4, 5}


def test_limits_may_be_open() -> None:
    @rule
    def relu_of(x: Tensor, a: Attributes) -> Equation:
        """relu(clip(x)) = relu(clip(x))"""
        return relu(clip(x, a)) == relu(clip(x, a))

    symbolic, _ = all_cases(relu_of)
    ends = {(case.choices["a.max is finite"], case.choices.get("a.min is finite")) for case in symbolic}
    assert ends == {(True, True), (True, False), (False, None)}
    assert all(case.same for case in symbolic)


def test_permutations_and_slices_are_covered_in_all_directions() -> None:
    @rule
    def law(x: Tensor, p: Attributes, a: Attributes) -> Equation:
        """slice(transpose(x)) = slice(transpose(x))"""
        return slice_(transpose(x, p), a) == slice_(transpose(x, p), a)

    def directions(rule: Rule) -> set[tuple[object, ...]]:
        choices = [case.choices for case in all_cases(rule)[0] if case.ranks == {"x": 2}]
        return {(each["p.perm"], each.get("a goes down axis 0"), each.get("a goes down axis 1")) for each in choices}

    assert directions(law) == {((0, 1), None, None), ((1, 0), None, None)}

    @rule
    def asking(x: Tensor, p: Attributes, a: Attributes) -> Steps:
        """slice(transpose(x)) = slice(transpose(x)), where a direction is asked for"""
        yield slice_(transpose(x, p), a)
        require(a.steps[1] > 0 or a.starts[0] >= 0, "this holds of all")
        yield slice_(transpose(x, p), a)

    assert directions(asking) == {(perm, None, down) for perm in ((0, 1), (1, 0)) for down in (True, False)}


def test_what_pools_refuse_is_demanded_of_the_right_side() -> None:
    @rule
    def wider(x: Tensor, a: Attributes) -> Steps:
        """max_pool(x) with one more padding, whatever the window"""
        yield max_pool(x, a)
        yield max_pool(x, a.but(pads=tuple(p + 1 for p in a.pads)))

    symbolic, _ = all_cases(wider)
    assert any("must be smaller than the window" in case.ill_typed for case in symbolic)


def test_which_operand_is_repeated_is_no_case_where_nothing_asks() -> None:
    symbolic = list(cases(rule_named("scale_into_layer_normalization"), ranks=(0, 1, 2)))
    assert len(symbolic) == len({tuple(case.choices.items()) for case in symbolic}) > 40


def test_the_sign_of_a_step_is_open_where_nothing_asks() -> None:
    symbolic = list(cases(rule_named("slice_into_relu"), ranks=(1, 2)))
    assert [case.choices for case in symbolic] == [{"rank of x": 1}, {"rank of x": 2}]
    assert all(isinstance(prove_equal(case.left[0], case.right[0], case.assumptions), Equal) for case in symbolic)
    assert all(case.assumptions.consistent() and not case.left_out for case in symbolic)


def test_a_step_of_zero_is_no_step() -> None:
    @rule
    def law(x: Tensor, a: Attributes) -> Steps:
        """slice(x) = slice(x), of which no step is zero"""
        yield slice_(x, a)
        require(a.steps[0] == 0, "no step is zero")
        yield x

    assert not list(cases(law, ranks=(1,)))


STAGED = ("concat_of_add_2", "reshape_twice", "add_into_concat_2", "scale_into_conv", "neutral_in_mul", "slice_of_concat_2",
          "merge_matmuls")  # fmt: skip
"""Rules whose cases do not depend on how early a fork is known; if broadcasts stay open, runs from the start split fewer."""


GUARDS = {
    "one size": lambda x, y, a: x.shape[-1] == 1,
    "not one size": lambda x, y, a: not (x.shape[-1] == 1),  # noqa: SIM201
    "another size": lambda x, y, a: x.shape[-1] != y.shape[-1],
    "whole shapes": lambda x, y, a: x.shape == y.shape,
    "other shapes": lambda x, y, a: x.shape != y.shape,
    "no equal shapes": lambda x, y, a: not (x.shape == y.shape),  # noqa: SIM201
    "both": lambda x, y, a: x.shape[-1] == 1 and y.shape[-1] < 5,
    "not both": lambda x, y, a: not (x.shape[-1] == 1 and y.shape[-1] < 5),
    "either": lambda x, y, a: x.shape[-1] == 1 or y.shape[-1] < 5,
    "neither": lambda x, y, a: not (x.shape[-1] == 1 or y.shape[-1] < 5),
    "in order": lambda x, y, a: 1 < x.shape[-1] <= y.shape[-1] < 7,
    "not in order": lambda x, y, a: not 1 < x.shape[-1] <= y.shape[-1],
    "every size": lambda x, y, a: all(size == 1 for size in x.shape),
    "not every size": lambda x, y, a: not all(size == 1 for size in x.shape),
    "some size": lambda x, y, a: any(size == 1 for size in x.shape),
    "no size": lambda x, y, a: not any(size == 1 for size in x.shape),
    "every size of some": lambda x, y, a: all(size == 1 for i, size in enumerate(x.shape) if i > 0 or size != y.shape[-1]),
    "a choice": lambda x, y, a: (x.shape[-1] == 1) if y.shape[-1] > 2 else (x.shape[-1] == 2 or y.shape[-1] == 1),
    "a number": lambda x, y, a: a.alpha >= 0 and (a.alpha != 1 or x.shape[-1] == 1),
    "a truth": lambda x, y, a: x.shape[-1] - 1,
}
"""Forms of conditions; those that are split into parts when a guard requires them have fewer refusals."""
ALTERNATIVES = tuple(GUARDS[name] for name in ("other shapes", "no equal shapes", "not in order", "not every size", "some size"))
"""Conditions that hold in several ways, each of which is explored."""


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
def test_what_a_guard_requires_leaves_the_cases_that_following_its_refusals_leaves(
    guard: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requiring a guard and exploring its refusals yield the same cases, with the same assumptions and sides."""

    @rule
    def guarded(x: Tensor, y: Tensor, a: Attributes) -> Steps:
        """leaky_relu(x) + y = y + leaky_relu(x),  where the guard holds"""
        yield leaky_relu(x, a) + y
        require(guard(x, y, a), "the guard holds")
        yield y + leaky_relu(x, a)

    def seen(survey: Survey) -> list[tuple[object, ...]]:
        every = cases(guarded, Fixed(ranks=(1, 2)), survey)
        return [(c.scope_note, c.assumptions.conditions, str(c.left), str(c.right), c.left_out, c.ill_typed) for c in every]

    demanding, following = Survey(), Survey()
    demanded = seen(demanding)
    ask = Path.ask
    monkeypatch.setattr(Path, "ask", lambda path, condition, required=None: ask(path, condition))
    assert demanded == seen(following)
    assert demanded
    assert demanding.refused.total() <= following.refused.total() - (guard not in ALTERNATIVES)


@rule
def factors_change_places(x: Tensor, c: Weight, d: Weight) -> Steps:
    """(x * c) * d = (x * d) * c,  where the first is a number if the second is"""
    yield (x * c) * d
    require(d.number is None or c.number is not None, "the first must be a number if the second is")
    yield (x * d) * c


@pytest.mark.parametrize("rule", [*map(rule_named, STAGED), factors_change_places], ids=lambda each: each.name)
def test_a_run_in_stages_has_the_cases_of_runs_from_the_start(rule: Rule | MergeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that resumes at a fork finds the same cases as one that runs again from the start."""
    fixed = Fixed(ranks=(0, 1, 2) if rule.name in STAGED else (0, 1), windowed=(3,))

    names = Names()

    def every_case() -> Sequence[object]:
        return sorted((names.of(case.assumptions.conditions, case.left, case.right), repr(sorted(case.choices.items())), case.same,
                       case.left_out, case.ill_typed) for case in cases(rule, fixed))  # fmt: skip

    staged = every_case()
    stages = case_stages._stages(rule)

    def from_the_start(run: case_stages._Run) -> Case | None:
        run.binder.path.conclusion = False
        return next((result for stage in stages if (result := stage(run)) is not None), None)

    monkeypatch.setattr(case_stages, "_stages", lambda _: [from_the_start])
    assert len(staged) > 1 and staged == every_case()


@rule
def of_matrices(x: Tensor, y: Tensor, z: Tensor) -> Steps:
    """(x + y) * z = x * z + y * z,  matrices: the guard asks for one operand after the other"""
    yield (x + y) * z
    require(x.rank == 2 and y.rank == 2 and z.rank == 2, "matrices are asked for")
    yield x * z + y * z


@rule
def asked_before_the_rank(x: Tensor, y: Tensor, c: Weight) -> Steps:
    """(x + y) * c = x * c + y * c: a question that has two answers stands before a refusal, and the refusal is of one of them alone"""
    yield (x + y) * c
    if x.rank == 0 or x.shape[0] != 1:
        require(x.rank == 1 and c.number is not None, "a vector and a number")
    yield x * c + y * c


AHEAD = (
    of_matrices, asked_before_the_rank,
    *map(rule_named, ("merge_matmuls", "matmul_of_transposed_dequantized", "layer_normalization_from_power")),
)  # fmt: skip


@pytest.mark.parametrize("each", AHEAD, ids=lambda each: each.name)
def test_what_is_refused_by_the_first_operands_was_no_case(each: Rule | MergeRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running the rule's function before all operands are chosen ends refused paths early, and leaves the remaining cases unchanged."""

    def told() -> tuple[list[str], int]:
        survey = Survey()
        made = cases(each, survey=survey, ranks=(0, 1, 2))
        return [f"{case.scope_note}; {case.assumptions.conditions}; {case.left_out}" for case in made], survey.refused.total()

    shortened, fewer = told()
    monkeypatch.setattr(case_stages, "_refused_ahead", lambda _: None)
    whole, refused = told()
    assert shortened == whole
    if each is of_matrices:
        assert fewer < refused / 2


def test_a_refusal_counts_ahead_where_nothing_was_chosen_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal that depends on one of two possible answers does not end the path."""
    reasons: list[str | None] = []
    ahead = case_stages._refused_ahead

    def noted(run: Any) -> str | None:
        reasons.append(ahead(run))
        return reasons[-1]

    monkeypatch.setattr(case_stages, "_refused_ahead", noted)
    assert any(case.ranks and case.ranks["x"] == 2 for case in cases(asked_before_the_rank, ranks=(0, 1, 2)))
    assert any(reasons)


@rule
def relu_of_bytes(x: Tensor, s: Weight, z: Weight) -> Steps:
    """relu(dequantize(x, s, 0)) = dequantize(x, s, 0): true of uint8 alone"""
    yield relu(dequantize(x, s, z))
    require(s.number is not None and s.number > 0, "the scale must be positive")
    require_number(z, 0.0)
    yield dequantize(x, s, z)


def test_bytes_of_both_kinds_are_one_case_unless_a_rule_tells_them_apart() -> None:
    of_bytes = [each for each in RULES if any(text.startswith("type of ") for text in str(shipped().by_name[each.name].covers).split("'"))]
    apart = {str(each.name) for each in of_bytes if tells_bytes_apart(each)}
    assert {"quantize_relu", "requantized_to_int8", "concat_before_quantize"} <= apart
    assert len(of_bytes) > len(apart) + 10 and not any("of_dequantized" in name for name in apart)
    first = next(each for each in cases(rule_named("matmul_of_two_dequantized")) if each.left)
    assert [choices["type of x"] for choices in first.all_choices] == ["int8", "uint8"]
    assert len(next(each for each in cases(rule_named("quantize_relu")) if each.left).all_choices) == 1


def test_a_rule_about_bytes_covers_both_kinds_and_no_other_type() -> None:
    certificate = shipped().by_name["matmul_of_two_dequantized"]
    assert certificate.covers is not None
    scalar = TensorType("float32", ())
    for kinds in product(("int8", "uint8", "int32"), repeat=2):
        types = {"s": scalar, "t": scalar}
        for names, kind in (("xz", kinds[0]), ("wy", kinds[1])):
            types |= {names[0]: TensorType(kind, (4, 4)), names[1]: TensorType(kind, ())}
        reason = outside(certificate.covers["tree"], rule_named("matmul_of_two_dequantized"), (Binding(types, {}),))
        assert bool(reason) == ("int32" in kinds), (kinds, reason)


def test_operands_of_bytes_have_types_of_their_own() -> None:
    drawn = [each for case in cases(rule_named("matmul_of_two_dequantized"), ranks=(2,)) if case.left for each in case.all_choices]
    assert {(each["type of x"], each["type of w"]) for each in drawn} == set(product(("int8", "uint8"), repeat=2))
    proof = prove(rule_named("reshape_out_of_dequantize"), Effort(tests=0, ranks=(0, 1)))
    assert proof.covers is not None and "'int8'" in str(proof.covers) and "'uint8'" in str(proof.covers)


@rule
def dequantized_of_a_read_type(x: Tensor, s: Weight, z: Weight) -> Steps:
    """dequantize(x, s, z) of bytes"""
    yield dequantize(x, s, z)
    require(x.type.dtype != "int32", "bytes are dequantized")
    yield dequantize(x, s, z)


def test_a_rule_that_reads_types_tells_bytes_apart() -> None:
    assert tells_bytes_apart(dequantized_of_a_read_type)


def test_what_holds_for_one_kind_of_bytes_is_not_proved_for_both() -> None:
    assert not tells_bytes_apart(relu_of_bytes)
    assert not prove(relu_of_bytes, Effort(tests=0)).is_proved


def test_an_operator_that_saturates_is_not_reached_unseen() -> None:
    path = Path()
    workshop = Workshop(path, tells_bytes_apart=False)
    with pytest.raises(LeftOut, match="Saturate"):
        workshop.apply("Saturate", [workshop.leaf("x", "float32", ())], (("to", "uint8"),))
