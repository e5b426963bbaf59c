"""Groups of operators that one operator computes are found on one level, proved, joined to every member's class, and reported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from egraph.derive.derivation import GroupRule
from egraph.derive.matching.proposals import LARGEST_GROUP, RULES, groups
from egraph.derive.registry import DERIVATIONS
from egraph.engine.saturate import Limits, Saturation, saturate
from egraph.extract import extract, to_program
from egraph.inspect.derivation import derivation_rule, explain_derivation
from egraph.inspect.match import constants
from egraph.optimize.admission import choose_derivations, choose_rules, list_rules
from egraph.optimize.derivations import Deriver
from egraph.optimize.estimated import estimate, open_program, shipped_rules
from egraph.optimize.folding import Folder
from egraph.optimize.gate import Gate, prove
from egraph.rules.merges import RULES as MERGES
from egraph.tensor import FrozenEGraph, Graph, Kernel, Node, TensorType, attributes, make, placeholder, walk
from egraph.tensor.expr.functions import PRIME
from egraph.tensor.ops import apply
from egraph.tensor.ops.reference import evaluate
from egraph.tolerance import Tolerance
from lower.candidates import candidates
from runtime.profile import Database
from tests.support.implementations import PRODUCT

BY_NAME = {rule.name: rule for rule in RULES}


def entry(name: str, *shape: int) -> Node:
    return make("Input", (), attributes(name=name), TensorType("float32", shape))


def weight(name: str, *shape: int) -> Node:
    return make("Constant", (), attributes(digest=name), TensorType("float32", shape))


def conv(data: Node, weights: Node, pads: tuple[int, ...], group: int = 1, layout: str = "NCHW", stride: int = 1) -> Node:
    return apply("Conv", data, weights, strides=(stride, stride), dilations=(1, 1), pads=pads, group=group, layout=layout)


def graph(*roots: Node) -> Graph:
    generator = np.random.default_rng(3)
    nodes = tuple(walk(roots))
    tensors = {
        n.string("digest"): generator.standard_normal(n.type.sizes).astype(np.float32) for n in nodes if n.op == "Constant"
    }
    return Graph("net", tuple(n for n in nodes if n.op == "Input"), tuple((f"y{k}", root) for k, root in enumerate(roots)), tensors)


def global_block(layout: str = "NCHW") -> tuple[Node, ...]:
    """Return GCN's block: k x 1 then 1 x k, beside 1 x k then k x 1. Only the first convolutions of the branches share an input."""
    x = entry("x", *((1, 6, 9, 9) if layout == "NCHW" else (1, 9, 9, 6)))
    left = conv(conv(x, weight("a", 4, 6, 5, 1), (2, 0, 2, 0), 1, layout), weight("b", 4, 4, 1, 5), (0, 2, 0, 2), 1, layout)
    right = conv(conv(x, weight("c", 4, 6, 1, 5), (0, 2, 0, 2), 1, layout), weight("d", 4, 4, 5, 1), (2, 0, 2, 0), 1, layout)
    return (apply("Add", left, right),)


def branches() -> tuple[Node, ...]:
    return tuple(conv(entry(f"x{k}", 1, 4, 6, 6), weight(f"w{k}", 3, 4, 3, 3), (1, 1, 1, 1)) for k in range(3))


def products() -> tuple[Node, ...]:
    return tuple(apply("MatMul", entry(f"x{k}", 5, 4), weight(f"w{k}", 4, 3)) for k in range(2))


def grouped() -> tuple[Node, ...]:
    x = entry("x", 1, 4, 6, 6)
    return tuple(conv(x, weight(f"w{k}", 2 * k + 2, 2, 3, 3), (1, 1, 1, 1), group=2) for k in (1, 2))


def twins() -> tuple[Node, ...]:
    """Return the same layer on two inputs, one of which is a batch of two."""
    shared = weight("w", 3, 4, 3, 3)
    return tuple(conv(entry(f"x{k}", k, 4, 6, 6), shared, (1, 1, 1, 1)) for k in (1, 2))


def rows() -> tuple[Node, ...]:
    shared = weight("w", 4, 3)
    return tuple(apply("MatMul", entry(f"x{k}", k, 5, 4), shared) for k in (1, 2))


