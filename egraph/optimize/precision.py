"""Keep programs whose kernels round their operands within the tolerance.

How far a program is off is measured on the inputs that the check begins with, after it was compiled. The first one is the fastest there
is, whatever it rounds. Where it is too far off, it is found out how far each of its products alone moves the outputs (by onnxruntime, in
one model in which each rounding has a switch), and by how much the program is farther off than these say together. Then programs are
extracted again, with the tolerance as a constraint: those kernels return to float32 that move outputs most for the time that they save.

What kernels in bytes quantise has ranges, found on the user's inputs. A range decides no time, so kernels are timed and programs are
extracted without any; a program gets them before it is compiled. What the user's inputs exceed is not known: a value beyond the range
saturates.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from egraph.errors import EinsatError, ModelError
from egraph.extract.schedule import schedule
from egraph.optimize.blame import evaluate
from egraph.optimize.check_noise import open_exported, relative_error
from egraph.optimize.chooser import is_exact
from egraph.optimize.kernels import quantised_operand, rounded_operand
from egraph.optimize.options import Options
from egraph.optimize.outcome import RoundedProgram
from egraph.optimize.reference import Accepted
from egraph.optimize.rehearsal import Sample
from egraph.optimize.repeats import Outline
from egraph.optimize.search import LEAST_ACCURACY_GAIN, MOST_SLOWDOWN, Mixed, Search, program_digest, with_choice
from egraph.optimize.storage import extracted_digest
from egraph.optimize.trial import Entry, Trial
from egraph.tensor import (
    ELEMENT_TYPES,
    PLAIN,
    Candidate,
    FrozenEGraph,
    Graph,
    Kernel,
    Node,
    Program,
    Selection,
    TensorType,
    attributes,
    format_fragment,
    make,
    numpy_dtype,
    rewrite,
)
from egraph.tensor.ops import OPS, apply
from egraph.tensor.storage import MOVING, without_stored
from lower.cost.model import FAILED_COST_US, CostModel
from lower.cost.rounding import LEAST_TOLERANCE, MEASURED_IN, ROUNDED_OPERATORS, UNIT_ROUNDOFF, ErrorModel, rounded_node
from lower.quantised import PRECISION as IN_BYTES
from lower.quantised import Scale, is_quantised, kernel_scale, source_of
from lower.targets import lowering_for
from runtime import Session
from runtime.devices import device
from runtime.errors import ExecutionError

SAFETY = 1.25
"""By how much more programs are taken to be off than the last one was, or than a simulation says. The largest error of an output is that of
a few roundings: of programs that differ in the order of sums alone it was 0.8 to 1.4 times what was simulated, and on other inputs up to
1.24 times what was measured."""
FEWEST_SIMULATIONS_LEFT = 2.0
"""Simulations that there must be time for, by what the last one took, to begin another."""
SIMULATIONS_AFTER_MEASURING = 4.0
"""Simulations of programs for which time is kept while kernels are measured."""
SIMULATED = 5
"""Choices of kernels that round, at most, of which it is simulated how far they are off together."""
ROUNDS = 4
"""Programs that are found to be too far off, at most; then none rounds its operands any more."""
NOTHING_FITS = 1e6
"""A scale of errors with which no kernel that rounds is accepted."""
LEAST_SAVED_US = 1e-3
"""Microseconds that a kernel counts as saving, at least."""
SWITCH, WEIGHTS = "einsat.switch.", "einsat.weights."
SWITCHED_SHARE = 0.3
"""Part of the time that is left which may be spent on finding out how far each kernel moves the outputs."""


def rounding_kernels(program: Program) -> list[Kernel]:
    """Return the kernels that round their operands."""
    return [kernel for kernel in program.kernels if kernel.implementation.precision != PLAIN]


def program_error(place: str, samples: Sequence[Sample], threads: int, on: str | None = None) -> float:
    """Return how far a compiled program's outputs are off at most, relative to the largest; infinite where it does not run.

    ``on`` is the device that it is for.
    """
    largest = 0.0
    try:
        with Session(place, threads=threads, on=on) as session:
            for feeds, expected in samples:
                largest = max(largest, _difference(expected, session.run(None, feeds)))
    except (EinsatError, ExecutionError):
        return math.inf
    return largest


def _difference(expected: Sequence[Any], actual: Sequence[Any]) -> float:
    """Return the largest relative error of float outputs; what is no number is infinitely far off."""
    errors = [relative_error(want, got) for want, got in zip(expected, actual, strict=True) if np.asarray(want).dtype.kind == "f"]
    return max((error if math.isfinite(error) else math.inf for error in errors), default=0.0)


class Simulation:
    """A program in onnxruntime, with a switch for each of its products that round: says how far outputs move, relative to the largest.

    Constants of products in bytes are not switched: their rounding is taken to move outputs as far as the other operand's.
    """

    def __init__(self, program: Program, inputs: Sequence[Mapping[str, Any]], threads: int) -> None:
        self.nodes = list(dict.fromkeys(node for kernel in rounding_kernels(program) for node in products(kernel)))
        self._scales = {node: kernel_scale(kernel) for kernel in program.kernels if is_quantised(kernel) for node in products(kernel)}
        switches = switched(program.graph, self.nodes, self._scales)
        self._weights, self._inputs = switches.weights, inputs
        self._session = open_exported(switches.graph, threads, optimise=False)
        self._names = {port.name for port in self._session.get_inputs()}
        self._exact = [self._outputs((), feeds) for feeds in inputs]
        by_input = [self._error(range(len(self.nodes)), at) for at in range(len(inputs))]
        self.together = max(by_input)
        """How far the outputs move on the inputs where all products together move them most."""
        self._worst = by_input.index(self.together)

    def error(self, on: Collection[Node]) -> float:
        """Return how far the outputs move where these products round, on the inputs where that is farthest."""
        switched_on = [i for i, node in enumerate(self.nodes) if node in on]
        return max(self._error(switched_on, at) for at in range(len(self._inputs)))

    def contributions(self, time_left: Callable[[], float] = lambda: math.inf) -> dict[Node, float]:
        """Return how far the outputs move where one product alone rounds, on those inputs.

        Where there is no time for each product, neighbours are switched together and share what they do.
        """
        nodes, before_seconds = self.nodes, time_left()
        self._error((), self._worst)
        run_seconds = before_seconds - time_left() if math.isfinite(before_seconds) else 0.0
        most = max(1, int(SWITCHED_SHARE * time_left() / run_seconds)) if run_seconds > 0 else len(nodes)
        together = -(-len(nodes) // most)
        bytes_share = UNIT_ROUNDOFF[MEASURED_IN] / UNIT_ROUNDOFF[IN_BYTES]
        moved: dict[Node, float] = {}
        for start in range(0, len(nodes), together):
            group = range(start, min(start + together, len(nodes)))
            moved |= dict.fromkeys((nodes[i] for i in group), self._error(group, self._worst) / math.sqrt(len(group)))
        return {node: error * math.sqrt(2) * bytes_share if node in self._scales else error for node, error in moved.items()}

    def _error(self, on: Sequence[int], at: int) -> float:
        return _difference(self._exact[at], self._outputs(on, self._inputs[at]))

    def _outputs(self, on: Sequence[int], feeds: Mapping[str, Any]) -> Sequence[Any]:
        states = {f"{SWITCH}{i}": np.array([i in on]) for i in range(len(self.nodes))}
        weights = {name: _coarser(value) if i in on else value for i, name, value in self._weights}
        given = {name: value for name, value in {**feeds, **states, **weights}.items() if name in self._names}
        results: Sequence[Any] = self._session.run(None, given)
        return results


def _coarser(weights: np.ndarray) -> np.ndarray:
    """Return weights rounded to ``MEASURED_IN``."""
    rounded: np.ndarray = weights.astype(numpy_dtype(ELEMENT_TYPES[MEASURED_IN])).astype(weights.dtype)
    return rounded


def products(kernel: Kernel) -> list[Node]:
    """Return the products and convolutions that a kernel computes."""
    contractions, stack = [], [kernel.output]
    seen = set(kernel.inputs)
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.inputs)
            contractions += [node] if node.op in ROUNDED_OPERATORS else []
    return contractions


@dataclass(frozen=True)
class Switched:
    """A graph some of whose products have switches, inputs that make them round their operands."""

    graph: Graph
    weights: tuple[tuple[int, str, np.ndarray], ...]
    """Constant operands, which are inputs here, each of one product: its number, the name, and the value that is not rounded.

    To round all weights in each run, and take a few of them, would take longer than the run.
    """


def switched(graph: Graph, nodes: Sequence[Node], scales: Mapping[Node, Scale] = {}) -> Switched:
    """Return the graph with a switch for each of these products that rounds its operands; those with ``scales`` quantise instead."""
    number = {node: i for i, node in enumerate(nodes)}
    switches = tuple(make("Input", (), attributes(name=f"{SWITCH}{i}"), TensorType("bool", (1,))) for i in range(len(nodes)))
    weights: dict[Node, tuple[int, str, np.ndarray]] = {}
    roots = list(dict.fromkeys(graph.roots))

    def coarser(product: Node, position: int, operand: Node) -> Node:
        at, constant = number[product], moved_constant(operand)
        if product in scales:
            if constant is not None:
                return operand
            return make("Where", (switches[at], quantised_operand(operand, scales[product]), operand), (), operand.type)
        if constant is not None:
            leaf = make("Input", (), attributes(name=f"{WEIGHTS}{at}.{position}"), constant.type)
            weights[leaf] = at, leaf.string("name"), graph.tensors[constant.string("digest")]
            in_place = rewrite((operand,), lambda old, below: leaf if old is constant else make(old.op, below, old.attributes, old.type))
            return in_place[operand]
        return make("Where", (switches[at], rounded_operand(operand, MEASURED_IN), operand), (), operand.type)

    def change(old: Node, operands: tuple[Node, ...]) -> Node:
        if old in number:
            operands = tuple(coarser(old, i, new) if i < 2 else new for i, new in enumerate(operands))
        return make(old.op, operands, old.attributes, old.type)

    new = rewrite(roots, change)
    tensors = {**graph.tensors, **{node.string("digest"): value for scale in scales.values() for node, value in scale.constants.items()}}
    outputs = tuple((name, new[node]) for name, node in graph.outputs)
    inputs = (*graph.inputs, *switches, *weights)
    return Switched(replace(graph, inputs=inputs, outputs=outputs, tensors=tensors if scales else graph.tensors), tuple(weights.values()))


def moved_constant(node: Node) -> Node | None:
    """Return the constant whose numbers a value is, in any order; None where it is computed."""
    while node.op != "Constant" and node.op in OPS and OPS[node.op].category in MOVING and len(node.inputs) == 1:
        (node,) = node.inputs
    return node if node.op == "Constant" else None


@dataclass
class Rounding:
    """What is known of the programs of one run that round their operands."""

    samples: Callable[[], Sequence[Sample]]
    threads: int
    on: str | None = None
    """The device that programs are for, which may be described alone."""
    fold: Callable[[Program], Program] = lambda program: program
    """Computes what a program derives from its weights alone."""
    programs: dict[str, RoundedProgram] = field(default_factory=dict)
    """By their digests."""
    raised: int = 0
    """How often kernels returned to float32."""
    frozen: FrozenEGraph | None = None
    whole: Selection | None = None
    """What rounds and was too far off, of an e-graph; ``moved``: how far each kernel of its program moves the outputs, by its position."""
    whole_us: float = math.inf
    """What its program is predicted to take."""
    moved: dict[int, float] = field(default_factory=dict)
    simulation: Simulation | None = None
    """Of that program, where all that it rounds is rounded to ``MEASURED_IN``; ``rounded``: its products, by the kernels' positions."""
    rounded: dict[int, list[Node]] = field(default_factory=dict)
    margin: float = SAFETY
    """By how much more programs are taken to be off than a simulation says."""
    simulated: dict[tuple[str, ...], float] = field(default_factory=dict)
    """How far programs are off by a simulation, by their kernels that round."""
    simulation_seconds: float = 0.0
    """What the last simulation of a program took."""
    accepted_us: float = math.inf
    """What the cheapest program is predicted to take that is expected to be accepted, by a simulation."""
    mixed: dict[str, frozenset[int]] = field(default_factory=dict)
    """Programs of it whose kernels returned to float32 one by one, by their digests: the kernels that still round."""

    def measure(self, entry: Entry, model: CostModel) -> float:
        """Return how far a compiled program is off, and keep it."""
        error = program_error(entry.contender.path, self.samples(), self.threads, self.on)
        kernels = [kernel for kernel in entry.program.kernels if not kernel.implementation.is_free]
        self.programs[entry.contender.digest] = RoundedProgram(
            len(rounding_kernels(entry.program)), len(kernels), error, model.program_us(entry.program), None
        )
        return error

    def raise_kernels(
        self, searched: Search, entry: Entry, error: float, model: CostModel, time_left: Callable[[], float]
    ) -> bool:
        """Take programs to be as far off as this one is; return whether others may be within the tolerance."""
        errors = model.errors
        if errors is None or self.raised > ROUNDS:
            return False
        self.raised += 1
        self.accepted_us = math.inf
        if self.raised > ROUNDS or not math.isfinite(error):
            errors.scale = NOTHING_FITS
            return True
        if rounding := self.mixed.get(extracted_digest(entry.program)):
            errors.scale = SAFETY * error / math.sqrt(math.fsum(self.moved[at] ** 2 for at in rounding))
            if foreseen := self._simulated(rounding):
                self.margin *= max(1.0, SAFETY * error / foreseen)
            return True
        place = _selection_of(searched, entry)
        if place is None:
            errors.scale = NOTHING_FITS
            return True
        frozen, selection = place
        if not self.knows(searched):
            self._learn(errors, searched.outline, frozen, selection, without_stored(entry.program), time_left)
        self._scale(errors, searched.outline, frozen, selection, SAFETY * error)
        return True

    def knows(self, searched: Search) -> bool:
        """Return whether it is known of a program of this search how far each kernel moves the outputs."""
        return self.whole is not None and any(self.frozen is each for each in (searched.saturation.frozen, searched.saturation.by_rules))

    def foresee(
        self, outline: Outline, frozen: FrozenEGraph, selection: Selection, model: CostModel, time_left: Callable[[], float], *,
        is_learning: bool = True,
    ) -> float:  # fmt: skip
        """Return, before much is measured, how many times the error that is accepted a choice is off; 0 where that is not known.

        onnxruntime computes the chosen program with its products' operands rounded to ``MEASURED_IN``: nothing is compiled for that, and
        nothing is foreseen of other precisions. Where it is too far off, it is learned how far each kernel moves the outputs.
        """
        errors, program = model.errors, outline.program(frozen, selection)
        if errors is None or errors.scale or not self._is_simulated(program, time_left):
            return 0.0
        accepted = errors.tolerance.relative / SAFETY
        known = self.simulated.get(_rounded(program), math.inf)
        if not is_learning or known <= accepted:
            return (self._simulated_error(program, time_left) or 0.0) / max(accepted, LEAST_TOLERANCE)
        self._keep(program, error := self._learn(errors, outline, frozen, selection, program, time_left, accepted))
        if error > accepted:
            self._scale(errors, outline, frozen, selection, SAFETY * error)
        return error / max(accepted, LEAST_TOLERANCE)

    @property
    def kept_seconds(self) -> float:
        """Return the seconds that the simulations of what is chosen in the end are expected to take."""
        return SIMULATIONS_AFTER_MEASURING * self.simulation_seconds

    def without_inaccurate(self, searched: Search, model: CostModel, finalists: int, time_left: Callable[[], float]) -> Search:
        """Return a search without the programs that a simulation says to be too far off: none of them is compiled.

        Those that cost least are simulated first, until one is expected to be accepted. Where none is, it is learned of the nearest how
        far each kernel moves the outputs: equal programs whose kernels round alike may differ, as fast algorithms round sums of operands.
        """
        errors, outline, choice, saturation = model.errors, searched.outline, searched.choice, searched.saturation
        if errors is None:
            return searched
        self.accepted_us = math.inf
        kept: list[tuple[Selection, ...]] = []
        too_far: list[tuple[float, float, FrozenEGraph, Selection]] = []
        for frozen, selections in ((saturation.frozen, choice.selections), (saturation.by_rules, choice.by_rules)):
            left_out: list[Selection] = []
            for selection in sorted(selections, key=lambda each: each.cost_us) if frozen is not None else ():
                assert frozen is not None
                program = outline.program(frozen, selection)
                if (error := self._simulated_error(program, time_left)) is None:
                    continue
                if error > errors.tolerance.relative:
                    left_out.append(selection)
                if error <= errors.tolerance.relative / SAFETY:
                    self.accepted_us = min(self.accepted_us, program.cost_us)
                    break
                too_far.append((error, program.cost_us, frozen, selection))
            kept.append(tuple(each for each in selections if each not in left_out))
        if too_far and math.isinf(self.accepted_us):
            self._learn_nearest(searched, errors, too_far, time_left)
        remaining = replace(choice, selections=kept[0], by_rules=kept[1])
        return with_choice(searched, remaining, finalists) if any(kept) and remaining != choice else searched

    def _learn_nearest(
        self, searched: Search, errors: ErrorModel, too_far: Sequence[tuple[float, float, FrozenEGraph, Selection]],
        time_left: Callable[[], float],
    ) -> None:  # fmt: skip
        """Learn how far each kernel moves the outputs in the most accurate of the programs that take about as long as the fastest.

        ``too_far``: error, predicted time, e-graph and selection of each. What is known of another program stays unless this one is clearly
        more accurate. One that takes longer is more accurate because fewer of its kernels round, which is no reason to prefer it.
        """
        is_known = self.knows(searched)
        fastest_us = min((self.whole_us if is_known else math.inf, *(cost_us for _, cost_us, _, _ in too_far)))
        as_fast = [each for each in too_far if each[1] <= MOST_SLOWDOWN * fastest_us]
        if not as_fast:
            return
        error, _, frozen, selection = min(as_fast, key=lambda each: each[:2])
        is_better = self.simulation is None or error * LEAST_ACCURACY_GAIN < self.simulation.together
        if not is_known or (is_better and self._has_time_for_simulation(time_left)):
            self._learn(errors, searched.outline, frozen, selection, searched.outline.program(frozen, selection), time_left)
            self._scale(errors, searched.outline, frozen, selection, SAFETY * error)

    def _has_time_for_simulation(self, time_left: Callable[[], float]) -> bool:
        return time_left() > FEWEST_SIMULATIONS_LEFT * self.simulation_seconds

    def _is_simulated(self, program: Program, time_left: Callable[[], float]) -> bool:
        """Return whether a program rounds as it can be simulated, and there is time for that."""
        precisions = {kernel.implementation.precision for kernel in rounding_kernels(program)}
        return precisions == {MEASURED_IN} and self._has_time_for_simulation(time_left)

    def _simulated_error(self, program: Program, time_left: Callable[[], float]) -> float | None:
        """Return how far a simulation says that a program is off; None where that is not simulated."""
        known = self.simulated.get(_rounded(program))
        if known is None and self._is_simulated(program, time_left):
            known = self._simulation(program, time_left)[1].together
            self._keep(program, known)
        return known

    def _keep(self, program: Program, error: float) -> None:
        """Keep how far a program is off by its simulation, for others that round alike and for the report."""
        kernels = [kernel for kernel in program.kernels if not kernel.implementation.is_free]
        self.simulated[_rounded(program)] = error
        known = RoundedProgram(len(rounding_kernels(program)), len(kernels), error, program.cost_us, None)
        self.programs.setdefault(program_digest(program), known)

    def _simulation(self, program: Program, time_left: Callable[[], float]) -> tuple[Program, Simulation]:
        """Return a program, folded, and its simulation; keep how long that takes."""
        before_seconds = time_left()
        program = self.fold(program)
        simulation = Simulation(program, [feeds for feeds, _ in self.samples()], self.threads)
        self.simulation_seconds = before_seconds - time_left() if math.isfinite(before_seconds) else 0.0
        return program, simulation

    @staticmethod
    def _scale(errors: ErrorModel, outline: Outline, frozen: FrozenEGraph, selection: Selection, error: float) -> None:
        """Take programs to be as much farther off than their kernels' errors say together as this one is."""
        uses = outline.uses(frozen)
        squares = (uses.get(number, 1) * errors.error(candidate) ** 2 for number, candidate in selection.chosen.items())
        together = math.sqrt(math.fsum(squares))
        errors.scale = error / together if together > 0 else NOTHING_FITS

    def _learn(
        self, errors: ErrorModel, outline: Outline, frozen: FrozenEGraph, selection: Selection, program: Program,
        time_left: Callable[[], float], accepted: float = -math.inf,
    ) -> float:  # fmt: skip
        """Keep how far each chosen product moves the outputs: one of equal blocks, the root mean square of what it does in all of them.

        Return how far all together do; where that is ``accepted``, nothing is kept.
        """
        program, simulation = self._simulation(program, time_left)
        if simulation.together <= accepted:
            return simulation.together
        alone = simulation.contributions(time_left)
        is_simulated = all(kernel.implementation.precision == MEASURED_IN for kernel in rounding_kernels(program))
        self.simulation, self.frozen = simulation if is_simulated else None, frozen
        self.whole, self.whole_us = selection, program.cost_us
        self.moved, self.rounded, self.mixed = {}, {}, {}
        for candidate, positions in zip(_in_order(frozen, selection), outline.written(frozen, selection), strict=True):
            node = rounded_node(candidate)
            if candidate.implementation.precision != PLAIN and node is not None:
                self.rounded |= {at: products(program.kernels[at]) for at in positions}
                squares = {at: math.fsum(alone[each] ** 2 for each in self.rounded[at]) for at in positions}
                unit = UNIT_ROUNDOFF[candidate.implementation.precision] / UNIT_ROUNDOFF[MEASURED_IN]
                self.moved |= {at: unit * math.sqrt(square) for at, square in squares.items()}
                errors.measured[node] = math.sqrt(math.fsum(squares.values()) / len(positions))
        return simulation.together

    def with_mixed(self, searched: Search, model: CostModel, finalists: int) -> Search:
        """Return programs with one more, whose kernels return to float32 one by one, where equal blocks would return together.

        Those that save most time for the part of the accepted error that they use up go on rounding.
        """
        mixed = self._mixed(searched, model)
        if mixed and mixed.program(searched.saturation, searched.outline).cost_us >= self.accepted_us:
            return searched
        return with_choice(searched, replace(searched.choice, mixed=mixed), finalists) if mixed else searched

    def mixed_alone(self, searched: Search, model: CostModel, finalists: int, most_us: float) -> Search | None:
        """Return that program with those that do not round, where it is predicted to take less than is said: nothing is extracted."""
        mixed = self._mixed(searched, model)
        if mixed is None or mixed.program(searched.saturation, searched.outline).cost_us >= most_us:
            return None
        exact = tuple(each for each in searched.choice.selections if is_exact(each))
        return with_choice(searched, replace(searched.choice, selections=exact, mixed=mixed), finalists)

    def _mixed(self, searched: Search, model: CostModel) -> Mixed | None:
        errors, frozen = model.errors, self.frozen
        if errors is None or self.whole is None or frozen is None or not self.knows(searched) or errors.scale >= NOTHING_FITS:
            return None
        kernels = searched.outline.program(frozen, self.whole).kernels
        exact = {at: kernels[at].implementation.in_precision(PLAIN) for at in self.moved}
        exact_us = {at: model.cost_us(Candidate(kernels[at].fragment, (), (), implementation)) for at, implementation in exact.items()}
        saved_us = {at: exact_us[at] - kernels[at].cost_us for at in self.moved}
        rounding = self._most_within_tolerance(errors, saved_us)
        is_by_rules = frozen is not searched.saturation.frozen
        mixed = Mixed(self.whole, {at: exact_us[at] for at in sorted(self.moved) if at not in rounding}, is_by_rules)
        program = mixed.program(searched.saturation, searched.outline)
        if not rounding or any(cost_us >= FAILED_COST_US for cost_us in mixed.exact_us.values()):
            return None
        self.mixed[program_digest(program)] = frozenset(rounding)
        return mixed

    def _most_within_tolerance(self, errors: ErrorModel, saved_us: Mapping[int, float]) -> set[int]:
        """Return the kernels that go on rounding: as many as a simulation says to be within the tolerance, found by bisection.

        The scale of errors becomes that with which they were chosen.
        """
        chosen, within, tried = self._chosen(errors, saved_us), set[int](), list[set[int]]()
        low, high = 0.0, math.inf
        while chosen and chosen not in tried and len(tried) < SIMULATED:
            tried.append(chosen)
            error = self._simulated(chosen)
            if error <= errors.tolerance.relative:
                within, high = chosen, errors.scale
            else:
                low = errors.scale
            together = math.sqrt(math.fsum(self.moved[at] ** 2 for at in chosen))
            if low and high < math.inf:
                errors.scale = math.sqrt(low * high)
            elif error and together:
                errors.scale = error / together
            chosen = self._chosen(errors, saved_us)
        errors.scale = high if within else errors.scale
        return within or chosen

    def _chosen(self, errors: ErrorModel, saved_us: Mapping[int, float]) -> set[int]:
        """Return the kernels that go on rounding: those that save most time for their part of the accepted error."""
        part, rounding = {at: errors.part_of(self.moved[at]) for at in self.moved}, set[int]()
        for at in sorted(self.moved, key=lambda at: (part[at] / max(saved_us[at], LEAST_SAVED_US), at)):
            if saved_us[at] > 0 and math.fsum(part[each] for each in (*rounding, at)) <= 1.0:
                rounding.add(at)
        return rounding

    def _simulated(self, rounding: Collection[int]) -> float:
        """Return how far outputs are off, with a margin, where these kernels round; 0 where that cannot be simulated."""
        nodes = {node for at in rounding for node in self.rounded[at]}
        return self.margin * self.simulation.error(nodes) if nodes and self.simulation else 0.0

    def described(self, trial: Trial, model: CostModel) -> tuple[dict[str, RoundedProgram], str]:
        """Return time and error of the programs that a report compares, and why nothing rounds where nothing does."""
        timed = {entry.contender.digest: trial.raced.median_us(entry.contender.name) for entry in trial.entries[1:]}
        plain = [entry for entry in trial.entries[1:] if not rounding_kernels(entry.program) and Path(entry.contender.path).exists()]
        if plain:
            self.measure(min(plain, key=lambda entry: (timed[entry.contender.digest], model.program_us(entry.program))), model)
        best = trial.best
        if best is not None and best.contender.digest not in self.programs and Path(best.contender.path).exists():
            self.measure(best, model)  # it won an earlier race
        known = {digest: replace(program, measured_us=_finite(timed.get(digest, math.inf))) for digest, program in self.programs.items()}
        exact = [program for program in known.values() if not program.rounding]
        rounding = [program for program in known.values() if program.rounding]
        compared: dict[str, RoundedProgram] = {}
        if exact:
            compared["float32"] = min(exact, key=lambda program: program.measured_us or program.predicted_us)
        if best is not None and best.contender.digest in known:
            compared["chosen"] = known[best.contender.digest]
        if rounding:
            compared["rounded"] = max(rounding, key=lambda program: (program.rounding, -program.predicted_us))
        is_rounding = "chosen" in compared and compared["chosen"].rounding > 0
        return compared, "" if is_rounding else self._reason(trial, model, is_tried=bool(rounding))

    def _reason(self, trial: Trial, model: CostModel, *, is_tried: bool) -> str:
        if is_tried:
            return "nothing rounds: no program that does was within the tolerance and faster"
        space = trial.searched.space
        offered = [candidate for options in space.everything.candidates.values() for candidate in options] if space is not None else []
        rounding = [candidate for candidate in offered if candidate.implementation.precision != PLAIN]
        if space is not None and not rounding:
            return "nothing rounds: no kernel of this model has a twin that does"
        if space is not None and self.on is not None and not device(self.on).is_timed:
            return "nothing rounds: no kernel that does is estimated to be faster where the tolerance allows it"
        records = [record for candidate in rounding if (record := model.record(candidate)) is not None]
        if space is None or not records:
            return "nothing rounds: no kernel that does was measured in this run's budget"
        if not any(record.median_us is not None for record in records):
            return f"nothing rounds: this processor lacks what the library needs for it ({records[0].message})"
        return "nothing rounds: on this processor, no kernel that does is faster where the tolerance allows it"


