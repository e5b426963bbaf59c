"""Texts of the language: printed values parse to the same values, and errors name the line and column."""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from egraph.engine.saturate import Limits, saturate
from egraph.errors import TypeMismatch
from egraph.extract import extract
from egraph.onnx import importer
from egraph.optimize.search import plain_program
from egraph.rules import RULES
from egraph.tensor import TUPLE, ENode, Graph, Node, TensorType, attributes, format_fragment, make, placeholder
from egraph.tensor.ops import OPS, OpSpec, apply
from egraph.tensor.text import (
    TextError,
    format_egraph,
    format_graph,
    format_program,
    format_selection,
    parse_egraph,
    parse_fragment,
    parse_graph,
    parse_program,
    parse_selections,
)  # fmt: skip
from lower.candidates import candidates
from lower.cost.model import CostModel, without_twins
from lower.roofline import DeviceSpeed
from runtime.profile import Database
from tests.conftest import GOLDEN
from tests.support.graphs import random_model


def sample(spec: OpSpec, random: Random) -> Node:
    shapes, values = spec.sample(random)
    dtypes = spec.sample_dtypes or ("float32",) * len(shapes)
    types = [TensorType(dtype, shape) for dtype, shape in zip(dtypes, shapes, strict=True)]
    leaves = [placeholder(i, type, constant=random.random() < 0.3) for i, type in enumerate(types)]
    try:
        return apply(spec.name, *leaves, **values)
    except TypeMismatch:
        reject()  # a drawn expression may read only padding


@pytest.mark.parametrize("spec", OPS.values(), ids=lambda spec: spec.name)
@given(seed=st.integers(0, 1 << 32))
def test_every_operator_prints_and_parses(spec: OpSpec, seed: int) -> None:
    node = sample(spec, Random(seed))
    text = format_fragment(node)
    assert parse_fragment(text) is node
    assert format_fragment(parse_fragment(text)) == text


UNARY = ("Relu", "Exp", "Tanh", "Neg")
BINARY = ("Add", "Mul", "Sub", "Max")


