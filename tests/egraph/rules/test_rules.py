"""Every rule is tested on random shapes and data; unsound rules are caught, among them well-known wrong rewrites."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from egraph.errors import RuleError
from egraph.rewrite.file import load_rules
from egraph.rewrite.refusals import WrongNumber
from egraph.rule import (
    Attributes,
    Binding,
    Equation,
    MergeRule,
    Mismatch,
    Rule,
    Steps,
    Tensor,
    Weight,
    merge_rule,
    require,
    require_number,
    rule,
)
from egraph.rule_operators import concat, conv, max_pool, pad, reduce_mean, reduce_sum, relu, reshape, slice_, transpose
from egraph.rules import FAMILIES, RULES, rule_named
from egraph.rules.__main__ import document
from egraph.rules.axes import blocks
from egraph.rules.merges import split
from egraph.tensor import TensorType
from tests.support.paths import ROOT
from verify.random_testing import check_rule as check

CASES = 6


@pytest.mark.parametrize("each", RULES, ids=lambda each: each.name)
def test_both_sides_are_equal(each: Rule | MergeRule) -> None:
    """Both sides agree on every draw, and the guard accepts enough draws for a verdict."""
    result = check(each, seed=1, cases=CASES, tries=6000)
    assert result.passed, str(result)
    assert result.cases == CASES, str(result)


def test_families_are_complete() -> None:
    assert sum(len(rules) for rules in FAMILIES.values()) == len(RULES) == len({each.name for each in RULES})


def test_every_rule_states_its_equation() -> None:
    for each in RULES:
        assert " = " in each.text.splitlines()[0], each.name
        assert each.verdict == "tested only", each.name


def test_rational_rules_are_tested_exactly() -> None:
    for name in ("matmul_weights_associate", "scale_into_conv", "add_convs", "concat_of_convs_2", "transpose_twice", "halve_groups"):
        assert check(rule_named(name), cases=12).exact_cases > 0, name


def test_tests_are_deterministic() -> None:
    one = rule_named("reshape_of_transpose")
    assert str(check(one, seed=5)) == str(check(one, seed=5))
    assert check(one, seed=5).refused == check(one, seed=5).refused


def test_the_table_in_the_documentation_is_up_to_date() -> None:
    text = (ROOT / "docs" / "rules.md").read_text()
    assert text == document(), "run: python -m egraph.rules > docs/rules.md"


def test_an_unknown_name_is_answered_with_close_ones() -> None:
    with pytest.raises(RuleError, match="relu_twice"):
        rule_named("relu_twise")


def test_a_guard_says_why_it_refuses() -> None:
    law = rule_named("add_convs")
    assert isinstance(law, Rule)
    image, kernel = TensorType("float32", (1, 2, 5, 5)), TensorType("float32", (2, 1, 3, 3))
    attributes = (("dilations", (1, 1)), ("group", 2), ("layout", "NCHW"), ("pads", (1, 1, 1, 1)), ("strides", (1, 1)))
    with pytest.raises(Mismatch, match="grouped filters would cross"):
        law.apply(Binding({"x": image, "y": image, "v": kernel, "w": kernel}, {"a": attributes}))


def test_a_number_is_asked_for_by_value() -> None:
    law = rule_named("neutral_in_mul")
    assert isinstance(law, Rule)
    types = {"x": TensorType("float32", (2, 3)), "c": TensorType("float32", ())}
    left, right = law.apply(Binding(types, {}, {"c": 1.0}))
    assert left.op == "Mul"
    assert right.op == "Placeholder"
    for numbers in ({"c": 2.0}, {}):
        with pytest.raises(WrongNumber):
            law.apply(Binding(types, {}, numbers))


def test_a_neutral_element_that_widens_is_refused() -> None:
    law = rule_named("neutral_in_add")
    assert isinstance(law, Rule)
    with pytest.raises(Mismatch, match="types"):
        law.apply(Binding({"x": TensorType("float32", (1, 3)), "c": TensorType("float32", (2, 3))}, {}, {"c": 0.0}))


def test_a_merge_takes_any_number_of_members_and_widths() -> None:
    law = rule_named("merge_matmuls")
    assert isinstance(law, MergeRule)
    x = TensorType("float32", (5, 4))
    members = [Binding({"x": x, "w": TensorType("float32", (4, n))}, {}) for n in (1, 3, 2, 7, 6)]
    lefts, rights = law.apply(members)
    assert [node.type.sizes for node in lefts] == [node.type.sizes for node in rights] == [(5, 1), (5, 3), (5, 2), (5, 7), (5, 6)]
    assert len({node.inputs[0] for node in rights}) == 1


def test_blocks_of_a_reshape() -> None:
    assert blocks((2, 3, 4), (6, 4)) == [([0, 1], [0]), ([2], [1])]
    assert blocks((6, 4), (2, 3, 2, 2)) == [([0], [0, 1]), ([1], [2, 3])]
    assert blocks((1, 4), (4, 1)) == [([0, 1], [0, 1])]


# Wrong rewrites. Each holds for some shapes or data; every one must be refuted.


def _wrong(name: str, function: Callable[..., Any]) -> Rule:
    function.__name__ = name
    function.__doc__ = f"{name} = wrong"
    return rule(rounding="reassociates")(function)


def operands_swapped(x: Tensor, y: Tensor) -> Equation:
    return x @ y == y @ x


def relu_of_reflection(x: Tensor, one: Weight) -> Steps:
    yield relu(x - one)
    require_number(one, 1.0)
    yield relu(-x)


def relu_is_additive(x: Tensor, y: Tensor) -> Equation:
    return relu(x + y) == relu(x) + relu(y)


def relu_pulls_out_a_number(x: Tensor, c: Weight) -> Equation:
    return relu(x * c) == relu(x) * c


def concat_of_any_convs(x: Tensor, y: Tensor, v: Weight, w: Weight, a: Attributes) -> Steps:
    yield concat(conv(x, v, a), conv(y, w, a), axis=1)
    yield conv(concat(x, y, axis=1), concat(v, w, axis=0), a.but(group=2 * a.group))


def add_of_grouped_convs(x: Tensor, y: Tensor, v: Weight, w: Weight, a: Attributes) -> Steps:
    yield conv(x, v, a) + conv(y, w, a)
    require(a.layout == "NCHW", "channels first")
    yield conv(concat(x, y, axis=1), concat(v, w, axis=1), a)


def merge_of_grouped_filters(x: Tensor, v: Weight, w: Weight, a: Attributes) -> Steps:
    yield concat(conv(x, v, a), conv(x, w, a), axis=1)
    require(a.layout == "NCHW", "channels first")
    yield conv(x, concat(v, w, axis=0), a)


def enlarged_off_centre(x: Tensor, w: Weight, a: Attributes) -> Steps:
    yield conv(x, w, a)
    require(w.rank == 4 and w.shape[2:] == (1, 1), "1x1")
    wide = pad(w, before=(0, 0, 1, 1), after=(0, 0, 1, 1), mode="constant", value=0.0)
    yield conv(x, wide, a.but(pads=(0, 0, *(p + 2 for p in a.pads[2:]))))


def reshape_joins_distant_axes(x: Tensor, p: Attributes, r: Attributes) -> Equation:
    return reshape(transpose(x, p), r) == reshape(x, r)


def batch_of_weights_collapsed(x: Tensor, w: Tensor) -> Steps:
    yield x @ w
    require(x.rank == w.rank == 3, "batched")
    b, m, k = x.shape
    upper = slice_(w, starts=(0, 0, 0), ends=(1, *w.shape[1:]), steps=(1, 1, 1)).reshape(*w.shape[1:])
    yield (x.reshape(b * m, k) @ upper).reshape(b, m, w.shape[2])


def pool_across_the_seam(x: Tensor, y: Tensor, a: Attributes) -> Steps:
    yield max_pool(concat(x, y, axis=2), a)
    yield concat(max_pool(x, a), max_pool(y, a), axis=2)


def strided_pools_compose(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    yield max_pool(max_pool(x, a), b)
    require(a.layout == b.layout, "one layout")
    kernel = tuple(k + m - 1 for k, m in zip(a.kernel_shape, b.kernel_shape, strict=True))
    strides = tuple(s * t for s, t in zip(a.strides, b.strides, strict=True))
    yield max_pool(x, b.but(kernel_shape=kernel, strides=strides, pads=tuple(p + q for p, q in zip(a.pads, b.pads, strict=True))))


def bias_through_padded_conv(x: Tensor, b: Weight, w: Weight, a: Attributes) -> Steps:
    biased = x + b
    yield conv(biased, w, a)
    require(biased.shape == x.shape, "not widened")
    require(a.layout == "NCHW" and a.group == 1 and b.shape == (1, x.shape[1], *(1,) * (x.rank - 2)), "one bias a channel")
    bias = reduce_sum(w * b, axes=tuple(range(1, w.rank)))
    yield conv(x, w, a) + bias.reshape(1, w.shape[0], *(1,) * (x.rank - 2))


def mean_of_means(x: Tensor, y: Tensor, half: Weight, a: Attributes) -> Steps:
    yield reduce_mean(concat(x, y, axis=1), a) / half
    require_number(half, 0.5)
    yield reduce_mean(x, a) + reduce_mean(y, a)


def sum_over_broadcast_axes(x: Tensor, y: Tensor, a: Attributes) -> Equation:
    return reduce_sum(x + y, a) == reduce_sum(x, a) + reduce_sum(y, a)


def halves_by_stride(x: Tensor, a: Attributes) -> Steps:
    yield slice_(x, a)
    require(all(s == 0 for s in a.starts) and any(step > 1 for step in a.steps), "strided from the start")
    sizes = tuple(-(-end // step) for end, step in zip(a.ends, a.steps, strict=True))
    yield slice_(x, starts=a.starts, ends=sizes, steps=(1,) * x.rank)


def scale_into_both_factors(x: Tensor, w: Weight, s: Weight) -> Steps:
    yield (x @ w) * s
    yield (x * s) @ (w * s)


def swapped_difference(x: Tensor, y: Tensor) -> Equation:
    return x - y == y - x


WRONG = (
    operands_swapped, relu_of_reflection, relu_is_additive, relu_pulls_out_a_number, concat_of_any_convs, add_of_grouped_convs,
    merge_of_grouped_filters, enlarged_off_centre, reshape_joins_distant_axes, batch_of_weights_collapsed, pool_across_the_seam,
    strided_pools_compose, bias_through_padded_conv, mean_of_means, sum_over_broadcast_axes, halves_by_stride, scale_into_both_factors,
    swapped_difference,
)  # fmt: skip


@pytest.mark.parametrize("function", WRONG, ids=lambda function: function.__name__)
def test_wrong_rewrites_are_refuted(function: Callable[..., Any]) -> None:
    result = check(_wrong(function.__name__, function), cases=60, tries=6000)
    assert result.failures, str(result)
    assert "left" in result.failures[0]
    assert "np.[" in result.failures[0]


def test_nothing_times_zero_is_not_zero_where_infinite() -> None:
    """An exact rule must keep infinities. For example, x * 0 = 0 holds over the reals but not for infinite x."""

    @rule
    def product_with_zero(x: Tensor, zero: Weight) -> Steps:
        """x * 0 = 0"""
        yield x * zero
        require_number(zero, 0.0)
        yield zero

    assert check(product_with_zero, cases=40, tries=6000).failures


def test_reassociation_may_not_call_itself_exact() -> None:
    @rule
    def associate(x: Tensor, y: Tensor, z: Tensor) -> Equation:
        """(x + y) + z = x + (y + z)"""
        return (x + y) + z == x + (y + z)

    assert check(associate, cases=20).failures


def test_a_rule_that_never_applies_is_no_pass() -> None:
    @rule
    def never(x: Tensor) -> Steps:
        """relu(x) = x"""
        yield relu(x)
        require(x.rank > 9, "ten axes are needed")
        yield x

    result = check(never, tries=200)
    assert not result.passed
    assert result.refused == {"ten axes are needed": 200}
    assert "never applied" in str(result)


def test_a_rule_that_crashes_is_no_pass() -> None:
    @rule
    def crashes(x: Tensor) -> Steps:
        """relu(x) = x"""
        yield relu(x)
        yield x.reshape(x.shape[7])

    assert "IndexError" in check(crashes, tries=50).failures[0]


def test_a_merge_that_mixes_up_its_members_is_refuted() -> None:
    def one(x: Tensor, w: Weight) -> Tensor:
        return x @ w

    @merge_rule(member=one, shared=("x",))
    def reversed_members(x: Tensor, w: list[Weight]) -> list[Tensor]:
        """x W_i = (x [W_n .. W_1])_i"""
        wide = x @ concat(*reversed(w), axis=1)
        return split(wide, wide.rank - 1, [each.shape[1] for each in w])

    assert check(reversed_members, cases=20).failures


@pytest.mark.parametrize(
    ("body", "line", "told"),
    [
        ("    return x + 2 == x", 6, "Add takes tensors, got 2"),
        ("    return relu(x) == 2", 6, "an equation takes tensors, got 2"),
        ("    return softmax(x, a.but(axis=1)) == softmax(x, a)", 6, "attributes of 'a' are changed on the left side"),
        ("    require(x.rank == 1, '')\n    yield relu(x)\n    yield x", 6, "shapes are used on the left side"),
        ("    return relu(x)", 4, "must return an Equation, or yield its left and then its right side"),
        ("    return x == relu(x)", 4, "the left side must be an operator"),
        ("    return relu(x) == x", 4, "no match binds a, of which the left side says nothing"),
    ],
)
def test_what_is_no_rule_is_told_with_its_line(body: str, line: int, told: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    names = "from egraph.rule import Attributes, Tensor, require, rule\nfrom egraph.rule_operators import relu, softmax\n"
    path.write_text(f"{names}@rule\ndef law(x: Tensor, a: Attributes):\n    '''x = x'''\n{body}\nRULES = (law,)\n")
    with pytest.raises(RuleError, match=re.escape(told)) as caught:
        load_rules(path)
    assert caught.value.where == f"{path}:{line}"


def test_a_rule_that_seldom_applies_is_drawn_like_where_it_did() -> None:
    test = check(rule_named("layer_normalization_from_power"), cases=24, tries=800)
    assert test.cases == 24 and not test.failures
