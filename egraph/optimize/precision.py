"""Keep programs whose kernels round their operands within the tolerance.

Programs are simulated on all inputs of the check before they are compiled (:mod:`egraph.optimize.simulation`), and those whose errors are
too large are rejected. If the cheapest is among them, it is measured how far each of its products alone moves the outputs, and by how much
the program's error exceeds their combined effect. Then programs are extracted again with the tolerance as a constraint. Kernels return to
float32, or to a nearly exact precision, one by one: those that move outputs most for the time that they save. A compiled program is
measured on the same inputs, and is rejected, too, if its error is too large.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from egraph.extract.schedule import schedule
from egraph.optimize.choice import Mixed, program_digest
from egraph.optimize.chooser import is_exact
from egraph.optimize.outcome import RoundedProgram
from egraph.optimize.outline import Outline
from egraph.optimize.rehearsal import Sample
from egraph.optimize.search import Search, with_choice
from egraph.optimize.search_phases import LEAST_ACCURACY_GAIN, MOST_SLOWDOWN
from egraph.optimize.simulation import Simulation, products, program_error, rounding_kernels, simulated_kernels
from egraph.optimize.storage import extracted_digest
from egraph.optimize.trial import Entry, Trial
from egraph.tensor import PLAIN, Candidate, FrozenEGraph, Kernel, Node, Program, Selection, format_fragment
from egraph.tensor.storage import without_stored
from lower.cost.model import FAILED_COST_US, CostModel
from lower.cost.rounding import LEAST_TOLERANCE, MEASURED_IN, NEARLY_EXACT, UNIT_ROUNDOFF, ErrorModel, rounded_node
from lower.targets import lowering_for
from runtime.devices import device

SAFETY = 1.25
"""Safety factor on the error of the last program, or of a simulation. The largest error of an output is that of a few roundings: in
programs that differ only in the order of sums it was 0.8 to 1.4 times the simulated one, and on other inputs up to 1.24 times the measured
one.
"""
FEWEST_SIMULATIONS_LEFT = 2.0
"""Number of simulations that the time left must suffice for, by the time of the last one, to begin another."""
SIMULATIONS_AFTER_MEASURING = 4.0
"""Number of simulations for which time is kept while kernels are measured."""
SIMULATED = 5
"""Largest number of choices of rounding kernels whose common error is simulated."""
ROUNDS = 4
"""Largest number of programs whose errors prove too large; after them, no kernel rounds its operands any more."""
NEGLIGIBLE = 0.1
"""An error of this part of the tolerance adds 0.5 % to one that fills it, because squares add up."""
NOTHING_FITS = 1e6
"""A scale of errors with which no kernel that rounds is accepted."""
LEAST_SAVED_US = 1e-3
"""Least microseconds that a kernel counts as saving."""


@dataclass
class Rounding:
    """The errors of the programs of one run that round their operands."""

    samples: Callable[[], Sequence[Sample]]
    threads: int
    on: str | None = None
    """The device that programs are for; it may be only a description."""
    fold: Callable[[Program], Program] = lambda program: program
    """Folds a program: computes the expressions over its weights."""
    programs: dict[str, RoundedProgram] = field(default_factory=dict)
    """Known programs by their digests."""
    raised: int = 0
    """Number of times that kernels returned to float32."""
    frozen: FrozenEGraph | None = None
    whole: Selection | None = None
    """The selection of ``frozen`` whose error was too large. ``moved``: how far each of its kernels moves the outputs, by position."""
    whole_us: float = math.inf
    """The predicted time of its program."""
    moved: dict[int, float] = field(default_factory=dict)
    simulation: Simulation | None = None
    """Its simulation, if it rounds only to ``MEASURED_IN``. ``rounded``: its products by the kernels' positions."""
    rounded: dict[int, list[Node]] = field(default_factory=dict)
    margin: float = SAFETY
    """Safety factor on simulated errors."""
    simulated: dict[tuple[str, ...], float] = field(default_factory=dict)
    """Simulated errors of programs, by their kernels that round."""
    simulation_seconds: float = 0.0
    """Time of the last simulation of a program."""
    accepted_us: float = math.inf
    """Predicted time of the cheapest program whose simulated error is acceptable."""
    mixed: dict[str, frozenset[int]] = field(default_factory=dict)
    """For programs of that selection whose kernels returned to float32 one by one, by digest: the kernels that still round."""

    def measure(self, entry: Entry, model: CostModel) -> float:
        """Return the error of a compiled program, and record it."""
        error = program_error(entry.contender.path, self.samples(), self.threads, self.on)
        kernels = [kernel for kernel in entry.program.kernels if not kernel.implementation.is_free]
        self.programs[entry.contender.digest] = RoundedProgram(
            len(rounding_kernels(entry.program)), len(kernels), error, model.program_us(entry.program), None
        )
        return error

    def raise_kernels(
        self, searched: Search, entry: Entry, error: float, model: CostModel, time_left: Callable[[], float]
    ) -> bool:
        """Scale the predicted errors of programs to this one's error; return whether others may be within the tolerance."""
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
        """Return whether the effect of each kernel on the outputs is known for a program of this search."""
        return self.whole is not None and any(self.frozen is each for each in (searched.saturation.frozen, searched.saturation.by_rules))

    def foresee(
        self, outline: Outline, frozen: FrozenEGraph, selection: Selection, model: CostModel, time_left: Callable[[], float], *,
        is_learning: bool = True,
    ) -> float:  # fmt: skip
        """Return, before much is measured, the error of a choice in multiples of the accepted one, or 0 if it is not known.

        onnxruntime computes the chosen program with its products' operands rounded to ``MEASURED_IN``. Nothing is compiled for that, and
        other precisions are not predicted. If the error is too large, the effect of each kernel on the outputs is measured.
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
        """Return the expected seconds of the simulations of the final choices."""
        return SIMULATIONS_AFTER_MEASURING * self.simulation_seconds

    def without_inaccurate(self, searched: Search, model: CostModel, finalists: int, time_left: Callable[[], float]) -> Search:
        """Return a search without the programs whose simulated errors are too large; none of them is compiled.

        The cheapest programs are simulated first, until one is expected to be accepted. If none is, the effect of each kernel on the
        outputs is measured for the nearest one. Programs with the same rounding kernels may differ, because fast algorithms round sums of
        operands.
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

        ``too_far``: error, predicted time, e-graph and selection of each. The known effects of another program are kept unless this one is
        clearly more accurate. A slower program is not preferred, because it is more accurate only because fewer of its kernels round.
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
        """Return whether a program rounds only in ways that can be simulated, and whether there is time for that."""
        precisions = {kernel.implementation.precision for kernel in simulated_kernels(program)}
        return precisions == {MEASURED_IN} and self._has_time_for_simulation(time_left)

    def _simulated_error(self, program: Program, time_left: Callable[[], float]) -> float | None:
        """Return the simulated error of a program, or None if it is not simulated."""
        known = self.simulated.get(_rounded(program))
        if known is None and self._is_simulated(program, time_left):
            known = self._simulation(program, time_left)[1].together
            self._keep(program, known)
        return known

    def _keep(self, program: Program, error: float) -> None:
        """Record the simulated error of a program, for others that round alike and for the report."""
        kernels = [kernel for kernel in program.kernels if not kernel.implementation.is_free]
        self.simulated[_rounded(program)] = error
        known = RoundedProgram(len(rounding_kernels(program)), len(kernels), error, program.cost_us, None)
        self.programs.setdefault(program_digest(program), known)

    def _simulation(self, program: Program, time_left: Callable[[], float]) -> tuple[Program, Simulation]:
        """Return the folded program and its simulation; record how long that takes."""
        before_seconds = time_left()
        program = self.fold(program)
        simulation = Simulation(program, [feeds for feeds, _ in self.samples()], self.threads)
        self.simulation_seconds = before_seconds - time_left() if math.isfinite(before_seconds) else 0.0
        return program, simulation

    @staticmethod
    def _scale(errors: ErrorModel, outline: Outline, frozen: FrozenEGraph, selection: Selection, error: float) -> None:
        """Set the factor by which programs' errors exceed their kernels' combined errors to that of this program."""
        uses = outline.uses(frozen)
        squares = (uses.get(number, 1) * errors.error(candidate) ** 2 for number, candidate in selection.chosen.items())
        together = math.sqrt(math.fsum(squares))
        errors.scale = error / together if together > 0 else NOTHING_FITS

    def _learn(
        self, errors: ErrorModel, outline: Outline, frozen: FrozenEGraph, selection: Selection, program: Program,
        time_left: Callable[[], float], accepted: float = -math.inf,
    ) -> float:  # fmt: skip
        """Record how far each chosen product moves the outputs; in equal blocks, it is the root mean square over all of them.

        Return how far all together do; if this is ``accepted``, nothing is recorded.
        """
        program, simulation = self._simulation(program, time_left)
        if simulation.together <= accepted:
            return simulation.together
        alone = simulation.contributions(time_left)
        is_simulated = all(kernel.implementation.precision == MEASURED_IN for kernel in simulated_kernels(program))
        self.simulation, self.frozen = simulation if is_simulated else None, frozen
        self.whole, self.whole_us = selection, program.cost_us
        self.moved, self.rounded, self.mixed = {}, {}, {}
        for candidate, positions in zip(_in_order(frozen, selection), outline.written(frozen, selection), strict=True):
            node = rounded_node(candidate)
            if candidate.implementation.precision not in (PLAIN, *NEARLY_EXACT) and node is not None:
                self.rounded |= {at: products(program.kernels[at]) for at in positions}
                squares = {at: math.fsum(alone[each] ** 2 for each in self.rounded[at]) for at in positions}
                unit = UNIT_ROUNDOFF[candidate.implementation.precision] / UNIT_ROUNDOFF[MEASURED_IN]
                self.moved |= {at: unit * math.sqrt(square) for at, square in squares.items()}
                errors.measured[node] = math.sqrt(math.fsum(squares.values()) / len(positions))
        return simulation.together

    def with_mixed(self, searched: Search, model: CostModel, finalists: int) -> Search:
        """Return the search with one more program, in which it is decided for each kernel whether it rounds, also within equal blocks.

        The kernels that save most time for their part of the accepted error go on rounding. Others return to float32, or to a nearly exact
        precision.
        """
        mixed = self._mixed(searched, model)
        if mixed and mixed.program(searched.saturation, searched.outline).cost_us >= self.accepted_us:
            return searched
        return with_choice(searched, replace(searched.choice, mixed=mixed), finalists) if mixed else searched

    def mixed_alone(self, searched: Search, model: CostModel, finalists: int, most_us: float) -> Search | None:
        """Return that program and those that do not round, or None if it is not faster than ``most_us``; nothing is extracted."""
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
        more_exact = {at: self._more_exact(kernels[at], self.moved[at], errors, model) for at in self.moved}
        rounding = self._most_within_tolerance(errors, {at: cost_us - kernels[at].cost_us for at, (_, cost_us) in more_exact.items()})
        returned = {at: more_exact[at] for at in sorted(self.moved) if at not in rounding}
        mixed = Mixed(self.whole, returned, is_by_rules=frozen is not searched.saturation.frozen)
        program = mixed.program(searched.saturation, searched.outline)
        if not rounding or any(cost_us >= FAILED_COST_US for _, cost_us in returned.values()):
            return None
        self.mixed[program_digest(program)] = frozenset(rounding)
        return mixed

    def _more_exact(self, kernel: Kernel, moved: float, errors: ErrorModel, model: CostModel) -> tuple[str, float]:
        """Return the precision that a kernel returns to, and its time then: a nearly exact precision if it is faster, else float32.

        ``moved``: how far it moves the outputs now. Simulations ignore the errors of nearly exact precisions. These errors must therefore
        be negligible beside the accepted one even if all kernels had this kernel's.
        """
        computed = kernel.implementation
        exact = Candidate(kernel.fragment, (), (), computed.in_precision(PLAIN))
        fastest = PLAIN, model.cost_us(exact)
        for precision in sorted(NEARLY_EXACT.intersection(model.target.precisions)):
            candidate = replace(exact, implementation=computed.in_precision(precision))
            error = moved * UNIT_ROUNDOFF[precision] / UNIT_ROUNDOFF[computed.precision]
            record = model.record(candidate)
            if record is None or record.median_us is None or error * math.sqrt(len(self.moved)) > NEGLIGIBLE * errors.tolerance.relative:
                continue
            fastest = min(fastest, (precision, record.median_us), key=lambda each: each[1])
        return fastest

    def _most_within_tolerance(self, errors: ErrorModel, saved_us: Mapping[int, float]) -> set[int]:
        """Return the kernels that go on rounding: as many as are within the tolerance by a simulation, found by bisection.

        The scale of errors is set to the one with which they were chosen.
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
        """Return the kernels that go on rounding: greedily, those that save most time for their part of the accepted error."""
        part, rounding = {at: errors.part_of(self.moved[at]) for at in self.moved}, set[int]()
        for at in sorted(self.moved, key=lambda at: (part[at] / max(saved_us[at], LEAST_SAVED_US), at)):
            if saved_us[at] > 0 and math.fsum(part[each] for each in (*rounding, at)) <= 1.0:
                rounding.add(at)
        return rounding

    def _simulated(self, rounding: Collection[int]) -> float:
        """Return the simulated error of the outputs, with a margin, if these kernels round; 0 if it cannot be simulated."""
        nodes = {node for at in rounding for node in self.rounded[at]}
        return self.margin * self.simulation.error(nodes) if nodes and self.simulation else 0.0

    def described(self, trial: Trial, model: CostModel) -> tuple[dict[str, RoundedProgram], str]:
        """Return time and error of the programs that a report compares, and the reason if no kernel rounds."""
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
    """Return notes on the requested precisions that a library of products lacks, with the most frequent reason."""
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
    """Return the rounding kernels of a program, without their places: programs that share them are assumed to have equal errors."""
    return tuple(sorted(format_fragment(kernel.fragment) for kernel in simulated_kernels(program)))


def _in_order(frozen: FrozenEGraph, selection: Selection) -> list[Candidate]:
    """Return the chosen candidates in the order of the program's kernels."""
    return [selection.chosen[number] for number in schedule(frozen, selection.chosen) if number in selection.chosen]


def _selection_of(searched: Search, entry: Entry) -> tuple[FrozenEGraph, Selection] | None:
    """Return the e-graph and the selection that a program was made of, or None if they are not known."""
    choice, saturation, digest = searched.choice, searched.saturation, extracted_digest(entry.program)
    places = [(saturation.frozen, each) for each in choice.selections]
    places += [(saturation.by_rules, each) for each in choice.by_rules if saturation.by_rules is not None]
    for frozen, selection in places:
        if frozen is not None and program_digest(searched.outline.program(frozen, selection)) == digest:
            return frozen, selection
    return None