def unoffered(searched: Search, model: CostModel) -> tuple[str, ...]:
    """Return which of the precisions that were asked for a library of products has not, and why most of them have none."""
    offered = [candidate for options in searched.space.everything.candidates.values() for candidate in options] if searched.space else []
    products = [candidate for candidate in offered if candidate.implementation.is_library and rounded_node(candidate)]
    reads, notes = lowering_for(model.target).reads, []
    for precision in model.target.precisions:
        having = {candidate.implementation.library for candidate in offered if candidate.implementation.precision == precision}
        lacking = (candidate for candidate in products if candidate.implementation.library not in having)
        refused = (reads(candidate.fragment, candidate.implementation.in_precision(precision)) for candidate in lacking)
        reasons = Counter(reason for reason in refused if isinstance(reason, str)).most_common(1)
        others = ", ".join(sorted(having - {""}))
        what = f"{precision} is computed by {others} alone" if others else f"nothing is computed in {precision}"
        notes += [f"{what}: {reason}" for reason, _ in reasons if others or not having]
    return tuple(notes)


def _finite(time_us: float) -> float | None:
    return time_us if math.isfinite(time_us) else None


def _rounded(program: Program) -> tuple[str, ...]:
    """Return the kernels of a program that round, without their places: programs that share them are taken to be equally far off."""
    return tuple(sorted(format_fragment(kernel.fragment) for kernel in rounding_kernels(program)))


