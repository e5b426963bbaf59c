"""Programs with kernels that round, from compilation to the command: their errors, the return to float32, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from egraph.errors import CheckFailed
from egraph.extract import extract
from egraph.onnx.exporter import serialized
from egraph.optimize import saving
from egraph.optimize.arguments import parse, to_options
from egraph.optimize.blame import blame
from egraph.optimize.budget import Budget
from egraph.optimize.check import CheckResult, Disagreement
from egraph.optimize.check_noise import relative_error
from egraph.optimize.choice import Choice, contending, program_digest, programs_of, read_choice
from egraph.optimize.chooser import Space
from egraph.optimize.estimated import estimate, grown
from egraph.optimize.options import Options, Precision
from egraph.optimize.outcome import Outcome
from egraph.optimize.outline import Outline
from egraph.optimize.pipeline import optimize
from egraph.optimize.precision import NOTHING_FITS, SAFETY, SIMULATED, Rounding
from egraph.optimize.progress import Progress
from egraph.optimize.race import Contender
from egraph.optimize.records import Earlier
from egraph.optimize.repair import Repair
from egraph.optimize.repeats import outlined
from egraph.optimize.run import Run
from egraph.optimize.search import Search, with_choice
from egraph.optimize.search_phases import Choosing
from egraph.optimize.simulation import Simulation, moved_constant, products, program_error, rounding_kernels
from egraph.optimize.trial import NO_TIME_TO_COMPILE, ORIGINAL, Entry, compile_all
from egraph.policy import Policy
from egraph.tensor import Candidate, FrozenEGraph, Graph, Implementation, Kernel, Node, Program, Selection
from egraph.tensor.ops import apply
from egraph.tolerance import Tolerance
from lower.candidates import candidates
from lower.compile import CompileOptions, compile_program
from lower.cost.model import CostModel
from lower.cost.rounding import ErrorModel
from lower.targets import lowering
from lower.targets.cpu import onednn as library
from lower.targets.cpu import products as own_products
from lower.targets.cpu import tiles
from runtime import Session
from runtime.errors import KernelError
from tests.support.commands import first_program
from tests.support.lowering import Model, choose

RANDOM = np.random.default_rng(9)
OPTIONS = CompileOptions(threads=1, export_graph=serialized)
ROUNDING = replace(lowering().target, precisions=("bf16",))


def network(layers: int = 3) -> Graph:
    """Return a convolution followed by ``layers`` products, each with a Relu."""
    b = Model()
    x = b.input(1, 8, 6, 6)
    y: Node = apply("Relu", b.conv(x, 16, 3))
    y = apply("Reshape", y, shape=(16, 36))
    for _ in range(layers):
        y = apply("Relu", apply("MatMul", y, b.weight(36, 36)))
    return b.graph(y)


def in_precision(program: Program, precisions: Callable[[int], str]) -> Program:
    """Return the program with the library's products and convolutions in the precisions given by position."""
    made, number = [], 0
    for kernel in program.kernels:
        if kernel.implementation.name in ("onednn.matmul", "onednn.convolution"):
            kernel = replace(kernel, implementation=kernel.implementation.in_precision(precisions(number)))
            number += 1
        made.append(kernel)
    return replace(program, kernels=tuple(made))


def feeds_of(graph: Graph) -> dict[str, np.ndarray]:
    return {n.string("name"): RANDOM.standard_normal(n.type.sizes).astype(np.float32) for n in graph.inputs}


def run(program: Program, folder: Path, feeds: Mapping[str, Any]) -> Any:
    """Compile and run the program; skip the test if the library refuses a kernel that rounds."""
    compile_program(program, folder, OPTIONS)
    try:
        with Session(folder, threads=1) as session:
            return session.run(None, dict(feeds))
    except KernelError as error:
        pytest.skip(f"the library has no bf16 kernel on this processor: {error.what}")


def test_a_program_rounds_where_its_implementations_say_so(tmp_path: Path) -> None:
    """Steps of kernels that round convert their operands, other steps do not, and ``program_error`` measures the effect on the outputs."""
    graph = network()
    exact = choose(graph, "onednn")
    assert not rounding_kernels(exact)
    mixed = in_precision(exact, lambda number: "bf16" if number % 2 else "float32")
    feeds = feeds_of(graph)
    expected = run(exact, tmp_path / "exact", feeds)
    found = run(mixed, tmp_path / "mixed", feeds)
    plan = json.loads((tmp_path / "mixed" / "plan.json").read_text())
    typed = sum("types" in step["spec"] for step in plan["steps"])
    assert typed == len(rounding_kernels(mixed)) == 2
    error = relative_error(expected[0], found[0])
    assert 1e-4 < error < 3e-2
    assert program_error(str(tmp_path / "mixed"), [(feeds, expected)], 1) == pytest.approx(error)
    assert program_error(str(tmp_path / "exact"), [(feeds, expected)], 1) == 0


def test_a_program_that_does_not_run_is_infinitely_far_off(tmp_path: Path) -> None:
    assert program_error(str(tmp_path), [], 1) == float("inf")


def test_kernels_that_round_are_not_to_blame_for_it(tmp_path: Path) -> None:
    """Each kernel is compared with its meaning on rounded operands. A kernel that is meant to compute in float32 but rounds is wrong."""
    graph = network(1)
    rounding = in_precision(choose(graph, "onednn"), lambda _: "bf16")
    feeds = feeds_of(graph)
    run(rounding, tmp_path / "rounding", feeds)
    assert not blame(graph, rounding, feeds, OPTIONS, Tolerance()).kernels
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("egraph.optimize.blame.rounded", lambda graph, precision: graph)
        assert blame(graph, rounding, feeds, OPTIONS, Tolerance()).kernels