@given(steps=st.lists(st.tuples(st.sampled_from(UNARY + BINARY), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=12))
def test_fragments_that_share_values_print_and_parse(steps: list[tuple[str, int, int]]) -> None:
    type = TensorType("float32", (2, 3))
    values = [placeholder(0, type), placeholder(1, type, constant=True)]
    for op, first, second in steps:
        operands = [values[-1 - first % len(values)], values[-1 - second % len(values)]]
        values.append(apply(op, *operands[: 1 if op in UNARY else 2]))
    text = format_fragment(values[-1])
    assert parse_fragment(text) is values[-1] and text.count("\n") == 0


VALUES = st.recursive(
    st.integers() | st.floats() | st.booleans() | st.text() | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)
NAMED_DIMS = ["batch", "past + 1", "/model/Gather_output_0_1", "?", "1", "a,b", "a]", "'"]
DIMS = st.integers(1, 9) | st.text(min_size=1) | st.sampled_from(NAMED_DIMS)
TYPES = st.builds(
    TensorType,
    st.sampled_from(["float32", "bfloat16", "int64", "bool", "string", "seq(float32)", "map(int64,float32)", "undefined"]),
    st.none() | st.lists(DIMS, max_size=3).map(tuple),
)


@given(given_attributes=st.dictionaries(st.sampled_from("abc"), VALUES), type=TYPES, result=TYPES)
def test_opaque_values_print_and_parse(given_attributes: dict[str, object], type: TensorType, result: TensorType) -> None:
    """Opaque values print and parse with any attribute and any dynamic size: floats by their bits, sizes by their names."""
    x = make("Input", (), attributes(name="x"), type)
    opaque = make("Opaque", (x,), attributes(**given_attributes), TensorType("tuple", None))  # type: ignore[arg-type]
    y = make("OpaqueOutput", (opaque,), attributes(index=0), result)
    graph = Graph("g", (x,), (("y", y),), {}, {y: ("a node",)}, names={y: "it's"})
    again = parse_graph(format_graph(graph))
    assert again == graph and again.roots[0] is y and format_graph(again) == format_graph(graph)


def same_graphs(one: Graph, other: Graph) -> bool:
    told = [(g.name, g.inputs, g.outputs, g.origins, g.context, g.names, sorted(g.tensors)) for g in (one, other)]
    return told[0] == told[1] and all(one.tensors[key].tobytes() == other.tensors[key].tobytes() for key in one.tensors)


@pytest.mark.parametrize("seed", range(12))
def test_models_programs_and_e_graphs_print_and_parse(seed: int) -> None:
    graph = importer.load(random_model(Random(seed), 12)).graph
    text = format_graph(graph)
    again = parse_graph(text, graph.tensors)
    assert same_graphs(again, graph) and format_graph(again) == text
    without = parse_graph(text)
    assert format_graph(without) == text, "small constants carry their data"
    program = plain_program(graph, CostModel(Database.in_memory(), "", DeviceSpeed()), seed=0)
    text = format_program(program)
    read = parse_program(text, graph.tensors)
    assert read.kernels == program.kernels and read.cost_us == program.cost_us and same_graphs(read.graph, program.graph)
    assert format_program(read) == text
    frozen = saturate(graph, RULES, Limits(e_nodes=400, iterations=4)).frozen
    text = format_egraph(frozen, graph)
    copied = parse_egraph(text, graph)
    assert copied == frozen and list(copied.classes) == list(frozen.classes) and format_egraph(copied, graph) == text
    assert repr(copied.classes) == repr(frozen.classes), "reasons too, which do not count in a comparison"


def test_selections_print_and_parse() -> None:
    graph = importer.load(random_model(Random(3), 12)).graph
    frozen = saturate(graph, RULES, Limits(e_nodes=400, iterations=4)).frozen
    model = CostModel(Database.in_memory(), "here", DeviceSpeed())
    selections = extract(frozen, model.price(without_twins(model, candidates(frozen))), 3, 1.0, 0)
    text = "".join(map(format_selection, selections))
    again = parse_selections(text, frozen)
    assert len(again) == len(selections) and "".join(map(format_selection, again)) == text


def test_the_profile_database_keeps_its_keys() -> None:
    """Fragments keep the texts under which measured times are stored.

    The golden file holds every operator, shared values, bytes and dynamic sizes.
    """
    lines = (GOLDEN / "fragments.txt").read_text().splitlines()
    assert [format_fragment(parse_fragment(line)) for line in lines] == lines


GRAPH = """graph 'g' ir_version=8 opsets=(('', 13),) {
  %0 = input 'x' : float32[2,3]
  %1 = constant 'ab' : float32[3] data=(0.1, -0.0, nan)
  %2 = Add(%0, %1) : float32[2,3] origins=('add', 'more') name='sum'
  output 'y' = %2
}
"""
EGRAPH = """egraph roots=(@0,) root_rules=(('a_rule', 'another'),) {
  @0 : float32[2,3] source=%2
    Relu(@1)
    Max(@1, @1) rule='max_of_equals' rules=('max_of_equals',) steps=('max_of_equals at Relu',)
  @1 : float32[2,3]
    Input{name='x'}()
}
"""
PROGRAM = GRAPH.replace("graph 'g'", "program 'g' cost_us=3.5 rules=('a_rule',)").replace(
    "  output",
    "  kernel %2 = Add(%0:float32[2,3], $1:float32[3])(%0, %1) by='tvm' cost_us=3.5 rules=('a_rule',) steps=('first', 'second')\n  output",
)
CHOSEN = "selection method='greedy' optimal=False seconds=0.5 cost_us=1.5 {\n  @0 = Relu(%0:float32[2,3])(@1) by='tvm' cost_us=1.5\n}\n"


def test_texts_written_by_hand_print_and_parse() -> None:
    graph = parse_graph(GRAPH)
    assert graph.tensors["ab"].tobytes() == np.array([0.1, -0.0, np.nan], np.float32).tobytes()
    assert graph.origins == {graph.roots[0]: ("add", "more")} and graph.context.opsets == (("", 13),)
    assert format_graph(graph) == GRAPH and format_program(parse_program(PROGRAM)) == PROGRAM
    assert format_egraph(parse_egraph(EGRAPH, graph), graph) == EGRAPH
    selections = parse_selections(CHOSEN, parse_egraph(EGRAPH, graph))
    assert "".join(map(format_selection, selections)) == CHOSEN and selections[0].chosen[0].covered == (ENode("Relu", (), (1,)),)


def test_the_documented_graph_prints_and_parses() -> None:
    page = (GOLDEN.parent.parent / "docs" / "text.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"```\n(graph .*?)```", page, re.DOTALL)
    assert format_graph(parse_graph(text)) == text


def test_types_may_be_left_out_and_values_be_nested() -> None:
    short = "graph 'g' { %x = input 'x' : float32[2,3] %c = constant 'ab' : float32[3] output 'y' = Add(Relu(%x), %c) }"
    assert parse_graph(short).roots[0] is apply("Add", apply("Relu", (g := parse_graph(short)).inputs[0]), g.roots[0].inputs[1])


@pytest.mark.parametrize(
    ("old", "new", "what", "at"),
    [
        ("Add(%0, %1)", "Add(%0 %1)", "expected ',' or ')'", "%1) : float32[2,3]"),
        ("Add(%0", "Adds(%0", "expected an operator; there is no 'Adds', did you mean Add?", "Adds(%0"),
        ("Add(%0, %1)", "Add(%0, %3)", "there is no value %3 above", "%3) :"),
        ("1) : float32[2,3]", "1) : float32[3,3]", "Add makes float32[2,3] here, not float32[3,3]", "Add("),
        ("Add(%0, %1)", "Add{axis=1}(%0, %1)", "attribute", "Add{"),
        ("Add(%0, %1)", "MatMul(%0, %1)", "MatMul: ", "MatMul("),
        ("Add(%0, %1) : float32[2,3]", "OpaqueOutput{index=0}(%0)", "expected the type of OpaqueOutput", "origins="),
        ("float32[3]", "float32[3", "expected ',' or ']'", "data="),
        ("(0.1, ", "(0.1, 'b', ", "the data is none of float32[3]", "%1 ="),
        ("origins=('add', 'more')", "origins=('add', 3)", "expected a string in quotes", "3)"),
        ("name='sum'", "names='sum'", "expected one of name", "names="),
        ("  %2 =", "  %1 =", "%1 is defined twice", "%1 = Add"),
        ("  output", "  outputs", "expected %NAME = VALUE, output or '}'", "outputs"),
        ("}\n", "", "expected %NAME = VALUE, output or '}'", ""),
        ("}\n", "}\ngraph", "expected the end", "graph"),
        ("-0.0", "-zero", "expected a number, True, False, a string, bytes or a tuple", "-zero"),
    ],
)  # fmt: skip
def test_a_wrong_text_is_refused_by_line_and_column(old: str, new: str, what: str, at: str) -> None:
    assert GRAPH.count(old) == 1 or old == "}\n"
    text = new.join(GRAPH.rsplit(old, 1))
    with pytest.raises(TextError) as caught:
        parse_graph(text, name="g.txt")
    place = re.match(r"g\.txt, line (\d+), column (\d+): (.*)", caught.value.where)
    assert place and what in caught.value.what
    line, column = int(place[1]), int(place[2])
    rest = [*text.split("\n"), ""][line - 1][column - 1 :]
    assert rest.startswith(at) and rest.startswith(place[3] if at else "")


@pytest.mark.parametrize(
    ("parse", "text", "old", "new", "told"),
    [
        (parse_program, PROGRAM, "(%0, %1) by", "(%1, %0) by", "the kernel computes another value"),
        (parse_program, PROGRAM, "(%0, %1) by", "(%0) by", "reads more operands than the 1"),
        (parse_program, PROGRAM, "by='tvm' cost_us=3.5", "by='tvm' cost_us=3", "expected a number with a point"),
        (parse_egraph, EGRAPH.replace(" source=%2", ""), "Relu(@1)", "Relu(@7)", "there is no class @7"),
        (parse_egraph, EGRAPH.replace(" source=%2", ""), " roots=(@0,)", " roots=(@9,)", "there is no class @9"),
        (parse_egraph, EGRAPH, "(('a_rule', 'another'),)", "(('a_rule',), ())", "expected the rules of 1 roots"),
        (parse_egraph, EGRAPH.replace(" source=%2", ""), "  @1 : float32[2,3]", "  @1 : float32[2,4]", "Relu makes float32[2,4] here"),
        (parse_egraph, EGRAPH, "@1 : ", "@0 : ", "there is no value %2 above"),
    ],
)  # fmt: skip
def test_a_text_that_says_what_cannot_be_is_refused(parse: Callable[[str], object], text: str, old: str, new: str, told: str) -> None:
    assert text.count(old) == 1
    with pytest.raises(TextError, match=re.escape(told)):
        parse(text.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("Relu(%0", "Exp(%0", "does not consist of e-nodes of class @0"),
        ("(@1)", "(@0)", "does not consist of e-nodes of class @0"),
        ("@0 = Relu(%0:float32[2,3])(@1)", "@0 = Max(%0:float32[2,3], %1:float32[2,3])(@1, @0)", "does not consist of"),
        ("(@1)", "(@4)", "there is no class @4"),
        ("  @0 = Relu(%0:float32[2,3])(@1) by='tvm' cost_us=1.5\n", "", "no kernel computes @0"),
    ],
)
def test_a_selection_cannot_bring_in_what_the_e_graph_does_not_say(old: str, new: str, told: str) -> None:
    frozen = parse_egraph(EGRAPH, parse_graph(GRAPH))
    assert CHOSEN.count(old) == 1
    with pytest.raises(TextError, match=told):
        parse_selections(CHOSEN.replace(old, new), frozen)


def test_a_selection_that_computes_a_class_from_itself_is_refused() -> None:
    frozen = parse_egraph("egraph roots=(@0,) { @0 : float32[2] Neg(@1) @1 : float32[2] Neg(@0) }")
    kernels = "@0 = Neg(%0:float32[2])(@1) @1 = Neg(%0:float32[2])(@0)"
    with pytest.raises(TextError, match="or only from itself"):
        parse_selections(f"selection {{ {kernels} }}", frozen)


def test_nan_is_one_attribute() -> None:
    x = placeholder(0, TensorType("float32", (2,)))
    first, second = (make("Opaque", (x,), attributes(a=float("nan")), TUPLE) for _ in range(2))
    assert first is second is parse_fragment(format_fragment(first))
    assert apply("Clip", x, min=-0.0, max=1.0) is not apply("Clip", x, min=0.0, max=1.0)