def _in_order(frozen: FrozenEGraph, selection: Selection) -> list[Candidate]:
    """Return the chosen candidates in the order of the program's kernels."""
    return [selection.chosen[number] for number in schedule(frozen, selection.chosen) if number in selection.chosen]


def _selection_of(searched: Search, entry: Entry) -> tuple[FrozenEGraph, Selection] | None:
    """Return what a program was made of, None where that is not known."""
    choice, saturation, digest = searched.choice, searched.saturation, extracted_digest(entry.program)
    places = [(saturation.frozen, each) for each in choice.selections]
    places += [(saturation.by_rules, each) for each in choice.by_rules if saturation.by_rules is not None]
    for frozen, selection in places:
        if frozen is not None and program_digest(searched.outline.program(frozen, selection)) == digest:
            return frozen, selection
    return None


Range: TypeAlias = tuple[float, float]


def refuse_without_inputs(options: Options) -> None:
    """Refuse to quantise without data, or for several sizes, of which some would have none."""
    if options.precision != IN_BYTES:
        return
    where = f"--precision {IN_BYTES}"
    if options.size_request.has_several:
        what = "kernels in bytes hold in the ranges of inputs of one size, and --shape gives several"
        raise ModelError(what, where=where, fix="run it for one of the sizes")
    if not options.inputs:
        what = "kernels in bytes need the ranges of your data: nothing is quantised without inputs of yours"
        raise ModelError(what, where=where, fix="give --inputs FILE.npz, with typical inputs; repeatable")


