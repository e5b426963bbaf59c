"""Explanations: the reasons for an equality form a chain, are complete, and never change."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, cast

import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egraph.engine.applications import Rewriting
from egraph.engine.eclasses import EClasses
from egraph.engine.encode import Labels
from egraph.engine.explanations import CONGRUENCE, INJECTIVITY, ProofForest, Reason, needed
from egraph.engine.saturate import Limits, saturate
from egraph.onnx import importer
from egraph.optimize.estimated import estimated_program
from egraph.rule import Attributes, Equation, Rule, Steps, Tensor, Weight, operation, require, require_number, rule
from egraph.rule_operators import relu, transpose
from egraph.rules import RULES
from egraph.tensor import ENode, FrozenEGraph, Graph, Node, TensorType, attributes, make, walk
from egraph.tensor.ops import apply

if TYPE_CHECKING:
    from egraph.engine.egglog import Engine


@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11), st.integers(0, 11), st.integers(0, 11)), max_size=40))
def test_a_path_exists_where_classes_are_joined_and_later_edges_leave_it(steps: list[tuple[int, int, int, int]]) -> None:
    forest = ProofForest()
    for _ in range(12):
        forest.add(())
    classes = [{vertex} for vertex in range(12)]
    kept: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number, (left, right, a, b) in enumerate(steps):
        needs = needed([(a, b)]) if classes[a] is classes[b] else ()
        forest.connect(left, right, Reason(f"rule {number}", needs))
        if classes[left] is not classes[right]:
            classes[left] |= classes[right]
            for vertex in classes[right]:
                classes[vertex] = classes[left]
        for pair in [(left, right) for left in range(12) for right in range(12)]:
            if classes[pair[0]] is classes[pair[1]]:
                path = forest.path(*pair)
                assert kept.setdefault(pair, path) == path
                assert not path or path[-1][1] == pair[1]
                assert [edge for edge, _ in path] == [edge for edge, _ in forest.path(*reversed(pair))][::-1]
            else:
                with pytest.raises(ValueError, match="different classes"):
                    forest.path(*pair)
    sets, names = forest.rules_by_edge()
    for pair, path in kept.items():
        bits = forest.rules_between(*pair, sets)
        assert {name for bit, name in enumerate(names) if bits >> bit & 1} >= set(forest.steps(*pair))
        assert len(path) == len(forest.steps(*pair))


def test_what_a_step_needs_counts_and_congruence_is_no_rule() -> None:
    forest = ProofForest()
    x, y, fx, fy, z = (forest.add(()) for _ in range(5))
    forest.connect(x, y, Reason("first"))
    forest.connect(fx, fy, Reason(CONGRUENCE, ((x, y),)))
    forest.connect(fy, z, Reason("second"))
    sets, names = forest.rules_by_edge()
    assert {names[bit] for bit in range(len(names)) if forest.rules_between(fx, z, sets) >> bit & 1} == {"first", "second"}
    assert forest.steps(fx, z) == (CONGRUENCE, "second") and forest.steps(z, fx) == ("second", CONGRUENCE)


@rule
def add_nothing(x: Tensor, zero: Weight) -> Steps:
    """x + 0 = x"""
    yield x + zero
    require_number(zero, 0.0)
    require(zero.rank <= x.rank, "0 must not widen x")
    yield x


@rule
def commute(x: Tensor, y: Tensor) -> Equation:
    """x + y = y + x"""
    return x + y == y + x


@rule
def associate(x: Tensor, y: Tensor, z: Tensor) -> Equation:
    """(x + y) + z = x + (y + z)"""
    return (x + y) + z == x + (y + z)


@rule
def abs_of_negative(x: Tensor) -> Equation:
    """|-x| = |x|"""
    return operation("Abs", operation("Neg", x)) == operation("Abs", x)


@rule
def negative_twice(x: Tensor) -> Equation:
    """-(-x) = x"""
    return operation("Neg", operation("Neg", x)) == x


@rule
def negative_of_sum(x: Tensor, y: Tensor) -> Equation:
    """-(x + y) = -x + -y"""
    return operation("Neg", x + y) == operation("Neg", x) + operation("Neg", y)


@rule
def sines_transposed(x: Tensor, p: Attributes) -> Steps:
    """transpose(sin(-(-x)), p) = transpose(sin(x), p)"""
    yield transpose(operation("Sin", operation("Neg", operation("Neg", x))), p)
    yield transpose(operation("Sin", x), p)


@rule
def difference_of_equals(x: Tensor) -> Equation:
    """x - x = tanh(-(x - x))"""
    return x - x == operation("Tanh", operation("Neg", x - x))


SMALL: tuple[Rule, ...] = (commute, associate, add_nothing, abs_of_negative, negative_twice, negative_of_sum)
TRANSPOSED: tuple[Rule, ...] = (commute, associate, add_nothing, sines_transposed)
MODELS = (
    """<ir_version: 9, opset_import: ["" : 20]>
    m (float[2] x, float[2] y, float[2] z) => (float[2] out) <float[1] zero = {0.0}> {
        a = Add(x, y)
        b = Add(a, zero)
        c = Add(b, z)
        out = Abs(c)
    }""",
    """<ir_version: 9, opset_import: ["" : 20]>
    m (float[2] x, float[2] y) => (float[2] out, float[2] second) <float[2] zero = {0.0, 0.0}> {
        a = Neg(x)
        b = Add(a, zero)
        c = Neg(b)
        d = Add(c, y)
        e = Neg(d)
        out = Abs(e)
        f = Add(y, x)
        second = Neg(f)
    }""",
)
INJECTIVE = """<ir_version: 9, opset_import: ["" : 20]>
    m (float[2, 3] x, float[2, 3] y) => (float[2, 3] out, float[3, 2] second, float[2, 3] third) <float[1] zero = {0.0}> {
        a = Neg(x)
        b = Neg(a)
        c = Sin(b)
        d = Add(c, zero)
        second = Transpose<perm = [1, 0]>(d)
        out = Add(d, y)
        e = Sin(x)
        third = Sub(e, d)
    }"""


def graph_of(text: str) -> Graph:
    return importer.load(onnx.parser.parse_model(text)).graph


def drawn_term(frozen: FrozenEGraph, number: int, random: Random, above: frozenset[int]) -> tuple[ENode, ...] | None:
    """Return the e-nodes of a random term of a class, or None if the draw entered a cycle."""
    node = random.choice(frozen.classes[number])
    nodes = [node]
    for child in node.children:
        below = None if child in above else drawn_term(frozen, child, random, above | {child})
        if below is None:
            return None
        nodes += below
    return tuple(nodes)


def holds(frozen: FrozenEGraph, number: int, term: list[ENode]) -> bool:
    """Return whether a class holds a term, given by its e-nodes in preorder."""
    node = term.pop(0)
    rest = list(term)
    for twin in frozen.classes[number]:
        if (twin.op, twin.attributes, len(twin.children)) == (node.op, node.attributes, len(node.children)):
            term[:] = rest
            if all(holds(frozen, child, term) for child in twin.children):
                return True
    return False


@pytest.mark.parametrize(("text", "rules"), [*((text, SMALL) for text in MODELS), (INJECTIVE, TRANSPOSED)])
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_the_rules_of_a_term_suffice_to_find_it(text: str, rules: tuple[Rule, ...], seed: int) -> None:
    """An e-graph that is grown by the named rules alone holds the term too."""
    graph = graph_of(text)
    frozen = saturate(graph, rules).frozen
    random = Random(seed)
    number = random.randrange(len(frozen.roots))
    term = drawn_term(frozen, frozen.roots[number], random, frozenset({frozen.roots[number]}))
    if term is None:
        return
    names = {name for node in term for name in node.rules} | set(frozen.root_rules[number])
    again = saturate(graph, [each for each in rules if each.name in names])
    assert again.stop_reason == "saturated"
    assert holds(again.frozen, again.frozen.roots[number], list(term)), sorted(names)


def test_a_rule_that_only_joins_two_values_is_named() -> None:
    """A rule that only joins two values is named in explanations.

    For example, x + 0 = x makes no e-node, but a node that reads x instead of the sum depends on it.
    """
    text = """<ir_version: 9, opset_import: ["" : 20]>
        m (float[64] x) => (float[64] y, float[64] out) <float[1] zero = {0.0}> {
            a = Add(x, zero)
            y = Tanh(a)
            out = Add(a, zero)
        }"""
    program = estimated_program(graph_of(text), rules=[add_nothing])
    assert [kernel.rules for kernel in program.kernels] == [("add_nothing",)]
    assert program.rules == ("add_nothing",)


def test_steps_lead_from_the_input_to_the_e_node() -> None:
    graph = graph_of(MODELS[1])
    frozen = saturate(graph, SMALL, Limits()).frozen
    root, _ = frozen.roots
    (unchanged,) = [node for node in frozen.classes[root] if node.rule == ""]
    assert unchanged.steps == () and unchanged.rules == ()
    (shorter,) = [node for node in frozen.classes[root] if node.op == "Abs" and node.steps == ("abs_of_negative",)]
    assert shorter.rules == ("abs_of_negative",)


def test_shipped_rules_are_explained_completely() -> None:
    """The rules that a program names suffice to find a program of at most the same cost, for a small network."""
    text = """<ir_version: 9, opset_import: ["" : 20]>
        m (float[1,8,6,6] x) => (float[1,4,6,6] y)
        <float[8,8,1,1] v = {0.5}, float[4,8,3,3] w = {0.25}, float[1,4,1,1] s = {2.0}> {
            a = Conv(x, v)
            b = Conv<pads = [1,1,1,1]>(a, w)
            c = Mul(b, s)
            y = Relu(c)
        }""".replace("{0.5}", "{" + ",".join(["0.5"] * 64) + "}").replace("{0.25}", "{" + ",".join(["0.25"] * 288) + "}").replace(
        "{2.0}", "{2.0, 1.0, 3.0, 4.0}"
    )
    graph = graph_of(text)
    program = estimated_program(graph)
    used = [each for each in RULES if each.name in program.rules]
    assert used
    again = estimated_program(graph, rules=used)
    assert again.cost_us <= program.cost_us * (1 + 1e-9)


def test_a_match_is_an_e_node_of_its_own_class_although_congruence_is_not_closed_yet() -> None:
    """A match refers to an e-node of the class in which it was found, even before congruence is restored.

    Relu(y) is looked up as Relu(x), whose class is a different one until both are joined. An explanation by it would depend on newer facts.
    """
    graph = importer.load(onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 20]> main (float[4] x, float[4] y) => (float[4] p, float[4] q) { p = Relu(x) q = Relu(y) }"""
    )).graph  # fmt: skip
    classes = EClasses(Labels())
    handles: dict[Node, int] = {}
    for node in walk(graph.roots):
        handles[node] = classes.insert(node, [handles[operand] for operand in node.inputs], None)
    x, y = (handles[node] for node in graph.inputs)
    p, q = (handles[node] for node in graph.roots)
    classes.forest.connect(classes.vertices[x], classes.vertices[y], Reason("equal"))
    classes.union(x, y, "equal")

    @rule
    def relu_again(t: Tensor) -> Equation:
        """relu(t) = relu(relu(t))"""
        return relu(t) == relu(relu(t))

    working = Rewriting(relu_again, classes, cast("Engine", None), {}, 1)
    for root, operand in ((p, x), (q, y)):
        matched, _ = working.matched(((root, operand), ()))
        assert matched.vertex == classes.vertices[root]