def test_contributions_say_which_product_moves_the_outputs() -> None:
    """In y = x V + s (x W) with s = 1/1000, rounding the operands of x W moves y a thousandth as far as rounding those of x V."""
    b = Model()
    x = b.input(16, 64)
    small = apply("MatMul", x, b.weight(64, 64))
    graph = b.graph(apply("Add", apply("MatMul", x, b.weight(64, 64)), apply("Mul", small, b.weight(1, 1))))
    (scale,) = [d for d, a in graph.tensors.items() if a.shape == (1, 1)]
    tensors = {**graph.tensors, scale: np.full((1, 1), 1e-3, np.float32)}
    graph = replace(graph, tensors=tensors)
    program = in_precision(choose(graph, "onednn"), lambda _: "bf16")
    feeds = feeds_of(graph)
    simulation = Simulation(program, [feeds], 1)
    found = simulation.contributions()
    assert len(found) == 2
    (low,) = (error for node, error in found.items() if node is small)
    (high,) = (error for node, error in found.items() if node is not small)
    assert 5e-4 < high < 1e-2
    assert low == pytest.approx(1e-3 * high, rel=0.7)
    assert simulation.together == simulation.error(list(found)) == pytest.approx(high, rel=0.3) and simulation.error([small]) == low
    shared = simulation.contributions(iter([1.0, 0.9, 0.3 * 0.1]).__next__)
    assert len(set(shared.values())) == 1
    nothing = {name: np.zeros_like(value) for name, value in feeds.items()}
    for inputs in ([nothing, feeds], [feeds, nothing]):
        assert Simulation(program, inputs, 1).error([small]) == low, "of the inputs on which they move farthest"


def test_weights_are_rounded_with_the_operands_that_they_multiply() -> None:
    """y = [1 W, 1 (W' transposed)]: ones are exact in bf16, so only the rounding of the weights moves the outputs."""
    b = Model()
    ones = [b.input(4, 64), b.input(4, 64)]
    left = apply("MatMul", ones[0], b.weight(64, 48))
    right = apply("MatMul", ones[1], apply("Transpose", b.weight(48, 64), perm=(1, 0)))
    graph = b.graph(apply("Concat", left, right, axis=1))
    graph.tensors["w1"][:] = 0.5
    program = in_precision(choose(graph, "onednn.matmul"), lambda _: "bf16")
    feeds = {f"x{i}": np.ones((4, 64), np.float32) for i in range(2)}
    nothing = {name: np.zeros_like(value) for name, value in feeds.items()}
    moved = Simulation(program, [nothing, feeds], 1).contributions()
    w = graph.tensors["w0"].astype(np.float64)
    sums, exact = w.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64).sum(axis=0), w.sum(axis=0)
    largest = max(np.abs(exact).max(), 32.0)
    assert moved[left] == pytest.approx(np.abs(sums - exact).max() / largest, rel=1e-3)
    assert moved[right] == 0.0, "halves of one are numbers of bfloat16"
    assert moved_constant(right.inputs[1]) is not None and moved_constant(left) is None


class Prices:
    """The part of a cost model that ``Rounding`` uses; kernels in bf16x3 take ``split_us`` if they are measured."""

    def __init__(self, errors: ErrorModel, split_us: float | None = None) -> None:
        self.errors, self.split_us = errors, split_us
        self.target = replace(lowering("cpu").target, precisions=("bf16", "bf16x3"))

    def record(self, candidate: Candidate) -> Any:
        return SimpleNamespace(median_us=self.split_us) if candidate.implementation.precision == "bf16x3" else None

    def program_us(self, program: Program) -> float:
        return float(len(program.kernels))

    def cost_us(self, candidate: Candidate) -> float:
        return 100.0

    def is_wrong(self, candidate: Candidate) -> bool:
        return False


def test_programs_are_taken_to_be_as_far_off_as_the_last_one_was(tmp_path: Path) -> None:
    """Predicted errors are scaled to the measured error of the last program.

    After a few programs that are too far off, no kernel rounds any more.
    """
    graph = network(1)
    program = in_precision(choose(graph, "onednn"), lambda _: "bf16")
    feeds = feeds_of(graph)
    expected = run(choose(graph, "onednn"), tmp_path / "exact", feeds)
    run(program, tmp_path / "rounding", feeds)
    entry = Entry(Contender("program 1", program_digest(program), "einsat", str(tmp_path / "rounding")), program)
    rounding = Rounding(lambda: [(feeds, expected)], 1)
    model: Any = Prices(ErrorModel(Tolerance(1e-9)))
    error = rounding.measure(entry, model)
    assert math.isfinite(error) and error > 1e-9
    assert rounding.programs[program_digest(program)].rounding == 2
    choice, saturation = SimpleNamespace(selections=(), by_rules=()), SimpleNamespace(frozen=None, by_rules=None)
    nothing: Any = SimpleNamespace(choice=choice, saturation=saturation)
    assert rounding.raise_kernels(nothing, entry, error, model, lambda: math.inf)
    assert model.errors.scale == NOTHING_FITS
    for _ in range(10):
        more = rounding.raise_kernels(nothing, entry, error, model, lambda: math.inf)
    assert not more


@pytest.fixture
def four_blocks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Search, Entry, dict[Node, float]]:
    """Return a search of a model of four equal blocks, a program that rounds all its products, and the error of each product alone."""
    b = Model()
    y: Node = b.input(16, 24)
    for _ in range(4):
        hidden = apply("Tanh", apply("Softmax", apply("MatMul", apply("Sigmoid", y), b.weight(24, 24)), axis=1))
        y = apply("Add", y, apply("Relu", apply("Exp", apply("Neg", apply("MatMul", hidden, b.weight(24, 24))))))
    graph = b.graph(apply("Sigmoid", y))
    outline = outlined(graph, 0.2)
    frozen = grown(outline.graph, ())
    laid = {n: tuple(c for c in each if not c.is_spare) for n, each in candidates(frozen).items()}
    selection = extract(frozen, estimate(laid), 1, 0.0)[0]

    def lowered(candidate: Candidate) -> Candidate:
        is_product = any(node.op == "MatMul" for node in candidate.covered)
        return replace(candidate, implementation=candidate.implementation.in_precision("bf16")) if is_product else candidate

    selection = replace(selection, chosen={number: lowered(candidate) for number, candidate in selection.chosen.items()})
    program = outline.program(frozen, selection)
    saturation: Any = SimpleNamespace(frozen=frozen, by_rules=None)
    searched = Search(saturation, Choice((selection,)), (program,), "", outline)
    alone = {node: 1e-3 * 2.0**at for at, node in enumerate(dict.fromkeys(n for k in rounding_kernels(program) for n in products(k)))}
    assert len(outline.runs[0].instances) == 4 and len(alone) == 8
    simulation = SimpleNamespace(together=1.0, contributions=lambda time_left: alone, error=lambda nodes: 0.0)
    monkeypatch.setattr("egraph.optimize.precision.Simulation", lambda *arguments: simulation)
    return searched, Entry(Contender("program 1", program_digest(program), "einsat", str(tmp_path)), program), alone