def transposed(shared: str) -> tuple[Node, ...]:
    """Return transposed convolutions that share nothing, their weights, or their input."""
    values = attributes(strides=(2, 2), dilations=(1, 1), pads=(0, 0, 0, 0), output_padding=(0, 0), group=1, layout="NCHW")
    data = [entry("x" if shared == "x" else f"x{k}", 1, 4, 5, 5) for k in range(2)]
    weights = [weight("w" if shared == "w" else f"w{k}", 4, 3, 3, 3) for k in range(2)]
    return tuple(apply("ConvTranspose", x, w, attributes=values) for x, w in zip(data, weights, strict=True))


def contractions() -> tuple[Node, ...]:
    """Return products as expressions: rows of a tensor of three axes times a transposed matrix."""
    text = "{i0<4,i1<6,i2<5} sum(r0<3) ($0[i1,i0,r0] * $1[i2,r0])"
    return tuple(apply("Expression", entry(f"x{k}", 6, 4, 3), entry(f"y{k}", 5, 3), text=text) for k in range(3))


CASES: dict[str, tuple[tuple[Node, ...], str, int]] = {
    "GCN": (global_block(), "merge_conv_taps", 2),
    "GCN, channels last": (global_block("NHWC"), "merge_conv_taps", 2),
    "branches": (branches(), "stack_convs", 3),
    "products": (products(), "stack_matmuls", 2),
    "grouped filters": (grouped(), "merge_grouped_convs", 2),
    "twins": (twins(), "merge_batches", 2),
    "rows": (rows(), "merge_batches", 2),
    "transposed": (transposed(""), "merge_expressions", 2),
    "transposed, one weight": (transposed("w"), "merge_expressions", 2),
    "transposed, one input": (transposed("x"), "merge_expressions", 2),
    "expressions": (contractions(), "merge_expressions", 3),
}


def grown(roots: tuple[Node, ...], rules: Sequence[GroupRule] = RULES, deriver: Deriver | None = None) -> Saturation:
    deriver = deriver or Deriver(tuple(rules))
    return saturate(graph(*roots), (), Limits(), derivations=deriver.open())


def offered(*roots: Node) -> dict[str, list[int]]:
    fixed = constants(graph(*roots))
    found = {rule.name: [len(group) for group in groups(rule, walk(roots), fixed)] for rule in RULES}
    return {name: sizes for name, sizes in found.items() if sizes}


def by_rule(frozen: FrozenEGraph, name: str) -> set[str]:
    return {node.op for nodes in frozen.classes.values() for node in nodes if node.rule == name}


@pytest.mark.parametrize("case", CASES)
def test_a_group_is_offered_once_proved_and_joined_to_every_member(case: str) -> None:
    roots, name, count = CASES[case]
    assert offered(*roots) == {name: [count]}
    result = grown(roots)
    (told,) = (one for one in result.statistics if one.matches)
    assert (told.rule, told.matches, told.unions, told.built, told.refusals) == (name, 1, 1, 1, ())
    joined = [nodes for nodes in result.frozen.classes.values() if {node.rule for node in nodes} == {"", name}]
    assert len(joined) == count
    assert all(nodes[0].op in BY_NAME[name].operators for nodes in joined)


@pytest.mark.parametrize("case", CASES)
def test_programs_of_groups_compute_what_their_members_do(case: str) -> None:
    roots, name, _ = CASES[case]
    nodes = tuple(walk(roots))
    generator = np.random.default_rng(2)
    leaves = {n: generator.integers(0, PRIME, n.type.sizes) for n in nodes if n.op in ("Input", "Constant")}
    (members,) = groups(BY_NAME[name], nodes, constants(graph(*roots)))
    programs = BY_NAME[name].merge(members)
    assert programs is not None
    costly = {n for n in walk(programs) if n.op in ("Conv", "ConvTranspose", "MatMul")}
    assert len(costly) == 1, "all share one costly operator"
    for one, other in zip(evaluate(members, leaves, "prime"), evaluate(programs, leaves, "prime"), strict=True):
        assert np.array_equal(one, other)


def test_what_depends_on_each_other_is_not_offered() -> None:
    square = apply("MatMul", entry("x", 4, 4), weight("a", 4, 4))
    assert offered(apply("MatMul", square, weight("b", 4, 4))) == {}