def test_operands_are_equal_of_which_a_transposition_makes_the_same() -> None:
    """Operands of a transposition are equal if its results are.

    A rule about transposed sines alone implies that ``out`` is sin(x) + y; 0 is added to the sine before.
    """
    out, *_ = (found := saturate(graph_of(INJECTIVE), TRANSPOSED).frozen).roots
    sums = [node for node in found.classes[out] if node.op == "Add"]
    sines = [(node, below) for node in sums for child in node.children for below in found.classes[child] if below.op == "Sin"]
    direct = next((node, sine) for node, sine in sines if found.classes[sine.children[0]][0].op == "Input")
    assert "sines_transposed" in {*direct[0].rules, *direct[1].rules}
    assert INJECTIVITY in {step for node, _ in sines for step in node.steps} | {step for _, sine in sines for step in sine.steps}


def two_of_one_result(left: Node, right: Node) -> bool:
    """Return whether the corresponding operands of two operators with equal results are in one class."""
    classes = EClasses(Labels())
    number: dict[Node, int] = {}
    for node in walk((left, right)):
        number[node] = classes.insert(node, [number[operand] for operand in node.inputs], None)
    classes.union(number[left], number[right], "both are the same")
    classes.follow({}, "a rule")
    return all(classes.find(number[a]) == classes.find(number[b]) for a, b in zip(left.inputs, right.inputs, strict=True))


