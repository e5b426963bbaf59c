"""Test the candidates of one e-class: which tiles others replace, and how many of a library's are kept."""

from __future__ import annotations

from egraph.tensor import ENode, FrozenEGraph, Implementation, Node, Target, TensorType, attributes, placeholder
from egraph.tensor.ops import apply
from lower.calls.tiles import BEAM, Matcher, library_tiles
from lower.candidates import needed_sources
from lower.candidates.eoperator_tiles import eoperator_tiles
from lower.candidates.tile import Tiling, contents
from lower.targets import default_target, lowering_for
from tests.support.lowering import Model, freeze

SQUARE = TensorType("float32", (4, 4))
HOST = Target("cpu")


def leaf(name: str) -> ENode:
    return ENode("Input", attributes(name=name), ())


def test_a_product_is_preferred_to_the_power_that_it_equals() -> None:
    x, two = placeholder(0, SQUARE), placeholder(1, TensorType("float32", ()), constant=True)
    power = apply("Pow", x, two)
    assert contents(power) == (1, 1, frozenset({0})) and contents(apply("Mul", x, x)) == (1, 0, frozenset({0}))
    nodes = (ENode("Pow", power.attributes, (0, 1)), ENode("Mul", (), (0, 0)))
    constant = ENode("Constant", attributes(digest="two"), ())
    types = {0: SQUARE, 1: TensorType("float32", ()), 2: SQUARE}
    frozen = FrozenEGraph({0: (leaf("x"),), 1: (constant,), 2: nodes}, types, (2,), frozenset({1}), {})
    tiles = list(eoperator_tiles(Tiling(frozen, HOST), lambda fragment: None, Implementation.parse("tvm", HOST)))
    assert [(number, tile.fragment.op) for number, tile in tiles] == [(2, "Mul")]


def test_a_class_keeps_a_few_tiles_of_a_librarys_implementation() -> None:
    count = BEAM + 3
    classes: dict[int, tuple[ENode, ...]] = {number: (leaf(f"x{number}"),) for number in range(count + 1)}
    classes[count + 1] = tuple(ENode("MatMul", (), (number, count)) for number in range(count))
    frozen = FrozenEGraph(classes, dict.fromkeys(classes, SQUARE), (count + 1,), frozenset(), {})
    names = {"MatMul": ("first.matmul", "second.matmul")}
    matcher = Matcher(lambda op: names.get(op, ()), lambda fragment, implementation: None)
    kept = [tile.implementation.text for _, tile in library_tiles(Tiling(frozen, HOST), matcher)]
    assert sorted(kept) == ["first.matmul"] * BEAM + ["second.matmul"] * BEAM


def test_sources_are_those_of_the_libraries_that_compute_something() -> None:
    model = Model()
    x = model.input(64, 96)
    scores = apply("Softmax", apply("MatMul", x, apply("Transpose", x, perm=(1, 0))), axis=1)

    def names(*outputs: Node) -> set[str]:
        return {source.stem for source in needed_sources(freeze(model.graph(*outputs))[0], default_target())}

    assert names(apply("Relu", x)) == set()
    assert names(apply("MatMul", x, model.weight(96, 32))) == {"products"}
    assert "attention" in names(apply("MatMul", scores, x))


def test_sources_of_implementations_are_named_once() -> None:
    texts = ("products.matmul", "onednn.matmul", "tvm", "attention.attention", "products.matmul")
    target_lowering = lowering_for(default_target())
    implementations = [target_lowering.implementation(text) for text in texts]
    assert [source.stem for source in target_lowering.sources(implementations)] == ["products", "attention"]