def test_equal_blocks_round_as_their_root_mean_square_says(four_blocks: tuple[Search, Entry, dict[Node, float]]) -> None:
    """A kernel of the outline gets the root mean square of its instances' errors, so that the sum of all squares is kept."""
    searched, entry, alone = four_blocks
    model: Any = Prices(ErrorModel(Tolerance(1e-9)))
    assert Rounding(lambda: [({}, [])], 1).raise_kernels(searched, entry, 0.5, model, lambda: math.inf)
    together = math.sqrt(math.fsum(error**2 for error in alone.values()))
    assert len(model.errors.measured) == 2
    assert math.sqrt(math.fsum(4 * error**2 for error in model.errors.measured.values())) == pytest.approx(together)
    assert model.errors.scale == pytest.approx(SAFETY * 0.5 / together)


def test_kernels_of_equal_blocks_return_to_float32_one_by_one(four_blocks: tuple[Search, Entry, dict[Node, float]]) -> None:
    """Instances of a block return to float32 one by one: five of eight products keep rounding.

    Whole blocks would all return. A search with such a program is read back unchanged.
    """
    searched, entry, alone = four_blocks
    model: Any = Prices(ErrorModel(Tolerance(0.1)))
    rounding = Rounding(lambda: [({}, [])], 1)
    assert rounding.raise_kernels(searched, entry, 0.5, model, lambda: math.inf)
    chosen = [each for each in searched.choice.selections[0].chosen.values() if each.implementation.precision == "bf16"]
    assert all(4 * model.errors.part(candidate) > 1 for candidate in chosen)
    closer = rounding.with_mixed(searched, model, 4)
    mixed = next(program for program in closer.programs if program is not entry.program and len(rounding_kernels(program)) == 5)
    assert {node for kernel in rounding_kernels(mixed) for node in products(kernel)} == set(list(alone)[:5])
    assert mixed.cost_us == pytest.approx(math.fsum(kernel.cost_us for kernel in mixed.kernels)) and mixed.cost_us > entry.program.cost_us
    earlier = Earlier(0, 0, 1.0, closer.text, ())
    choice = read_choice(earlier, closer.saturation, model)
    assert choice is not None and choice.mixed is not None
    again = programs_of(choice, closer.saturation, closer.outline, 4)
    assert [program_digest(each) for each in again] == [program_digest(each) for each in closer.programs]

    before = model.errors.scale
    failed = Entry(Contender("program 1", program_digest(mixed), "einsat", ""), mixed)
    assert rounding.raise_kernels(closer, failed, 0.3, model, lambda: math.inf) and model.errors.scale > before
    fewer = rounding.with_mixed(searched, model, 4)
    assert 0 < min(len(rounding_kernels(program)) for program in fewer.programs) < 5


def test_split_operands_are_exact_in_simulations() -> None:
    """Simulations round only to bf16. Programs that differ only in kernels of other precisions therefore have equal errors."""
    graph = network()
    exact = choose(graph, "onednn")
    both = in_precision(exact, lambda number: "bf16" if number % 2 else "bf16x3")
    half = in_precision(exact, lambda number: "bf16" if number % 2 else "float32")
    feeds = feeds_of(graph)
    simulated, alone = Simulation(both, [feeds], 1), Simulation(half, [feeds], 1)
    assert len(simulated.nodes) == 2 < len(rounding_kernels(both)) == 4
    assert simulated.nodes == alone.nodes and simulated.together == alone.together > 0
    rounding = Rounding(lambda: [(feeds, [])], 1)
    assert rounding._simulated_error(both, lambda: math.inf) == alone.together
    assert Rounding(lambda: [(feeds, [])], 1)._simulated_error(in_precision(exact, lambda _: "bf16x3"), lambda: math.inf) is None


def test_it_is_learned_of_what_rounds_alone_how_far_it_moves_outputs(four_blocks: tuple[Search, Entry, dict[Node, float]]) -> None:
    """Errors on the outputs are learned only for kernels that round to bf16, because split operands are exact in simulations."""
    searched, _, _ = four_blocks
    (selection,), frozen = searched.choice.selections, searched.saturation.frozen
    first = next(number for number, one in selection.chosen.items() if one.implementation.precision == "bf16")
    kept = selection.chosen[first]
    split = replace(selection, chosen={**selection.chosen, first: replace(kept, implementation=kept.implementation.in_precision("bf16x3"))})
    moved = []
    for each in (selection, split):
        rounding = Rounding(lambda: [({}, [])], 1)
        rounding.foresee(searched.outline, frozen, each, cast(Any, Prices(ErrorModel(Tolerance(0.1)))), lambda: math.inf)
        moved.append(len(rounding.moved))
    assert 0 < moved[1] < moved[0]