def test_only_equal_operators_over_equal_sizes_tell_that_operands_are_equal() -> None:
    x = make("Input", (), attributes(name="x"), TensorType("float32", (2, 2)))
    y = apply("Neg", x)
    tall = apply("Reshape", x, shape=(4, 1))
    assert two_of_one_result(apply("Transpose", x, perm=(1, 0)), apply("Transpose", y, perm=(1, 0)))
    assert two_of_one_result(apply("Reshape", x, shape=(4,)), apply("Reshape", y, shape=(4,)))
    assert not two_of_one_result(apply("Transpose", x, perm=(1, 0)), apply("Transpose", y, perm=(0, 1)))
    assert not two_of_one_result(apply("Reshape", x, shape=(4,)), apply("Reshape", tall, shape=(4,)))
    assert not two_of_one_result(apply("Relu", x), apply("Relu", y))
    unknown = [make("Input", (), attributes(name=name), TensorType("float32", ("rows", "columns"))) for name in "ab"]
    flat = [make("Reshape", (each,), attributes(shape=(6,)), TensorType("float32", (6,))) for each in unknown]
    assert not two_of_one_result(*flat)  # 2 x 3 and 3 x 2


def test_rules_match_operands_that_became_equal() -> None:
    saturation = saturate(graph_of(INJECTIVE), (*TRANSPOSED, difference_of_equals))
    third = saturation.frozen.classes[saturation.frozen.roots[2]]
    assert {node.op for node in third} == {"Sub", "Tanh"}