def test_expressions_that_no_operator_computes_are_left_apart() -> None:
    """Expressions are not merged if no operator computes the merged one.

    Two bands form a band of a larger batch, which no library provides either. Expressions with different texts form no group.
    """
    text = "{i0<6,i1<3} sum(r0<4) [0<=i0+i1-1, i0+i1-1<6 ? ($0[i0,r0] * $1[i0+i1-1,r0]) : 0]"
    bands = [apply("Expression", entry(f"a{k}", 6, 4), entry(f"b{k}", 6, 4), text=text) for k in range(2)]
    assert offered(*bands) == {"merge_expressions": [2]} and BY_NAME["merge_expressions"].merge(bands) is None
    assert BY_NAME["merge_expressions"].merge((bands[0], bands[0])) is None
    other = apply("Expression", entry("c", 6, 4), entry("d", 6, 4), text=text.replace("i0+i1-1", "i0-i1+1"))
    assert offered(bands[0], other) == {} and BY_NAME["merge_expressions"].merge((bands[0], other)) is None


def test_what_merge_rules_do_is_not_offered() -> None:
    x, y = entry("x", 5, 4), entry("y", 1, 4, 6, 6)
    assert offered(*(apply("MatMul", x, weight(f"w{k}", 4, 3)) for k in range(3))) == {}
    assert offered(*(conv(y, weight(f"c{k}", 3, 4, 3, 3), (1, 1, 1, 1)) for k in range(3))) == {}
    assert {rule.name for rule in MERGES}.isdisjoint(BY_NAME)


def test_what_is_constant_is_not_offered() -> None:
    fixed = [apply("MatMul", weight(f"a{k}", 5, 4), weight(f"b{k}", 4, 3)) for k in range(2)]
    assert offered(apply("Add", entry("x", 5, 3), apply("Add", *fixed))) == {}


def test_large_groups_are_cut() -> None:
    many = [apply("MatMul", entry(f"x{k}", 5, 4), weight(f"w{k}", 4, 3)) for k in range(LARGEST_GROUP + 3)]
    assert offered(*many) == {"stack_matmuls": [LARGEST_GROUP, 3]}


def test_an_equal_group_is_proved_once_in_a_run_and_once_in_all_runs() -> None:
    """A group that occurs on two levels is proved once, and a second run reads the proof from the database.

    The second run's prover would refuse everything, which shows that it is not asked.
    """
    x, y = entry("x", 4, 4), entry("y", 4, 4)
    for level in range(2):
        x, y = (apply("MatMul", data, weight(f"{level}{name}", 4, 4)) for data, name in ((x, "x"), (y, "y")))
    database = Database.in_memory()
    first, again = Deriver(RULES, Gate(database)), Deriver(RULES, Gate(database, lambda *_: "not asked"))
    results = [grown((x, y), deriver=deriver) for deriver in (first, again)]
    assert (first.gate.proved_now, again.gate.proved_now) == (2, 0)
    for result in results:
        (told,) = (one for one in result.statistics if one.matches)
        assert (told.matches, told.unions, told.built) == (2, 2, 1)
    assert repr(results[0].frozen.classes) == repr(results[1].frozen.classes)


def test_a_wrong_program_joins_nothing_and_says_why() -> None:
    def swapped(members: Sequence[Node]) -> tuple[Node, ...]:
        return tuple(reversed(members))

    wrong = GroupRule("swapping", ("MatMul",), lambda node: node.op, swapped)
    result = grown(products(), (wrong,))
    assert not by_rule(result.frozen, "swapping")
    (told,) = result.statistics
    assert told.unions == 0 and [refusal.count for refusal in told.refusals if refusal.reason.startswith("swapping: ")]
    assert set(told.refusals[0].nodes) == set(products())
    nothing = grown(products(), (GroupRule("nothing", ("MatMul",), lambda node: node.op, lambda members: None),))
    assert [refusal.reason for refusal in nothing.statistics[0].refusals] == ["nothing: no operator computes all of them"]
    broken = grown(products(), (GroupRule("broken", ("MatMul",), lambda node: node.op, lambda members: (members[9],)),))
    assert "deriving failed: IndexError" in broken.statistics[0].refusals[0].reason


def test_one_member_refused_refuses_the_group() -> None:
    def half(members: Sequence[Node]) -> tuple[Node, ...]:
        return members[0], members[0]

    assert not by_rule(grown(products(), (GroupRule("half", ("MatMul",), lambda node: node.op, half),)).frozen, "half")


