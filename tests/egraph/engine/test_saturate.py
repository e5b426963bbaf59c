"""Saturation: what it finds, when it stops, what it counts, and that it is deterministic."""

from __future__ import annotations

import gc
import math
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from egraph.engine.eclasses import UnsoundRule
from egraph.engine.egglog import Engine
from egraph.engine.encode import MatchCounts
from egraph.engine.saturate import Limits, saturate
from egraph.errors import RuleError
from egraph.policy import SaturationPolicy
from egraph.rewrite.clock import look, within
from egraph.rewrite.terms import Pattern, Variable
from egraph.rule import (
    Attributes,
    Binding,
    Equation,
    MergeRule,
    Rule,
    Steps,
    Tensor,
    Weight,
    merge_rule,
    operation,
    require,
    require_number,
    rule,
)
from egraph.rules import RULES
from egraph.rules.merges import split
from egraph.tensor import FrozenEGraph, Graph, Node, TensorType, attributes, make, walk
from egraph.tensor.ops import apply
from tests.support.lowering import Model
from tests.support.paths import ROOT


def given(name: str, *shape: int) -> Node:
    return make("Input", (), attributes(name=name), TensorType("float32", shape))


def weight(name: str, *shape: int) -> Node:
    return make("Constant", (), attributes(digest=name), TensorType("float32", shape))


def graph(*roots: Node, **tensors: float) -> Graph:
    """Return a graph; constants hold distinct values unless a number is given for their name."""
    arrays = {}
    for node in walk(roots):
        if node.op == "Constant":
            name = node.string("digest")
            sizes = node.type.sizes
            values = np.arange(node.type.elements, dtype=np.float32).reshape(sizes) + len(name)
            arrays[name] = np.full(sizes, tensors[name], np.float32) if name in tensors else values
    inputs = tuple(node for node in walk(roots) if node.op == "Input")
    return Graph("test", inputs, tuple((f"y{i}", root) for i, root in enumerate(roots)), arrays)


def holds(frozen: FrozenEGraph, number: int, term: Node) -> bool:
    """Return whether a class holds a term of the operator language."""
    return any(
        node.op == term.op
        and node.attributes == term.attributes
        and len(node.children) == len(term.inputs)
        and all(holds(frozen, child, operand) for child, operand in zip(node.children, term.inputs, strict=True))
        for node in frozen.classes[number]
    )


def picture(frozen: FrozenEGraph) -> str:
    sources = {number: node.digest for number, node in frozen.source.items()}
    return repr((dict(frozen.classes), dict(frozen.types), frozen.roots, sorted(frozen.constants), sources))


@rule
def commute(x: Tensor, y: Tensor) -> Equation:
    """x + y = y + x"""
    return x + y == y + x