def compared_within(runs: Accepted, options: Options) -> Accepted:
    """Return what programs are compared on: kernels in bytes are right within the ranges of the user's inputs, random ones have others."""
    if options.precision != IN_BYTES:
        return runs
    note = "results are compared on your inputs alone: kernels in bytes hold for numbers in their ranges"
    return replace(runs, is_random=False, notes=(*runs.notes, note))


@dataclass
class Ranges:
    """The least and the largest number of values, over all of the user's inputs."""

    feeds: Sequence[Mapping[str, Any]]
    threads: int
    key: str = ""
    """A digest of the inputs, where they decide what is found."""
    seen: dict[Node, Range] = field(default_factory=dict)

    def applied(self, program: Program) -> Program:
        """Return the program with the range of what each kernel quantises; one that is not finite stays in float32."""
        sources = {kernel.output: source_of(kernel) for kernel in program.kernels if is_quantised(kernel)}
        self._look_at(program.graph, [node for node in dict.fromkeys(sources.values()) if node not in self.seen])
        kernels = []
        for kernel in program.kernels:
            if (source := sources.get(kernel.output)) is not None:
                is_finite = all(map(math.isfinite, self.seen[source]))
                plain = kernel.implementation.in_precision(PLAIN)
                kernel = replace(kernel, source_range=self.seen[source]) if is_finite else replace(kernel, implementation=plain)
            kernels.append(kernel)
        return replace(program, kernels=tuple(kernels)) if sources else program

    def _look_at(self, graph: Graph, nodes: Sequence[Node]) -> None:
        if not nodes:
            return
        ends = {node: [apply(op, node, axes=tuple(range(node.type.rank))) for op in ("ReduceMin", "ReduceMax")] for node in nodes}
        extrema = [end for pair in ends.values() for end in pair]
        for feeds in self.feeds:
            values = evaluate(graph, extrema, feeds, self.threads)
            for node, (low, high) in ends.items():
                before = self.seen.get(node, (math.inf, -math.inf))
                least, largest = float(values[low].item()), float(values[high].item())
                is_number = not (math.isnan(least) or math.isnan(largest))
                self.seen[node] = (min(before[0], least), max(before[1], largest)) if is_number else (-math.inf, math.inf)
