"""Equal blocks are searched once, and the program is written out for each; it must compute the model for all weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from egraph.errors import ExtractError
from egraph.extract import extract, to_program
from egraph.optimize.estimated import estimate, grown, shipped_rules
from egraph.optimize.outline import Outline
from egraph.optimize.repeats import _Wiring, outlined
from egraph.tensor import LEAVES, ENode, FrozenEGraph, Graph, Node, Program, TensorType, attributes, bind, make, walk
from egraph.tensor.ops import apply
from egraph.tolerance import Tolerance
from lower.candidates import candidates
from lower.cost.model import FAILED_COST_US, CostModel
from lower.cost.rounding import ErrorModel
from lower.roofline import DeviceSpeed
from runtime.profile import Database
from tests.support.fuzzing import leaf_values, reference

SIZE = 6
GENERATOR = np.random.default_rng(0)


@dataclass
class Weights:
    """The constants of a model that is being built."""

    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def constant(self, array: np.ndarray, dtype: str = "float32") -> Node:
        data = np.asarray(array, dtype)
        digest = hashlib.sha256(f"{dtype}{data.shape}".encode() + data.tobytes()).hexdigest()[:32]
        self.tensors[digest] = data
        return make("Constant", (), attributes(digest=digest), TensorType(dtype, data.shape))

    def matrix(self) -> Node:
        return self.constant(GENERATOR.standard_normal((SIZE, SIZE)))


def layer(weights: Weights, x: Node, gain: Node, mask: Node | None = None, scale: float = 0.5) -> Node:
    """x + relu((x W) * gain [+ mask]) V * scale, with a softmax in between: ten operators."""
    hidden = apply("Mul", apply("MatMul", x, weights.matrix()), gain)
    hidden = apply("Add", hidden, mask) if mask is not None else apply("Add", hidden, weights.constant(GENERATOR.standard_normal(SIZE)))
    hidden = apply("MatMul", apply("Relu", hidden), weights.matrix())
    hidden = apply("Transpose", apply("Transpose", apply("Softmax", hidden, axis=1), perm=(1, 0)), perm=(1, 0))
    return apply("Add", x, apply("Mul", apply("Tanh", hidden), weights.constant(np.full((), scale))))


def vector(weights: Weights) -> Node:
    return weights.constant(GENERATOR.uniform(0.5, 2.0, SIZE))


def model(build: Callable[[Weights, Node], Sequence[Node]]) -> Graph:
    weights, x = Weights(), make("Input", (), attributes(name="x"), TensorType("float32", (SIZE, SIZE)))
    roots = build(weights, x)
    names = {node: f"value {at}" for at, node in enumerate(walk(roots)) if node.op not in LEAVES}
    outputs = tuple((f"y{at}", root) for at, root in enumerate(roots))
    return Graph("m", (x,), outputs, weights.tensors, origins={node: (f"node of {name}",) for node, name in names.items()}, names=names)


def layers(count: int, gains: Callable[[Weights, int], Node] = lambda weights, at: vector(weights), scale: float = 0.5) -> Graph:
    def build(weights: Weights, x: Node) -> Sequence[Node]:
        x = apply("Sigmoid", x)
        for at in range(count):
            x = layer(weights, x, gains(weights, at), scale=scale if at else 0.5)
        return (apply("Exp", x),)

    return model(build)


def program_of(outline: Outline) -> Program:
    frozen = grown(outline.graph, shipped_rules())
    return outline.program(frozen, extract(frozen, estimate(candidates(frozen)), 1, 0.0)[0])


def assert_computes(program: Program, graph: Graph) -> None:
    made = set(walk(program.graph.roots)) & set(graph.inputs)
    for kernel in program.kernels:
        assert bind(kernel.fragment, kernel.inputs) is kernel.output
        for operand in kernel.inputs:
            leaves = {node.op for node in walk((operand,)) if node.op in LEAVES}
            assert operand in made or operand.op in LEAVES or leaves == {"Constant"}, "an operand is read before it is computed"
        made.add(kernel.output)
    assert [name for name, _ in program.graph.outputs] == [name for name, _ in graph.outputs]
    feeds = {"x": GENERATOR.standard_normal((SIZE, SIZE)).astype(np.float32)}
    meant = reference(graph.roots, leaf_values(graph, feeds))
    for want, got in zip(meant, reference(program.graph.roots, leaf_values(program.graph, feeds)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def operators(graph: Graph) -> int:
    return sum(node.op not in LEAVES for node in walk(graph.roots))


def test_equal_blocks_are_one_in_the_outline_and_all_in_the_program() -> None:
    graph = layers(5)
    outline = outlined(graph, 0.2)
    (run,) = outline.runs
    assert len(run.instances) == 5 and operators(outline.graph) < operators(graph) / 3
    program = program_of(outline)
    assert_computes(program, graph)
    products = [kernel for kernel in program.kernels if any(node.op == "MatMul" for node in walk((kernel.fragment,)))]
    assert len(products) == 10 and len({kernel.fragment for kernel in products}) == 2
    origins = {name for node in walk(program.graph.roots) for name in program.graph.origins.get(node, ())}
    named = [sum(f"node of {graph.names[node]}" in origins for node in instance.operators) for instance in run.instances]
    assert named[0] > 5 and len(set(named)) == 1, "each instance's kernels come from its own nodes"


def test_what_holds_for_one_instance_s_weights_is_not_assumed_of_another_s() -> None:
    """x * 1 = x holds only in the first and in the last block."""

    def gain(weights: Weights, at: int) -> Node:
        return weights.constant(np.ones(SIZE)) if at in (0, 3) else vector(weights)

    graph = layers(4, gain)
    outline = outlined(graph, 0.2)
    assert outline.runs
    assert_computes(program_of(outline), graph)


def test_weights_that_are_equal_in_one_instance_alone_make_blocks_different() -> None:
    """The first block uses one vector twice and the others two vectors each, so rewriting all like the first would be wrong."""
    graph = layers(4)
    first = next(node for node in walk(graph.roots) if node.op == "Mul")
    bias = next(node for node in walk(graph.roots) if node.op == "Add" and node.inputs[0] is first).inputs[1]

    def build(weights: Weights, x: Node) -> Sequence[Node]:
        weights.tensors |= graph.tensors
        for at in range(4):
            hidden = apply("Mul", apply("MatMul", x, weights.matrix()), bias if at == 0 else vector(weights))
            hidden = apply("Add", hidden, bias if at == 0 else vector(weights))
            for _ in range(3):
                hidden = apply("Tanh", apply("Relu", apply("Softmax", hidden, axis=1)))
            x = apply("Add", x, hidden)
        return (x,)

    other = model(build)
    outline = outlined(other, 0.2)
    assert not outline.runs or len(outline.runs[0].instances) == 3
    assert_computes(program_of(outline), other)


def test_blocks_that_differ_in_a_number_are_not_equal() -> None:
    """Rules match single numbers (for example, a GELU's 0.5), so blocks with different numbers are different."""
    graph = layers(2, scale=0.25)
    assert not outlined(graph, 0.2).runs


@pytest.mark.parametrize("is_equal", [True, False])
def test_packed_weights_may_differ_and_stay_packed(is_equal: bool) -> None:
    """Zero points may not differ, because six random bytes that stand for them might be equal by chance."""

    def build(weights: Weights, x: Node) -> Sequence[Node]:
        for at in range(3):
            packed = weights.constant(GENERATOR.integers(0, 256, (SIZE, 1, SIZE // 2)), "uint8")
            zeros = weights.constant(np.full((SIZE, 1), 8 if is_equal else 8 + at), "uint8")
            weight = apply("DequantizeBlocks", packed, weights.constant(GENERATOR.random((SIZE, 1))), zeros, bits=4, size=SIZE)
            hidden = apply("MatMul", x, apply("Transpose", weight, perm=(1, 0)))
            for _ in range(3):
                hidden = apply("Tanh", apply("Relu", apply("Softmax", hidden, axis=1)))
            x = apply("Add", x, hidden)
        return (x,)

    graph = model(build)
    outline = outlined(graph, 0.2)
    assert bool(outline.runs) is is_equal
    assert_computes(program_of(outline), graph)
    if is_equal:
        assert len(outline.runs[0].instances) == 3
        assert any(node.op == "DequantizeBlocks" for node in walk(outline.graph.roots))


def test_blocks_are_equal_that_read_the_same_places() -> None:
    """Two blocks are equal if their operators read the same places: in the block, before it, or a weight."""
    random, equal = np.random.default_rng(5), 0
    size = TensorType("float32", (4,))
    for _ in range(200):
        weights = [make("Constant", (), attributes(digest=str(at)), size) for at in range(3)]
        known = [make("Input", (), attributes(name=f"x{at}"), size) for at in range(2)]
        places = random.integers(6, size=(3, 2))  # of weights, of values before the block, and of the block's own values
        operators: list[Node] = []
        for _ in range(2):
            block: list[Node] = []
            for picked in places:
                pool = [*weights[:2], *(known + operators)[-2:], *block, *weights][:6]
                block.append(apply("Add", *(pool[at] for at in picked)))
            operators += block
            if random.integers(2):
                places[tuple(random.integers((3, 2)))] = random.integers(6)
        if len(set(operators)) < 6:
            continue
        wiring = _Wiring.of(operators, frozenset(weights))
        instances = wiring.equal_blocks(0, 3, 2)

        def form(start: int, nodes: Sequence[Node] = operators, constants: Sequence[Node] = weights) -> list[object]:
            block = list(nodes[start : start + 3])
            outside = [operand for node in block for operand in node.inputs if operand not in block]
            places = {node: at for at, node in enumerate(dict.fromkeys((*block, *outside)))}
            return [[(places[each], each in constants) for each in node.inputs] for node in block]

        assert (len(instances) == 2) == (form(0) == form(3))
        equal += len(instances) == 2
        assert instances[0].operators == tuple(operators[:3])
        read = {operand for node in operators[:3] for operand in node.inputs if operand not in operators[:3]}
        assert {*instances[0].operands, *instances[0].constants} == read and set(instances[0].constants) <= set(weights)
    assert 5 < equal < 150


def test_what_all_blocks_read_and_what_of_them_is_an_output_stays_so() -> None:
    def build(weights: Weights, x: Node) -> Sequence[Node]:
        mask, outputs = apply("Exp", x), []
        for at in range(4):
            x = layer(weights, x, vector(weights), mask)
            outputs += [x] if at in (1, 3) else []
        return (*outputs, apply("Neg", mask))

    graph = model(build)
    outline = outlined(graph, 0.2)
    assert outline.runs
    assert_computes(program_of(outline), graph)


def test_each_kernel_of_the_outline_is_found_again_where_it_is_written() -> None:
    graph = layers(4)
    outline = outlined(graph, 0.2)
    frozen = grown(outline.graph, shipped_rules())
    selection = extract(frozen, estimate(candidates(frozen)), 1, 0.0)[0]
    of_outline, of_model = to_program(frozen, selection, outline.graph).kernels, outline.program(frozen, selection).kernels
    written = outline.written(frozen, selection)
    assert sorted(at for positions in written for at in positions) == list(range(len(of_model)))
    assert {len(positions) for positions in written} == {1, 4}
    for kernel, positions in zip(of_outline, written, strict=True):
        assert {(of_model[at].fragment, of_model[at].implementation) for at in positions} == {(kernel.fragment, kernel.implementation)}
    whole = Outline(graph, graph)
    frozen = grown(graph, ())
    selection = extract(frozen, estimate(candidates(frozen)), 1, 0.0)[0]
    assert whole.written(frozen, selection) == tuple((at,) for at in range(len(whole.program(frozen, selection).kernels)))


def test_blocks_that_are_equal_cost_and_round_as_often_as_they_are() -> None:
    outline = outlined(layers(4), 0.2)
    frozen = grown(outline.graph, shipped_rules())
    laid, uses = candidates(frozen), outline.uses(frozen)
    model = CostModel(Database.in_memory(), "here", DeviceSpeed(), errors=ErrorModel(Tolerance(1e-2), scale=1.0))
    rounding = {n: tuple(replace(c, implementation=c.implementation.in_precision("bf16")) for c in each) for n, each in laid.items()}
    once, all_blocks = model.price(rounding), model.price(rounding, uses)
    products = [number for number, each in laid.items() if any(node.op == "MatMul" for c in each for node in c.covered)]
    assert {uses.get(number, 1) for number in products} == {4}
    for number in products:
        pairs = [each for each in zip(once[number], all_blocks[number], strict=True) if each[0].cost_us < FAILED_COST_US]
        assert pairs
        for alone, together in pairs:
            assert together.cost_us == pytest.approx(4 * alone.cost_us) and together.error == pytest.approx(4 * alone.error) and alone.error


def test_two_kinds_of_blocks_are_two_runs() -> None:
    def build(weights: Weights, x: Node) -> Sequence[Node]:
        for _ in range(3):
            x = layer(weights, x, vector(weights))
        for _ in range(3):
            y = apply("MatMul", apply("Neg", apply("Abs", apply("Sigmoid", x))), weights.matrix())
            for _ in range(3):
                y = apply("Exp", apply("Sigmoid", y))
            x = apply("Add", apply("Sub", y, vector(weights)), x)
        return (x,)

    graph = model(build)
    outline = outlined(graph, 0.2)
    assert [len(run.instances) for run in outline.runs] == [3, 3]
    assert_computes(program_of(outline), graph)


@pytest.mark.parametrize("is_root", [False, True])
def test_a_value_inside_of_a_block_that_is_read_after_all_blocks_is_an_output(is_root: bool) -> None:
    """The value is read by the second run of blocks or is an output of the model; its own run reads it only inside its block."""

    def build(weights: Weights, x: Node) -> Sequence[Node]:
        inner = []
        for _ in range(3):
            x = layer(weights, x, vector(weights))
            inner.append(x.inputs[1])
        for at in range(3):
            both = x if is_root else apply("Add", x, inner[at])
            y = apply("MatMul", apply("Neg", apply("Abs", apply("Sigmoid", both))), weights.matrix())
            for _ in range(4):
                y = apply("Exp", apply("Sigmoid", y))
            x = apply("Add", apply("Sub", y, vector(weights)), x)
        return (x, *inner) if is_root else (x,)

    graph = model(build)
    outline = outlined(graph, 0.2)
    assert len(outline.runs) == 2 and len(outline.runs[0].outputs) == 2
    assert_computes(program_of(outline), graph)


def test_images_do_not_cross_a_border() -> None:
    """Image axes are kept in several orders, and a border between blocks would fix one of them."""
    x = make("Input", (), attributes(name="x"), TensorType("float32", (1, 2, 5, 5)))
    y = x
    for _ in range(4):
        hidden = y
        for _ in range(4):
            hidden = apply("Tanh", apply("Relu", apply("Exp", hidden)))
        y = apply("Add", y, hidden)
    assert not outlined(Graph("m", (x,), (("y", y),), {}), 0.2).runs


@pytest.mark.parametrize("share", [0.2, 0.95])
def test_a_model_without_enough_to_save_is_searched_as_it_is(share: float) -> None:
    graph = layers(1) if share < 0.5 else layers(5)
    outline = outlined(graph, share)
    assert outline.graph is graph and not outline.runs
    assert_computes(program_of(outline), graph)


class CountedReads(dict[Node, tuple[str, ...]]):
    """Names by node that count how often they are read."""

    count = 0

    def get(self, *arguments: Any) -> Any:
        self.count += 1
        return super().get(*arguments)


def test_a_block_s_names_are_read_once_an_instance() -> None:
    """The names of a block are read once per instance.

    Regression: an unrolled scan has blocks of hundreds of nodes, and reading all names for each node took a third of a search.
    """
    graph = layers(5)
    origins = CountedReads(graph.origins)
    graph = replace(graph, origins=origins)
    outline = outlined(graph, 0.2)
    before = origins.count
    program_of(outline)
    assert 0 < origins.count - before <= 3 * len(list(walk(graph.roots)))


def test_every_node_of_the_outline_knows_the_model_s_nodes() -> None:
    graph = layers(4)
    outline = outlined(graph, 0.2)
    products = [node for node in walk(outline.graph.roots) if node.op == "MatMul"]
    originals = [outline.originals(node) for node in products]
    assert {node for each in originals for node in each} == {node for node in walk(graph.roots) if node.op == "MatMul"}
    assert all(len(each) == 4 for each in originals)


def test_a_class_of_a_block_is_used_once_an_instance() -> None:
    outline = outlined(layers(4), 0.2)
    frozen = grown(outline.graph, shipped_rules())
    uses = outline.uses(frozen)
    for number, node in frozen.source.items():
        is_inside = node.op not in LEAVES and len(outline.originals(node)) == 4
        assert uses.get(number, 1) == (4 if is_inside or node in outline.parameters else 1) or node.op == "Constant"
    assert not Outline(outline.graph, outline.graph).uses(frozen)


def test_no_kernel_joins_a_block_with_what_comes_after_it() -> None:
    """A block's product and a product of its result are not joined into a batched one: the program written out would read itself."""

    def build(weights: Weights, x: Node) -> Sequence[Node]:
        x = apply("Sigmoid", x)
        for _ in range(4):
            x = layer(weights, x, vector(weights))
        return (apply("Exp", apply("MatMul", x, weights.matrix())),)

    graph = model(build)
    outline = outlined(graph, 0.1)
    frozen = grown(outline.graph, ())
    assert len(outline.runs) == 1 and outline.in_order(frozen) is frozen, "the graph itself is in order"
    reading = [
        [n for n, nodes in frozen.classes.items() if any(e.op == "MatMul" and _reads(frozen, e, leaves) for e in nodes)]
        for leaves in (outline.parameters, outline.results)
    ]
    inside, after = reading[0][0], reading[1][0]
    stacked = max(frozen.classes) + 1
    both = TensorType("float32", (2 * SIZE, SIZE))

    def half(at: int) -> ENode:
        bounds = attributes(starts=(at * SIZE, 0), ends=((at + 1) * SIZE, SIZE), steps=(1, 1))
        return ENode("Slice", bounds, (stacked,))

    operands = tuple(frozen.classes[number][0].children[0] for number in (inside, after))
    classes = {**frozen.classes, stacked: (ENode("Concat", attributes(axis=0), operands),)}
    classes |= {number: (*frozen.classes[number], half(at)) for at, number in enumerate((inside, after))}
    joined = replace(frozen, classes=classes, types={**frozen.types, stacked: both})
    assert outline.in_order(joined).classes == frozen.classes
    forced = {number: tuple(c for c in each if stacked in c.operands) or each for number, each in candidates(joined).items()}
    (selection,) = extract(joined, estimate(forced), 1, 0.0)
    with pytest.raises(ExtractError, match="from itself"):
        outline.program(joined, selection)
    alone = replace(joined, classes={**classes, stacked: (ENode("Concat", attributes(axis=0), operands[:1] * 2),)})
    kept = outline.in_order(alone).classes
    assert half(0) in kept[inside] and half(1) not in kept[after], "a block may read itself twice, and nothing outside may read it"


def test_what_a_block_computes_and_is_known_before_it_serves_both() -> None:
    """A value outside the block may use a value that the model computes only inside it, if a rule computes that value outside as well."""
    graph = layers(4)
    outline = outlined(graph, 0.1)
    frozen = grown(outline.graph, ())
    (before,) = (n for n, nodes in frozen.classes.items() if any(e.op == "Sigmoid" for e in nodes))
    inside = next(n for n, nodes in frozen.classes.items() if any(e.op == "Softmax" for e in nodes))
    (given,) = frozen.classes[before][0].children
    early = ENode("Abs", (), (given,), "some_rule")
    classes = {**frozen.classes, inside: (*frozen.classes[inside], early), before: (ENode("Sqrt", (), (inside,)),)}
    kept = outline.in_order(replace(frozen, classes=classes)).classes
    assert kept[inside] == (early,) and kept[before] == classes[before]
    assert {number: nodes for number, nodes in kept.items() if number not in (inside, before)} == {
        number: nodes for number, nodes in frozen.classes.items() if number not in (inside, before)
    }, "the block still reads it"
    ordered = replace(frozen, classes=kept)
    program = outline.program(ordered, extract(ordered, estimate(candidates(ordered)), 1, 0.0)[0])
    assert [node.op for node in walk(program.graph.roots)].count("Abs") == 1, "it is the same for all blocks"


def _reads(frozen: FrozenEGraph, node: ENode, leaves: Mapping[Node, object]) -> bool:
    """Return whether an e-node reads one of these leaves."""
    below = {(each.op, each.attributes) for child in node.children for each in frozen.classes[child]}
    return any((leaf.op, leaf.attributes) in below for leaf in leaves if leaf.op == "Input")