@rule
def associate(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """(x + y) + z = x + (y + z)"""
    return (x + y) + z == x + (y + z)


@rule
def matmul_associative(a: Tensor, b: Tensor, c: Tensor) -> Equation:
    """(A B) C = A (B C)"""
    return (a @ b) @ c == a @ (b @ c)


@rule
def relu_twice(x: Tensor) -> Equation:
    """relu(relu(x)) = relu(x)"""
    return operation("Relu", operation("Relu", x)) == operation("Relu", x)


@rule
def transpose_pair(x: Tensor, a: Attributes, b: Attributes) -> Steps:
    """transpose(transpose(x)) = x, where the second undoes the first"""
    yield operation("Transpose", operation("Transpose", x, by=a), by=b)
    require(tuple(a.perm[i] for i in b.perm) == tuple(range(x.rank)), "the second must undo the first")
    yield x


@rule
def scale_weight(x: Tensor, w: Weight, s: Weight) -> Equation:
    """(x w) s = x (w s)"""
    return (x @ w) * s == x @ (w * s)


def _member(x: Tensor, w: Weight) -> Tensor:
    return x @ w


@merge_rule(member=_member, shared=("x",))
def merge_matmuls(x: Tensor, w: list[Weight]) -> list[Tensor]:
    """[x w1, ..., x wn] = slices of x [w1 ... wn]"""
    wide = x @ operation("Concat", *w, axis=w[0].rank - 1)
    return split(wide, wide.rank - 1, [each.shape[-1] for each in w])


X, Y, Z = given("x", 4, 6), given("y", 4, 6), given("z", 4, 6)


@pytest.mark.parametrize(
    ("rules", "start", "goal"),
    [
        ([commute], apply("Add", X, Y), apply("Add", Y, X)),
        ([commute, associate], apply("Add", apply("Add", X, Y), Z), apply("Add", Y, apply("Add", Z, X))),
        ([relu_twice], apply("Relu", apply("Relu", apply("Relu", X))), apply("Relu", X)),
        (
            [matmul_associative],
            apply("MatMul", apply("MatMul", X, given("b", 6, 3)), given("c", 3, 2)),
            apply("MatMul", X, apply("MatMul", given("b", 6, 3), given("c", 3, 2))),
        ),
        (
            [transpose_pair],
            apply("Relu", apply("Transpose", apply("Transpose", X, perm=(1, 0)), perm=(1, 0))),
            apply("Relu", X),
        ),
        (
            [scale_weight],
            apply("Mul", apply("MatMul", X, weight("w", 6, 5)), weight("s", 5)),
            apply("MatMul", X, apply("Mul", weight("w", 6, 5), weight("s", 5))),
        ),
    ],
)
def test_goal_is_found(rules: list[Rule], start: Node, goal: Node) -> None:
    result = saturate(graph(start), rules)
    assert result.stop_reason == "saturated"
    assert holds(result.frozen, result.frozen.roots[0], goal)
    assert not holds(saturate(graph(start), []).frozen, 0, goal)


def test_constant_variables_match_only_constants() -> None:
    start = apply("Mul", apply("MatMul", X, given("w", 6, 5)), weight("s", 5))
    assert sum(s.matches for s in saturate(graph(start), [scale_weight]).statistics) == 0


def test_constants_are_found_upwards() -> None:
    w = apply("Neg", apply("Exp", weight("w", 6, 5)))
    frozen = saturate(graph(apply("MatMul", X, w)), []).frozen
    constant_ops = {node.op for number in frozen.constants for node in frozen.classes[number]}
    assert constant_ops == {"Neg", "Exp", "Constant"}


def test_refusals_say_why_and_where() -> None:
    inner = apply("Transpose", given("t", 2, 3, 4), perm=(1, 2, 0))
    root = apply("Transpose", inner, perm=(1, 2, 0))
    result = saturate(graph(root), [transpose_pair, relu_twice])
    (refusal,) = result.statistics[0].refusals
    assert (refusal.reason, refusal.count, refusal.nodes) == ("the second must undo the first", 1, (root,))
    assert "float32[2,3,4]" in refusal.example
    assert not result.statistics[1].refusals and not result.statistics[1].matches


@rule
def times_one(x: Tensor, one: Weight) -> Steps:
    """x * 1 = x"""
    yield x * one
    require_number(one, 1.0)
    yield x


@pytest.mark.parametrize(("first", "second"), [(1.0, 2.0), (2.0, 1.0)])
def test_what_a_guard_says_of_one_number_is_not_said_of_another(first: float, second: float) -> None:
    """Matches of equal types share their right sides, but not if a guard depends on a number in which they differ."""
    roots = [apply("Mul", given(f"x{k}", 4, 6), weight(f"w{k}", 4, 6)) for k in (0, 1)]
    result = saturate(graph(*roots, w0=first, w1=second), [times_one])
    is_input = [any(node.op == "Input" for node in result.frozen.classes[root]) for root in result.frozen.roots]
    assert is_input == [first == 1.0, second == 1.0]
    (refusal,) = result.statistics[0].refusals
    assert refusal.count == 1 and "must be 1.0 everywhere, got 2.0" in refusal.reason


@pytest.mark.parametrize(("number", "used"), [(1.0, True), (1.0 + 1e-8, True), (1.0 + 1e-7, False), (-1.0, False)])
def test_a_number_is_known_to_the_precision_of_float32(number: float, used: bool) -> None:
    result = saturate(graph(apply("Mul", X, weight("w", 4, 6)), w=number), [times_one])
    assert (result.statistics[0].unions == 1) == used


def test_provenance_names_the_first_rule() -> None:
    frozen = saturate(graph(apply("Add", X, Y)), [commute]).frozen
    assert [node.rule for node in frozen.classes[frozen.roots[0]]] == ["", "commute"]


def test_type_alarm_names_the_rule() -> None:
    class Wrong(Rule):
        def apply(self, binding: Binding) -> tuple[Node, Node]:
            left, _ = Rule.apply(self, binding)
            return left, apply("Reshape", left, shape=(24,))

    wrong = Wrong(**{name: getattr(commute, name) for name in commute.__dataclass_fields__} | {"name": "wrong_shape"})
    with pytest.raises(UnsoundRule, match="wrong_shape"):
        saturate(graph(apply("Add", X, Y)), [wrong])


def test_joined_inputs_raise_the_alarm() -> None:
    @rule
    def first_of_two(x: Tensor, y: Tensor) -> Equation:
        """x + y = x"""
        return x + y == x

    @rule
    def second_of_two(x: Tensor, y: Tensor) -> Equation:
        """x + y = y"""
        return x + y == y

    with pytest.raises(UnsoundRule, match="two different inputs"):
        saturate(graph(apply("Add", X, Y)), [first_of_two, second_of_two])


def test_stop_reasons() -> None:
    chain = X
    for i in range(12):
        chain = apply("Add", chain, given(f"i{i}", 4, 6))
    many = graph(chain)
    growing = [commute, associate]
    assert saturate(many, growing, Limits(iterations=1)).stop_reason == "iterations"
    by_size = saturate(many, growing, Limits(e_nodes=500))
    assert by_size.stop_reason == "e-nodes"
    assert by_size.iterations[-1].e_nodes < 600
    by_model = saturate(many, growing, policy=SaturationPolicy(rules_growth=10.0, rules_least_growth=0))
    assert by_model.stop_reason == "e-nodes" and 250 <= by_model.iterations[-1].e_nodes < 450, "the model has 25"
    least = saturate(many, growing, policy=SaturationPolicy(rules_growth=1.0, rules_least_growth=500))
    assert least.stop_reason == "e-nodes" and 500 <= least.iterations[-1].e_nodes < 600
    assert saturate(many, growing, Limits(seconds=0.0)).stop_reason == "time"
    stopped = saturate(many, growing, interrupted=lambda: True)
    assert stopped.stop_reason == "interrupted"
    assert stopped.frozen.types[stopped.frozen.roots[0]] == chain.type


@pytest.mark.parametrize(
    ("rule", "start"),
    [
        (relu_twice, [apply("Exp", apply("Relu", apply("Relu", given("x", 4))))]),
        (merge_matmuls, [apply("MatMul", given("x", 4, 6), weight(name, 6, 3)) for name in ("w", "ww")]),
    ],
)
def test_a_proof_ends_when_the_time_of_the_saturation_does(rule: Rule | MergeRule, start: list[Node]) -> None:
    """A proof ends when the saturation's time does, even if one match would take longer than the whole limit.

    The match stays undecided, also if the saturation is repeated.
    """
    decided: list[bool] = []

    def endless(*_: object) -> str:
        decided.append(False)
        while True:
            look()

    def quick(*_: object) -> str:
        decided.append(True)
        return ""

    limits = Limits(seconds=1.0)
    cut = saturate(graph(*start), [replace(rule, admits=endless)], limits)
    assert decided == [False] and cut.stop_reason == "time"
    assert [each.unions for each in cut.statistics] == [0] and cut.looks != (0,)
    again = saturate(graph(*start), [replace(rule, admits=quick)], replace(limits, seconds=math.inf, looks=cut.looks))
    assert picture(again.frozen) == picture(cut.frozen) and again.stop_reason == "time"
    whole = saturate(graph(*start), [replace(rule, admits=quick)])
    assert [each.unions for each in whole.statistics] != [0]
    with within(100.0):
        look()  # the limit ended with the saturation


def test_two_rules_of_one_name_are_refused() -> None:
    with pytest.raises(RuleError, match="two rules are called 'relu_twice'"):
        saturate(graph(X), [relu_twice, relu_twice])


def test_neutral_constants_do_not_grow_without_end() -> None:
    ones, more = weight("a", 4, 6), weight("b", 6)
    root = apply("Add", apply("Mul", apply("Mul", X, ones), more), apply("Relu", X))
    result = saturate(graph(root, a=1.0, b=1.0), RULES, Limits(seconds=20))
    assert result.stop_reason == "saturated"
    assert holds(result.frozen, result.frozen.roots[0], apply("Add", X, apply("Relu", X)))


@pytest.mark.parametrize("count", [2, 3, 12])
def test_merges_take_all_at_once(count: int) -> None:
    roots = [apply("MatMul", X, weight("w" * (i + 1), 6, 2 + i % 3)) for i in range(count)]
    result = saturate(graph(*roots), [merge_matmuls])
    assert result.stop_reason == "saturated"
    e_nodes = sum(map(len, result.frozen.classes.values()))
    assert e_nodes < 12 * count
    products = [number for number, nodes in result.frozen.classes.items() if any(node.op == "MatMul" for node in nodes)]
    widths = [result.frozen.types[number].sizes[-1] for number in products]
    assert sum(2 + i % 3 for i in range(count)) in widths


def test_biases_are_merged_whichever_operand_they_are() -> None:
    """Sums with biases are merged in either operand order, because exporters write b + x W as well as x W + b."""
    products = [apply("MatMul", X, weight(f"w{i}", 6, width)) for i, width in enumerate((2, 3, 5))]
    biases = [weight(f"b{i}", *product.type.sizes[-1:]) for i, product in enumerate(products)]
    orders = zip(biases, products, strict=True)
    roots = [apply("Add", *(each if i % 2 else reversed(each))) for i, each in enumerate(orders)]
    result = saturate(graph(*roots), RULES, Limits(seconds=20))
    wide = [number for number, nodes in result.frozen.classes.items() if any(node.op == "Add" for node in nodes)]
    assert (4, 10) in [result.frozen.types[number].sizes for number in wide]


def test_wide_joins_are_not_started() -> None:
    sums = [apply("Add", given(f"a{i}", 4, 6), given(f"b{i}", 4, 6)) for i in range(1001)]

    @rule
    def one_class(x: Tensor, y: Tensor) -> Equation:
        """relu(x) + relu(y) = relu(y) + relu(x)"""
        return operation("Relu", x) + operation("Relu", y) == operation("Relu", y) + operation("Relu", x)

    relus = {0: [(i,) for i in range(1, 1002)]}
    assert MatchCounts({"Add": {2000: [(0, 0)]}, "Relu": relus}).of(one_class.pattern) == 1001 * 1001
    assert MatchCounts({"Add": {2000: [(0, 0)]}, "Relu": {0: [(1,)]}}).of(one_class.pattern) == 1
    assert saturate(graph(*sums), [associate]).stop_reason == "saturated"


def test_matches_are_counted_as_they_are_listed() -> None:
    @rule
    def nested(x: Tensor, y: Tensor, z: Tensor) -> Equation:
        """relu(x + y) + (relu(z) + x) = itself"""
        side = operation("Relu", x + y) + (operation("Relu", z) + x)
        return side == side

    random = Random(3)
    for _ in range(20):
        operands: dict[str, dict[int, list[tuple[int, ...]]]] = {
            "Add": {h: [(random.randrange(6), random.randrange(6)) for _ in range(random.randrange(3))] for h in range(6)},
            "Relu": {h: [(random.randrange(6),) for _ in range(random.randrange(3))] for h in range(6)},
        }

        def listed(pattern: Pattern | Variable, handle: int, rows: Mapping[str, Mapping[int, list[tuple[int, ...]]]] = operands) -> int:
            if isinstance(pattern, Variable):
                return 1
            below = pattern.operands
            return sum(math.prod(listed(*each) for each in zip(below, row, strict=True)) for row in rows[pattern.op][handle])

        assert MatchCounts(operands, small=0).of(nested.pattern) == sum(listed(nested.pattern, handle) for handle in range(6))


def test_merges_never_join_dependent_operators() -> None:
    first = apply("MatMul", given("s", 6, 6), weight("w", 6, 6))
    second = apply("MatMul", first, weight("ww", 6, 6))
    (statistics,) = saturate(graph(second), [merge_matmuls]).statistics
    assert statistics.unions == 0


def test_merges_take_no_operators_that_rules_made_of_others() -> None:
    """A merge takes only operators of the input program, not those that rules derived from them.

    The order of the operands tells them apart because the operator does not commute, even if both have the same operands.
    """

    @rule
    def swapped(x: Tensor, y: Tensor) -> Equation:
        """x y = y x, which is not true of matrices"""
        return x @ y == y @ x

    square = given("s", 6, 6)
    roots = [apply("MatMul", weight(name, 6, 6), square) for name in ("w", "ww")]
    result = saturate(graph(*roots), [swapped, merge_matmuls])
    assert [each.unions for each in result.statistics] == [2, 0]


def test_same_result_in_every_process() -> None:
    here = str(ROOT)
    script = "from tests.egraph.engine.test_saturate import sample_picture; print(sample_picture())"
    texts = []
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", script], cwd=here, env=environment, capture_output=True, text=True, check=True)
        texts.append(done.stdout)
    assert texts[0] == texts[1] == sample_picture() + "\n"


def sample_picture() -> str:
    branches = [apply("MatMul", X, weight("w" * (i + 1), 6, 5)) for i in range(3)]
    root = apply("Add", apply("Add", branches[0], branches[1]), apply("Relu", apply("Relu", branches[2])))
    rules: list[Rule | MergeRule] = [commute, associate, relu_twice, merge_matmuls]
    return picture(saturate(graph(root), rules).frozen)


def test_a_closed_engine_may_be_collected_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed engine may be freed by the garbage collector in any thread.

    Objects that refer to an engine form cycles, and the collector runs in the thread that happens to allocate.
    """
    told: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    engine = Engine()
    cycle: list[object] = [engine]
    cycle.append(cycle)
    engine.close()
    del engine, cycle
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()
    assert not told


def test_residual_sums_do_not_multiply_each_other() -> None:
    """The e-graph grows linearly with the number of residual blocks, each of which adds to the sum of the one before.

    Sums that are equal after a transposition must already be equal before it.
    """

    def e_nodes(blocks: int) -> int:
        model = Model()
        x = model.input(1, 32, 14, 14)
        window: dict[str, Any] = {"kernel_shape": (3, 3), "strides": (1, 1), "pads": (1,) * 4, "dilations": (1, 1), "count_include_pad": 0}
        for _ in range(blocks):
            y = apply("Sub", apply("AveragePool", x, **window, layout="NCHW"), x)
            x = apply("Add", x, apply("Mul", y, model.weight(32, 1, 1)))
        saturation = saturate(model.graph(x), RULES)
        assert saturation.stop_reason == "saturated"
        return sum(map(len, saturation.frozen.classes.values()))

    two, three, five = map(e_nodes, (2, 3, 5))
    assert five - three == 2 * (three - two)
