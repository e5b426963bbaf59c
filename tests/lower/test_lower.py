"""Compare candidates of an e-graph, and whole artefacts, with the float64 reference."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest

from egraph.errors import LowerError
from egraph.tensor import bind, placeholders
from egraph.tensor.ops import apply
from lower.candidates import candidates
from lower.compile import compile_program
from tests.support.implementations import PRODUCT
from tests.support.lowering import GRAPHS, Model, attention, check, choose, concatenation, freeze


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("prefer", ["onednn", "tvm"])
def test_compiled_programs_agree_with_the_reference(name: str, prefer: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]()
    check(graph, choose(graph, prefer), tmp_path / "artefact")


@pytest.mark.parametrize("name", GRAPHS)
def test_what_nothing_else_runs_onnxruntime_runs(name: str, tmp_path: Path) -> None:
    graph = GRAPHS[name]()
    plan = check(graph, choose(graph, "opaque", lambda fragment: "nothing is generated here"), tmp_path / "artefact")
    assert {step.kind for step in plan.steps} <= {"onednn", "onnxruntime", "copy"}
    neighbours = [(a.kind, b.kind) for a, b in itertools.pairwise(plan.steps)]
    assert ("onnxruntime", "onnxruntime") not in neighbours  # adjacent onnxruntime steps become one model


def test_a_kernel_without_an_exporter_is_an_error_that_says_so(tmp_path: Path) -> None:
    m = Model()
    graph = m.graph(apply("Floor", m.input(2, 3)))
    program = choose(graph, "opaque", lambda fragment: "nothing is generated here")
    with pytest.raises(LowerError, match="no exporter"):
        compile_program(program, tmp_path / "artefact")


@pytest.mark.parametrize(
    ("prefer", "named"),
    [("tvm", [("first",), ("last", "relu", "bias", "again")]), ("onednn", [("relu", "bias", "again", "first"), ("last",)])],
)
def test_every_step_names_the_nodes_that_it_computes(prefer: str, named: list[tuple[str, ...]], tmp_path: Path) -> None:
    """A fused kernel lists names from its result down to its operands. The operands belong to other steps."""
    m = Model()
    product = apply("MatMul", m.input(5, 7), m.weight(7, 9))
    sums = apply("Add", product, m.weight(9))
    root = apply("MatMul", apply("Relu", sums), m.weight(9, 4))
    names = {product: ("first",), sums: ("bias", "again"), root.inputs[0]: ("relu",), root: ("last",)}
    program = choose(dataclasses.replace(m.graph(root), origins=names), prefer)
    assert [step.source_nodes for step in compile_program(program, tmp_path).steps] == named


def test_attention_is_laid_without_copies() -> None:
    graph = attention()
    frozen, nodes = freeze(graph)
    laid = candidates(frozen)
    scores = next(i for i, n in nodes.items() if n.op == "MatMul" and n.type.sizes == (2, 4, 6, 6))
    folded = [one for one in laid[scores] if all(nodes[i].op == "Reshape" for i in one.operands)]
    assert [one.implementation for one in folded] == [PRODUCT]
    merged = next(i for i, n in nodes.items() if n.op == "Transpose" and n.inputs[0].op == "MatMul")
    assert any(one.implementation == PRODUCT and one.covered[0].op == "Transpose" for one in laid[merged])


def test_every_value_has_a_candidate_and_constants_have_none() -> None:
    for build in GRAPHS.values():
        frozen, nodes = freeze(build())
        laid = candidates(frozen, supports=lambda fragment: "nothing is generated here")
        for number, node in nodes.items():
            assert bool(laid.get(number)) == (number not in frozen.constants and node.op != "Input"), node
            for one in laid.get(number, ()):
                indices = sorted({n.integer("index") for n in placeholders(one.fragment)})
                assert indices == list(range(len(one.operands)))
                assert bind(one.fragment, [nodes[i] for i in one.operands]) is node


def test_the_number_of_candidates_grows_linearly() -> None:
    def chain(length: int) -> int:
        m = Model()
        x = m.input(1, 4, 6, 6)
        for _ in range(length):
            x = apply("Relu", apply("Add", m.conv(x, 4, 3), x))
        return sum(map(len, candidates(freeze(m.graph(x))[0]).values()))

    short, middle, long = chain(4), chain(8), chain(16)
    assert long - middle <= 2.2 * (middle - short)


def test_equal_programs_give_equal_bytes(tmp_path: Path) -> None:
    graph = concatenation()
    for name in ("one", "two"):
        compile_program(choose(graph, "onednn"), tmp_path / name)
    files = sorted(p.name for p in (tmp_path / "one").iterdir())
    assert files == ["kernels.so", "manifest.json", "plan.json", "weights.safetensors"]
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