def test_groups_go_with_the_shipped_rules_and_their_name_can_be_skipped() -> None:
    deriver = Deriver(RULES)
    result = saturate(graph(*global_block()), shipped_rules(), Limits(), derivations=deriver.open())
    assert {"MatMul", "Expression"} <= by_rule(result.frozen, "merge_conv_taps")
    deriver.leave_out(["merge_conv_taps"], "a check")
    result = saturate(graph(*global_block()), shipped_rules(), Limits(), derivations=deriver.open())
    assert not by_rule(result.frozen, "merge_conv_taps")
    (told,) = (one for one in result.statistics if one.rule == "merge_conv_taps")
    assert [refusal.reason for refusal in told.refusals] == ["merge_conv_taps: a check"]
    chosen = {rule.name for rule in choose_derivations(["merge_conv_taps"], allow="finite")}
    assert "merge_conv_taps" not in chosen and "stack_convs" in chosen
    assert choose_rules([], ["merge_conv_taps"], allow="finite", unsafe=False)
    assert not {rule.name for rule in choose_derivations([], allow="exact")} & set(BY_NAME)
    (line,) = (line for line in list_rules([]).splitlines() if line.startswith("merge_conv_taps "))
    assert "proved for these sizes" in line and "several Conv by one" in line


def test_why_not_explains_a_group() -> None:
    rule, net = derivation_rule("merge_conv_taps"), graph(*global_block())
    assert rule is BY_NAME["merge_conv_taps"]
    first, second = [node for node in walk(net.roots) if node.op == "Conv"][:2]
    told = explain_derivation(rule, rule.name, first, net, Tolerance())
    assert told["applies"] and told["reason"] == "one operator computes 2, which was proved equal at these sizes"
    assert "no other operator" in explain_derivation(rule, rule.name, second, net, Tolerance())["reason"]
    (add,) = (node for node in walk(net.roots) if node.op == "Add")
    assert "the root must be Conv" in explain_derivation(rule, rule.name, add, net, Tolerance())["reason"]


def test_strides_and_three_windows_are_proved() -> None:
    x = placeholder(0, TensorType("float32", (2, 3, 8, 8)))
    windows = [conv(x, placeholder(j, TensorType("float32", (2, 3, 1, 3))), (0, 1, 0, 1), stride=j) for j in (1, 2, 3)]
    members = (*windows, conv(x, placeholder(4, TensorType("float32", (5, 3, 3, 1))), (1, 0, 1, 0)))
    programs = BY_NAME["merge_conv_taps"].merge(members)
    assert programs is not None
    assert [prove(one, other, "reassociates") for one, other in zip(members, programs, strict=True)] == ["", "", "", ""]


def test_a_group_in_an_artefact_is_told_once_with_all_its_programs() -> None:
    deriver = Deriver(RULES)
    frozen = grown(global_block(), deriver=deriver).frozen
    made = {node.op for nodes in frozen.classes.values() for node in nodes if node.rule == "merge_conv_taps"}
    (judged,) = (found for (rule, _), found in deriver.judged.items() if rule == "merge_conv_taps")
    product = next(node for node in walk((judged[0].program,)) if node.op == "MatMul")
    kernel = Kernel(product, (), product, PRODUCT, rules=("merge_conv_taps",))
    (told,) = deriver.derived([kernel])
    assert "MatMul" in made and (told.name, told.kernels, len(told.steps)) == ("merge_conv_taps", (0,), 2)
    assert [use.name for use in deriver.uses([kernel])] == ["merge_conv_taps"]


def test_two_towers_of_the_same_layers_become_one_of_a_larger_batch() -> None:
    """Two towers of the same layers become one tower over a larger batch.

    Extraction chooses it by estimates, and the program computes the same values.
    """
    layers = [weight(f"w{k}", 32, 32, 3, 3) for k in range(2)]
    towers = [entry(name, 1, 32, 14, 14) for name in ("left", "right")]
    for layer in layers:
        towers = [apply("Relu", conv(tower, layer, (1, 1, 1, 1))) for tower in towers]
    net = graph(*towers)
    deriver = Deriver(DERIVATIONS)
    frozen = saturate(net, shipped_rules(), Limits(), derivations=deriver.open()).frozen
    program = Folder(net).fold(to_program(frozen, extract(frozen, estimate(candidates(frozen)), 1, 0.0)[0], net))
    assert "merge_batches" in {name for kernel in program.kernels for name in kernel.rules}
    generator = np.random.default_rng(4)
    feeds = {n.string("name"): generator.standard_normal(n.type.sizes).astype(np.float32) for n in net.inputs}
    values = {n: feeds[n.string("name")] for n in net.inputs}
    values |= {n: net.tensors[n.string("digest")] for n in walk(net.roots) if n.op == "Constant"}
    for got, wanted in zip(open_program(program).run(None, feeds), evaluate(net.roots, values), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-4 * np.abs(wanted).max())