def test_it_is_foreseen_how_far_a_choice_is_off(four_blocks: tuple[Search, Entry, dict[Node, float]]) -> None:
    """The error of a choice is predicted before anything is compiled; kernels are examined singly only if it is above the tolerance.

    A program with fewer kernels that round then needs no further extraction.
    """
    searched, _, alone = four_blocks
    (selection,), frozen = searched.choice.selections, searched.saturation.frozen
    for tolerance, is_near in ((2.0, True), (0.1, False)):
        model: Any = Prices(ErrorModel(Tolerance(tolerance)))
        rounding = Rounding(lambda: [({}, [])], 1)
        rounding.foresee(searched.outline, frozen, selection, model, lambda: math.inf)
        assert rounding.knows(searched) is not is_near and bool(model.errors.scale) is not is_near
    together = math.sqrt(math.fsum(error**2 for error in alone.values()))
    assert model.errors.scale == pytest.approx(SAFETY * 1.0 / together)
    assert [program.rounding for program in rounding.programs.values()] == [8]
    closer = rounding.mixed_alone(searched, model, 4, math.inf)
    assert closer is not None and closer.choice.mixed is not None and closer.choice.selections == ()
    (mixed,) = closer.programs
    assert 0 < len(rounding_kernels(mixed)) < 8
    assert rounding.mixed_alone(searched, model, 4, mixed.cost_us) is None, "one that is within the tolerance takes no longer"
    scale = model.errors.scale
    rounding.simulation = cast(Simulation, SimpleNamespace(error=lambda nodes: 0.05 * len(nodes)))
    closer = rounding.mixed_alone(searched, model, 4, math.inf)
    assert closer is not None and model.errors.scale > scale
    assert [SAFETY * 0.05 * len(rounding_kernels(program)) <= 0.1 for program in closer.programs] == [True]


def test_a_choice_that_is_known_to_be_near_enough_is_not_simulated_again(
    four_blocks: tuple[Search, Entry, dict[Node, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched, _, _ = four_blocks
    (selection,), frozen = searched.choice.selections, searched.saturation.frozen
    opened: list[object] = []

    def simulated(*arguments: Any) -> Any:
        opened.append(arguments)
        return SimpleNamespace(together=1.0)

    monkeypatch.setattr("egraph.optimize.precision.Simulation", simulated)
    model: Any = Prices(ErrorModel(Tolerance(2 * SAFETY)))
    rounding = Rounding(lambda: [({}, [])], 1)
    for is_learning in (False, True):
        tolerances = rounding.foresee(searched.outline, frozen, selection, model, lambda: math.inf, is_learning=is_learning)
        assert tolerances == 0.5 and len(opened) == 1


@pytest.mark.parametrize(("tolerance", "is_left_out", "is_learned"), [(0.9, True, True), (1.1, False, True), (1.3, False, False)])
def test_programs_that_are_simulated_to_be_too_far_off_are_left_out(
    four_blocks: tuple[Search, Entry, dict[Node, float]], tolerance: float, is_left_out: bool, is_learned: bool
) -> None:
    """The stubbed simulation returns an error of 1. A choice beyond the tolerance is discarded; if it is near, a mixed program is added."""
    searched, entry, _ = four_blocks
    (selection,) = searched.choice.selections
    plain = {number: replace(each, implementation=each.implementation.in_precision("float32")) for number, each in selection.chosen.items()}
    exact = replace(selection, chosen=plain, cost_us=selection.cost_us + 1.0)
    searched = replace(searched, choice=replace(searched.choice, selections=(selection, exact)))
    model: Any = Prices(ErrorModel(Tolerance(tolerance)))
    rounding = Rounding(lambda: [({}, [])], 1)
    remaining = rounding.without_inaccurate(searched, model, 4, lambda: math.inf)
    assert remaining.choice.selections == ((exact,) if is_left_out else (selection, exact))
    assert (entry.contender.digest in map(program_digest, remaining.programs)) is not is_left_out
    assert rounding.knows(searched) is is_learned and bool(model.errors.scale) is is_learned
    assert rounding.accepted_us == (math.inf if is_learned else pytest.approx(entry.program.cost_us))
    assert (rounding.with_mixed(remaining, model, 4).choice.mixed is not None) is is_learned


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize(("derived_us", "is_near"), [(0.95, True), (0.5, False)])
def test_kernels_return_to_float32_in_the_program_that_is_nearest(
    four_blocks: tuple[Search, Entry, dict[Node, float]], monkeypatch: pytest.MonkeyPatch, derived_us: float, is_near: bool, is_known: bool
) -> None:
    """The mixed program is built from the rules' own choice if its error is smaller: here it is half that of the derived choice.

    An earlier search finds the mixed program again in the e-graph of the rules. If the rules' choice takes twice as long, it is not better:
    its smaller error only means that fewer of its kernels round.
    """
    searched, _, alone = four_blocks
    (selection,), frozen = searched.choice.selections, searched.saturation.frozen
    cheaper = {number: replace(each, cost_us=derived_us * each.cost_us) for number, each in selection.chosen.items()}
    derived = replace(selection, chosen=cheaper, cost_us=derived_us * selection.cost_us)
    saturation: Any = SimpleNamespace(frozen=replace(frozen), by_rules=frozen)
    searched = replace(searched, saturation=saturation, choice=Choice((derived,), (selection,)))
    errors = iter((*([1.0] if is_known else []), 1.0, 0.5, *([0.5] if is_near else [] if is_known else [1.0])))

    def simulated(*arguments: Any) -> Any:
        return SimpleNamespace(together=next(errors), contributions=lambda time_left: alone, error=lambda nodes: 0.0)

    monkeypatch.setattr("egraph.optimize.precision.Simulation", simulated)
    monkeypatch.setattr("egraph.optimize.precision._rounded", lambda program: (str(program.cost_us),))
    model: Any = Prices(ErrorModel(Tolerance(0.1)))
    rounding = Rounding(lambda: [({}, [])], 1)
    if is_known:
        rounding.foresee(searched.outline, saturation.frozen, derived, model, lambda: math.inf)
        rounding.simulated.clear()
    remaining = rounding.without_inaccurate(searched, model, 4, lambda: math.inf)
    assert remaining is searched and rounding.knows(searched) and (rounding.frozen is frozen) is is_near and not list(errors)
    closer = rounding.with_mixed(searched, model, 4)
    mixed = closer.choice.mixed
    assert mixed is not None and mixed.is_by_rules is is_near and 0 < len(mixed.returned) < 8
    choice = read_choice(Earlier(0, 0, 1.0, closer.text, ()), saturation, model)
    assert choice is not None and choice.mixed == mixed
    others: Any = SimpleNamespace(frozen=frozen, by_rules=FrozenEGraph({}, {}, (), frozenset(), {}))
    if is_near:
        alone_text = with_choice(searched, Choice((), mixed=mixed), 4).text
        assert read_choice(Earlier(0, 0, 1.0, alone_text, ()), others, model) is None, "it is sought in the e-graph of the rules"
    left = with_choice(searched, Choice((derived,)), 4)
    assert read_choice(Earlier(0, 0, 1.0, left.text, ()), saturation, model) is not None, "all that rules alone made was left out"

    rounding.accepted_us = mixed.program(saturation, searched.outline).cost_us
    assert rounding.with_mixed(searched, model, 4) is searched, "a program that is expected to be accepted takes no longer"


@pytest.mark.parametrize(
    ("derived", "plain", "plain_us", "looks", "learned"),
    [
        (0.9, 0.5, 1.05, ["derived"], None),
        (2.0, 0.9, 1.05, ["derived", "plain"], "plain"),
        (2.0, 1.5, 1.05, ["derived", "plain"], "plain"),
        (2.0, 1.9, 1.05, ["derived", "plain"], "derived"),
        (2.0, 0.9, 1.5, ["derived"], "derived"),
        (2.0, 0.0, 1.05, ["derived", "plain"], "derived"),
    ],
)
def test_what_is_derived_does_not_round_where_the_plain_choice_is_nearer(
    derived: float, plain: float, plain_us: float, looks: list[str], learned: str | None
) -> None:
    """Derived programs do not round if the plain choice has a clearly smaller error and does not take much longer.

    Errors are in multiples of the accepted error, and 0 if there is no time to compute them.
    """
    product = apply("MatMul", Model().input(4, 8), Model().input(8, 4))
    candidates = [Candidate(product, (), (), Implementation.parse(text), 1.0) for text in ("onednn.matmul@bf16", "onednn.matmul")]
    laid = {0: tuple(candidates)}
    part: Any = SimpleNamespace(is_derived=lambda candidate: True, without=lambda laid, left_out: laid)
    everything: Any = SimpleNamespace(candidates=laid, frozen=None, refine=lambda *_: None, needed_seconds=lambda *_, **__: 0.0)
    everything.model = SimpleNamespace(is_wrong=lambda candidate: False)
    space = Space(everything, None, part, laid)

    def choose(count: int, *, greedy: bool) -> list[Selection]:
        return [Selection({0: everything.candidates[0][0]}, 1.0 if space.may_derived_round else plain_us, True, "", 0.0)]

    everything.choose, everything.repriced = choose, lambda selections: selections
    seen: list[str] = []
    kept: list[str] = []

    def foresee(outline: Outline, frozen: FrozenEGraph, selection: Selection, is_learning: bool) -> float:
        name = "derived" if selection.cost_us == 1.0 else "plain"
        (kept if is_learning else seen).append(name)
        return derived if name == "derived" else plain

    budget = SimpleNamespace(measuring_seconds=lambda: 9.0, policy=Policy())
    choosing: Any = SimpleNamespace(budget=budget, foresee=foresee, outline=None)
    Choosing._foresee(choosing, everything, space, cast(Any, None))
    assert seen == looks and kept == ([learned] if learned else [])
    assert space.may_derived_round is (learned != "plain") and everything.candidates[0] == tuple(candidates[learned == "plain" :])


def test_nothing_is_simulated_that_there_is_no_time_for(four_blocks: tuple[Search, Entry, dict[Node, float]]) -> None:
    searched, _, _ = four_blocks
    model: Any = Prices(ErrorModel(Tolerance(0.1)))
    rounding = Rounding(lambda: [({}, [])], 1, simulation_seconds=2.0)
    assert rounding.without_inaccurate(searched, model, 4, lambda: 3.0) is searched
    assert rounding.kept_seconds == 8.0 and not rounding.programs


def test_no_more_programs_are_simulated_than_until_one_is_near_enough(
    four_blocks: tuple[Search, Entry, dict[Node, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    searched, _, _ = four_blocks
    (selection,) = searched.choice.selections
    dearer = replace(selection, cost_us=selection.cost_us + 1.0)
    keys = iter("abc")
    monkeypatch.setattr("egraph.optimize.precision._rounded", lambda program: (next(keys),))
    simulated: list[Program] = []
    monkeypatch.setattr(Rounding, "_keep", lambda rounding, program, error: simulated.append(program))
    model: Any = Prices(ErrorModel(Tolerance(2.0)))
    several = replace(searched, choice=replace(searched.choice, selections=(selection, dearer)))
    assert Rounding(lambda: [({}, [])], 1).without_inaccurate(several, model, 4, lambda: math.inf) is several
    assert len(simulated) == 1


def test_what_is_off_by_too_much_alone_is_no_reason_to_leave_out_everything(four_blocks: tuple[Search, Entry, dict[Node, float]]) -> None:
    searched, _, _ = four_blocks
    rounding = Rounding(lambda: [({}, [])], 1)
    model: Any = Prices(ErrorModel(Tolerance(0.1)))
    assert rounding.without_inaccurate(searched, model, 4, lambda: math.inf) is searched


def test_as_many_kernels_go_on_rounding_as_a_simulation_allows(four_blocks: tuple[Search, Entry, dict[Node, float]]) -> None:
    """The errors of single kernels add up to twice their joint error: simulations find six of eight, the scale alone four or five."""
    searched, entry, alone = four_blocks
    six = math.sqrt(math.fsum(error**2 for error in list(alone.values())[:6]))
    model: Any = Prices(ErrorModel(Tolerance(1.01 * SAFETY * 0.5 * six)))
    rounding = Rounding(lambda: [({}, [])], 1)
    assert rounding.raise_kernels(searched, entry, 1.0, model, lambda: math.inf)
    simulated: list[int] = []

    def together(nodes: Collection[Node]) -> float:
        simulated.append(len(nodes))
        return 0.5 * math.sqrt(math.fsum(alone[node] ** 2 for node in nodes))

    rounding.simulation = cast(Simulation, SimpleNamespace(error=together))
    mixed = rounding.with_mixed(searched, model, 4).choice.mixed
    assert mixed is not None and len(alone) - len(mixed.returned) == 6 and simulated[0] < 6 and len(simulated) <= SIMULATED

    program = mixed.program(searched.saturation, searched.outline)
    failed = Entry(Contender("program 1", program_digest(program), "einsat", ""), program)
    rounding.accepted_us = 0.0
    assert rounding.raise_kernels(searched, failed, 2 * model.errors.tolerance.relative, model, lambda: math.inf)
    assert rounding.margin == pytest.approx(2.02 * SAFETY**2)
    fewer = rounding.with_mixed(searched, model, 4).choice.mixed
    assert fewer is not None and 0 < len(alone) - len(fewer.returned) < 6, "a simulation is believed less where a program was farther off"


@pytest.mark.parametrize(
    ("split_us", "tolerance", "precision"),
    [(60.0, 0.1, "bf16x3"), (60.0, 0.022, "bf16x3"), (60.0, 0.02, "float32"), (100.1, 0.1, "float32"), (None, 0.1, "float32")],
)
def test_kernels_return_to_what_is_nearly_exact_where_that_is_faster(
    four_blocks: tuple[Search, Entry, dict[Node, float]], split_us: float | None, tolerance: float, precision: str
) -> None:
    """The faster precision must be measured, and its error must be negligible.

    Its error is negligible if it stays below a tenth of the tolerance even when all eight kernels have that of the worst one.
    """
    searched, entry, _ = four_blocks
    model: Any = Prices(ErrorModel(Tolerance(tolerance)), split_us)
    rounding = Rounding(lambda: [({}, [])], 1)
    assert rounding.raise_kernels(searched, entry, 0.5, model, lambda: math.inf)
    choice = rounding.with_mixed(searched, model, 4)
    mixed = choice.choice.mixed
    assert mixed is not None
    worst = max(rounding.moved, key=lambda at: rounding.moved[at])
    cost_us = split_us if split_us is not None and precision == "bf16x3" else 100.0
    assert mixed.returned[worst] == (precision, cost_us)
    program = mixed.program(searched.saturation, searched.outline)
    assert program.kernels[worst].implementation.precision == precision and program.kernels[worst].cost_us == cost_us
    assert read_choice(Earlier(0, 0, 1.0, choice.text, ()), searched.saturation, model) == replace(choice.choice, is_earlier=True)
    older = choice.text.replace(f', "{precision}", ', ", ")
    assert older != choice.text and read_choice(Earlier(0, 0, 1.0, older, ()), searched.saturation, model) is None

    model.target = replace(model.target, precisions=("bf16",))
    alone = rounding.with_mixed(searched, model, 4).choice.mixed
    assert alone is not None and {asked for asked, _ in alone.returned.values()} == {"float32"}, "bf16x3 was not asked for"


def test_nothing_goes_on_rounding_that_takes_longer_than_what_is_nearly_exact(
    four_blocks: tuple[Search, Entry, dict[Node, float]],
) -> None:
    searched, entry, _ = four_blocks
    model: Any = Prices(ErrorModel(Tolerance(0.1)), split_us=1e-9)
    rounding = Rounding(lambda: [({}, [])], 1)
    assert rounding.raise_kernels(searched, entry, 0.5, model, lambda: math.inf)
    assert rounding.with_mixed(searched, model, 4) is searched


def test_bisection_keeps_what_was_within_the_tolerance(four_blocks: tuple[Search, Entry, dict[Node, float]]) -> None:
    """More than five kernels together have ten times the error that single errors predict.

    Bisection finds five, and the scale fits them.
    """
    searched, entry, alone = four_blocks
    errors = list(alone.values())
    together = {count: math.sqrt(math.fsum(error**2 for error in errors[:count])) for count in range(1, 9)}
    model: Any = Prices(ErrorModel(Tolerance(SAFETY * together[6] * 1.01)))
    rounding = Rounding(lambda: [({}, [])], 1)
    assert rounding.raise_kernels(searched, entry, together[8] * 0.5, model, lambda: math.inf)
    simulated: list[int] = []

    def error(nodes: Collection[Node]) -> float:
        simulated.append(len(nodes))
        return together[len(nodes)] * (10.0 if len(nodes) > 5 else 1.0)

    rounding.simulation = cast(Simulation, SimpleNamespace(error=error))
    mixed = rounding.with_mixed(searched, model, 4).choice.mixed
    assert mixed is not None and len(alone) - len(mixed.returned) == 5 and simulated == [7, 2, 4, 5, 6]
    parts = list(map(model.errors.part_of, errors))
    assert math.fsum(parts[:5]) <= 1.0 < math.fsum(parts[:6])


def test_one_that_does_not_round_is_among_the_finalists() -> None:
    graph = network(1)
    exact = choose(graph, "onednn")
    first = in_precision(exact, lambda at: "bf16" if at == 0 else "float32")
    second = in_precision(exact, lambda at: "bf16" if at == 1 else "float32")
    rounding = [replace(first, cost_us=1.0), replace(second, cost_us=2.0)]
    programs = [*rounding, replace(exact, cost_us=9.0)]
    assert contending(programs, 0, 2) == (rounding[0], programs[2])
    assert contending(programs[::-1], 0, 2) == (programs[2], rounding[1])
    assert contending(rounding, 0, 2) == tuple(rounding)
    assert contending([programs[2], rounding[0]], 1, 3) == (rounding[0], programs[2]), "only what rules alone made still rounds"
    assert contending([programs[2], replace(rounding[0], cost_us=10.0)], 1, 3)[0] == programs[2]
    assert contending([rounding[1], programs[2], rounding[0]], 1, 3) == (rounding[1], programs[2], rounding[0])


def test_the_products_of_a_kernel_are_its_own() -> None:
    b = Model()
    first = apply("MatMul", b.input(4, 8), b.weight(8, 8))
    second = apply("Relu", apply("MatMul", first, b.weight(8, 8)))
    kernel = Kernel(second, (first,), second, Implementation.parse("onednn.matmul"))
    assert products(kernel) == [second.inputs[0]]


def build(path: Path, *, convolutions: bool) -> Path:
    """Write layers so large that a processor with bf16 units computes them faster in bf16."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    last = "x"
    for layer in range(3):
        shape = (64, 64, 3, 3) if convolutions else (512, 512)
        drawn = random.standard_normal(shape) * math.sqrt(2 / math.prod(shape[1:]))
        weights.append(numpy_helper.from_array(drawn.astype(np.float32), f"w{layer}"))
        more: dict[str, Any] = {"pads": [1, 1, 1, 1]} if convolutions else {}
        nodes.append(helper.make_node("Conv" if convolutions else "MatMul", [last, f"w{layer}"], [f"a{layer}"], **more))
        nodes.append(helper.make_node("Relu", [f"a{layer}"], [f"r{layer}"]))
        last = f"r{layer}"
    size = [1, 64, 20, 20] if convolutions else [96, 512]
    ports = [helper.make_tensor_value_info(name, 1, size) for name in ("x", last)]
    graph = helper.make_graph(nodes, "layers", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("convolutions", "precision", "tolerance"), [(False, "bf16", 1e-2), (False, "auto", 2e-3), (True, "auto", 1e-2), (False, "bf16", 1e-4)]
)
def test_what_is_written_is_within_the_tolerance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, convolutions: bool, precision: Precision, tolerance: float
) -> None:
    """If kernels that round cost less, the fastest program rounds and its error is measured.

    A program beyond the tolerance is not written.
    """
    usual = CostModel.cost_us

    def cost_us(model: CostModel, one: Candidate) -> float:
        rounds, record = one.implementation.precision == "bf16", model.record(one)
        if rounds and record is not None and record.status == "failed":
            if convolutions:
                pytest.skip(f"the library has no bf16 kernel on this processor: {record.message}")
            return usual(model, one)
        return usual(model, one) if not one.implementation.is_library else 1.0 if rounds else 50.0

    monkeypatch.setattr(CostModel, "cost_us", cost_us)
    model = build(tmp_path / "layers.onnx", convolutions=convolutions)
    options = Options(
        model, threads=1, budget_seconds=25, precision=precision, tolerance=Tolerance(tolerance), derivations=False,
        database=tmp_path / "profiles",
    )  # fmt: skip
    outcome = optimize(options, Progress(-1, 25.0))
    assert outcome.max_rel_err <= tolerance + 1e-5
    found = outcome.precisions
    assert found["rounded"].rounding == 3
    assert 5e-4 < found["rounded"].error < 2e-2
    if found["rounded"].error > tolerance:
        assert "chosen" not in found or found["chosen"].rounding < 3
    plan = json.loads((tmp_path / "layers.einsat" / "plan.json").read_text())
    typed = sum("types" in step["spec"] or step["spec"].get("function", "").endswith("_bf16") for step in plan["steps"])
    assert typed == sum(row.precision == "bf16" for row in outcome.kernels)
    assert typed == (found["chosen"].rounding if "chosen" in found else 0)
    told = outcome.to_json()["precision"]
    assert told["asked"] == precision and told["tolerance"] == tolerance
    assert Outcome.from_manifest(json.loads(json.dumps(outcome.to_manifest()))).precisions == found
    assert "error over time by precision" in (tmp_path / "layers.einsat" / "report.html").read_text()
    assert outcome.precision_text.startswith("kernels that round their operands" if typed else "nothing rounds")


@pytest.fixture
def with_tiles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Offer candidates as if this processor had tiles of bfloat16; cached matches are cleared so that they are asked for again."""
    monkeypatch.setattr(tiles, "x86_flags", lambda: frozenset({tiles.TILE_FEATURE}))
    matches = [each.TILES.keywords["matcher"].match for each in (library, own_products)]
    for match in matches:
        match.cache_clear()
    yield
    for match in matches:
        match.cache_clear()


@pytest.mark.usefixtures("with_tiles")
@pytest.mark.parametrize(("tolerance", "precisions"), [(1e-4, {"bf16x3"}), (4e-3, {"bf16", "bf16x3"})])
def test_split_operands_are_within_tolerances_that_rounded_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tolerance: float, precisions: set[str]
) -> None:
    """Split operands, cheaper than float32 and dearer than bf16, are used if the tolerance excludes bf16; simulations take them as exact.

    Costs are given and the cheapest program wins, because split operands are slow on a processor without tiles.
    """
    usual = CostModel.cost_us

    def cost_us(model: CostModel, one: Candidate) -> float:
        name = one.implementation.name
        priced = {"products.matmul@bf16": 1.0, "products.matmul@bf16x3": 20.0, "products.matmul": 50.0}
        return priced.get(name, 60.0 if one.implementation.is_library else usual(model, one))

    monkeypatch.setattr(CostModel, "cost_us", cost_us)
    monkeypatch.setattr("egraph.optimize.trial.winner", first_program)
    options = Options(
        build(tmp_path / "layers.onnx", convolutions=False), threads=1, budget_seconds=25, precision="auto",
        tolerance=Tolerance(tolerance), derivations=False, database=tmp_path / "profiles",
    )  # fmt: skip
    outcome = optimize(options, Progress(-1, 25.0))
    assert outcome.max_rel_err <= tolerance
    assert {row.precision for row in outcome.kernels if row.precision != "float32"} == precisions
    assert outcome.precisions["chosen"].rounding == 3 and outcome.precisions["rounded"].error < 2e-2


def test_what_does_not_round_is_compiled_where_all_else_is_too_far_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the only program compiled in time is too far off and cannot return to float32, one that does not round is compiled."""
    usual, compiled = CostModel.cost_us, list[list[int]]()

    def cost_us(model: CostModel, one: Candidate) -> float:
        if not one.implementation.is_library or ((record := model.record(one)) is not None and record.status == "failed"):
            return usual(model, one)
        return 1.0 if one.implementation.precision != "float32" else 50.0

    def compile_first(entries: Sequence[Entry], *arguments: Any) -> tuple[dict[str, int], dict[str, str]]:
        compiled.append([len(rounding_kernels(entry.program)) for entry in entries])
        sizes_bytes, failed = compile_all(entries[:1], *arguments)
        return sizes_bytes, failed | {entry.contender.name: NO_TIME_TO_COMPILE for entry in entries[1:]}

    monkeypatch.setattr(CostModel, "cost_us", cost_us)
    monkeypatch.setattr("egraph.optimize.finalists.compile_all", compile_first)
    monkeypatch.setattr(Rounding, "raise_kernels", lambda *arguments: False)
    model = build(tmp_path / "layers.onnx", convolutions=False)
    options = Options(
        model, threads=1, budget_seconds=25, precision="bf16", tolerance=Tolerance(1e-5), derivations=False, database=tmp_path / "profiles",
    )  # fmt: skip
    outcome = optimize(options, Progress(-1, 25.0))
    first, exact = compiled
    assert first[0] == 3 and exact and not any(exact)
    assert not any(row.precision == "bf16" for row in outcome.kernels) and outcome.max_rel_err < 1e-5


@pytest.mark.parametrize("fault", ["rounding", "check", "every check"])
def test_where_nothing_is_timed_the_next_cheapest_program_replaces_a_wrong_one(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without timing, nothing is repaired: the next cheapest program replaces a wrong one. If no program is left, the model is kept."""
    checked: list[Entry | None] = []
    usual, usual_cost_us = saving.check, CostModel.cost_us

    def cost_us(model: CostModel, candidate: Candidate) -> float:
        return 0.1 if candidate.implementation.precision == "tf32" else usual_cost_us(model, candidate)

    def check(run: Run, session: Session, saved: Any, best: Entry | None, **options: Any) -> CheckResult:
        checked.append(best)
        if best is not None and (fault == "every check" or (fault == "check" and len(checked) == 1)):
            raise Disagreement(CheckFailed("the output differs", where="y", fix=""), {})
        return usual(run, session, saved, best, **options)

    monkeypatch.setattr(saving, "check", check)
    monkeypatch.setattr(CostModel, "cost_us", cost_us)
    monkeypatch.setattr(Repair, "repaired", lambda *arguments: None)
    monkeypatch.setattr(Repair, "without_wrong", lambda *arguments: None)
    monkeypatch.setattr(Rounding, "raise_kernels", lambda *arguments: False)
    if fault == "rounding":
        monkeypatch.setattr(Rounding, "measure", lambda rounding, entry, model: math.inf)
    model = build(tmp_path / "layers.onnx", convolutions=False)
    options = Options(
        model, threads=1, budget_seconds=20, precision="tf32", tolerance=Tolerance(1e-2), derivations=False, device="cuda:h100",
        database=tmp_path / "profiles",
    )  # fmt: skip
    outcome = optimize(options, Progress(-1, 20.0))
    rounding = [len(rounding_kernels(best.program)) if best else 0 for best in checked]
    costs_us = [best.program.cost_us for best in checked if best]
    if fault == "rounding":
        assert rounding == [0] and not any(row.precision == "tf32" for row in outcome.kernels)
    elif fault == "check":
        assert rounding[0] > 0 and len(checked) == 2 and costs_us[0] <= costs_us[1]
        assert outcome.shipped == checked[1].contender.name if checked[1] else False
    else:
        assert checked[-1] is None and len(costs_us) > 1 and costs_us == sorted(costs_us) and outcome.shipped == ORIGINAL
    with Session(tmp_path / "layers.einsat", on="cuda:h100") as session:
        assert session.run(None, {"x": np.zeros(tuple(session.get_inputs()[0].shape), np.float32)})


def test_a_run_foresees_its_first_choice_at_the_costs_of_single_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first choice is passed to ``foresee`` at the costs of single kernels.

    An outline prices a kernel for all its blocks, but the saving by rounding is made in each block. The run also looks at its budget and at
    the load of the machine.
    """
    seen: list[tuple[Outline, list[tuple[float, float]]]] = []
    looks: list[str] = []

    def foresee(
        rounding: Rounding, outline: Outline, frozen: FrozenEGraph, selection: Selection, model: CostModel, time_left: Any, **how: bool
    ) -> float:  # fmt: skip
        assert how == {"is_learning": True}
        seen.append((outline, [(chosen.cost_us, model.cost_us(chosen)) for chosen in selection.chosen.values()]))
        return 0.0

    def in_order(outline: Outline, frozen: FrozenEGraph) -> FrozenEGraph:
        looks.append("order")
        return frozen

    monkeypatch.setattr(Rounding, "foresee", foresee)
    monkeypatch.setattr(Budget, "look_again", lambda budget, run: looks.append("machine"))
    monkeypatch.setattr(Budget, "folded", lambda budget, seconds: looks.append("fold"))
    monkeypatch.setattr(Outline, "in_order", in_order)
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for at in range(6):
        weights.append(numpy_helper.from_array(random.standard_normal((64, 64)).astype(np.float32) / 8, f"w{at}"))
        for op, operands, result in (("MatMul", [last, f"w{at}"], "a"), ("Relu", [f"a{at}"], "r"), ("Softmax", [f"r{at}"], "s")):
            nodes.append(helper.make_node(op, operands, [f"{result}{at}"]))
        nodes.append(helper.make_node("Add", [last, f"s{at}"], [f"y{at}"]))
        last = f"y{at}"
    ports = [helper.make_tensor_value_info(name, 1, [32, 64]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "blocks", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "blocks.onnx")
    options = Options(
        tmp_path / "blocks.onnx", threads=1, budget_seconds=20, precision="auto", tolerance=Tolerance(1e-2), derivations=False,
        database=tmp_path / "profiles",
    )  # fmt: skip
    optimize(options, Progress(-1, 20.0))
    ((outline, costs_us),) = seen
    assert outline.runs and costs_us
    for chosen_us, single_us in costs_us:
        assert chosen_us == pytest.approx(single_us)
    assert looks.count("machine") >= 2 and looks[0] == "fold" and "order" in looks


def test_nothing_rounds_and_nothing_is_told_unless_asked() -> None:
    assert Options(Path("x.onnx")).precision == "fp32"
    assert to_options(parse(["x.onnx"])).tolerance == Tolerance()
    assert to_options(parse(["x.onnx", "--precision", "auto"])).tolerance.relative == 1e-2
    assert to_options(parse(["x.onnx", "--precision", "bf16", "--tolerance", "1e-3"])).tolerance.relative == 1e-3
