"""Extract by the known costs, measure what was chosen, extract again: until nothing chosen is estimated, or time is up.

A ``Space`` is what programs are extracted from, less what proves to be wrong or to lose digits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from egraph.errors import ExtractError
from egraph.extract import extract
from egraph.optimize.budget import Budget
from egraph.optimize.measuring import Collector, Job, Measures
from egraph.optimize.outline import Outline
from egraph.optimize.rehearsal import DerivedPart, OpenProgram, Rehearsal
from egraph.policy import MeasurePolicy
from egraph.tensor import PLAIN, Candidate, FrozenEGraph, Selection
from lower.cost.model import FAILED_COST_US, CostModel, jobs, unmeasured, without_twins

Rounds: TypeAlias = tuple[tuple[int, int, bool], ...]
"""The largest number of extractions, how many programs each finds, and whether greedily; each measures what the last one chose."""


LAST_CHOICES = 2
"""How many times as long as a greedy choice the search takes once measuring is over: it chooses, and writes out the program."""

LEAST_ESTIMATED_GAIN = 1.3
"""How many times as fast a program has to be believed that holds estimates, to be raced beside the one that holds few: by less, it mostly
proves slower (an EfficientNet's was believed to be 1.1 times as fast, and took 1.03 times as long)."""
COSTLY_SHARE = 0.05
"""Part of the budget above which that is long enough for the latest choice to be kept where time is short."""


def quick(policy: MeasurePolicy) -> Rounds:
    """Return the rounds in which one program is chosen greedily."""
    return ((policy.greedy_rounds, 1, True),)


def exact(policy: MeasurePolicy) -> Rounds:
    """Return the rounds in which the best program is found exactly."""
    return ((policy.exact_rounds, 1, False),)


def varied(policy: MeasurePolicy, count: int) -> Rounds:
    """Return the rounds in which all that are going to be timed are measured."""
    return ((policy.variant_rounds, count, False),)


@dataclass
class Chooser:
    """Extracts with the costs that are known by then."""

    frozen: FrozenEGraph
    candidates: Mapping[int, tuple[Candidate, ...]]
    model: CostModel
    budget: Budget
    extract_seconds: float
    seed: int
    lay_seconds: float = 0.0
    """How long it took to lay the candidates."""
    seconds: float = 0.0
    """Spent on the programs that were extracted."""
    longest: dict[tuple[bool, bool], float] = field(default_factory=dict)
    """The longest extraction so far: of several programs or one, greedily or exactly."""
    settled: tuple[Selection, ...] = ()
    """What was last chosen with all its kernels measured."""
    latest: tuple[Selection, ...] = ()
    """What was last chosen, by estimates where kernels were not measured."""
    uses: Mapping[int, int] = field(default_factory=dict)
    """How many blocks of the model compute a class, where it is more than one."""
    waiting: Sequence[Candidate] = ()
    """What was to be measured when time was over."""

    def choose(self, count: int, *, greedy: bool = False, most_seconds: float = math.inf) -> tuple[Selection, ...]:
        """Extract ``count`` programs; an exact extraction ends with the best that it has after ``most_seconds``."""
        started = self.budget.spent_seconds
        seconds, policy = 0.0 if greedy else self.extract_seconds, self.budget.policy.extract
        selections = extract(self.frozen, self.model.price(self.candidates, self.uses), count, seconds, self.seed, policy, most_seconds)
        kind, took_seconds = (count > 1, greedy), self.budget.spent_seconds - started
        self.longest[kind] = max(self.longest.get(kind, 0.0), took_seconds)
        if greedy:
            self.budget.ending_seconds = max(self.budget.ending_seconds, LAST_CHOICES * took_seconds)
        if not selections:
            raise ExtractError("no program can be extracted", fix="this is a defect: every operator should have a kernel")
        self.seconds += sum(selection.seconds for selection in selections)
        return selections

    def choose_in_time(self, count: int, *, is_timed: bool) -> tuple[Selection, ...]:
        """Extract as many programs, and as exactly, as there is time for; without ``is_timed`` no clock is asked."""
        if not is_timed:
            return self.choose(count)
        spare_seconds = self.budget.spare_seconds()
        if self.needed_seconds(count) <= spare_seconds:
            return self.choose(count, most_seconds=spare_seconds)
        greedy_seconds = self.needed_seconds(1, greedy=True)
        if self.settled and greedy_seconds > spare_seconds:
            return self.settled
        is_costly = LAST_CHOICES * greedy_seconds > max(spare_seconds, COSTLY_SHARE * self.budget.seconds)
        latest = self.repriced(self.latest) if is_costly else ()
        if latest and latest[0].cost_us < FAILED_COST_US:
            return latest
        newest = self.with_exact(self.choose(1, greedy=self.needed_seconds(1) > spare_seconds, most_seconds=spare_seconds), 2)
        # What was settled may be older than kernels that were measured since, and what is chosen now may hold estimates.
        return tuple(sorted((*newest, *self.repriced(self.settled)), key=lambda selection: selection.cost_us)[:count])

    def with_exact(self, selections: tuple[Selection, ...], most: int) -> tuple[Selection, ...]:
        """Return ``most`` selections, among them one that does not round its operands: all others may be too far off."""
        policy = self.budget.policy.extract
        if not selections or any(is_exact(selection) for selection in selections[:most]):
            return selections[:most]
        exact = {n: tuple(each for each in options if each.implementation.precision == PLAIN) for n, options in self.candidates.items()}
        return (*selections[: max(1, most - 1)], *extract(self.frozen, self.model.price(exact, self.uses), 1, 0.0, self.seed, policy))

    def with_estimated(self, selections: tuple[Selection, ...], most: int) -> tuple[Selection, ...]:
        """Return ``most`` selections, as the second the latest choice, where it is believed to take clearly less than the first.

        It holds estimates where time ended measuring: the first was chosen with caution about them, and a race says which is faster. Time
        to compile its kernels is kept.
        """
        latest = self.repriced(self.latest[:1])
        if not (latest and selections) or LEAST_ESTIMATED_GAIN * latest[0].cost_us >= selections[0].cost_us:
            return selections
        return (*selections[:1], *latest, *selections[1:])[:most]

    def _reserve_time(self, measurer: Measures) -> None:
        """Tell the budget how many kernels of the latest choice are not compiled yet, and how many its program has.

        Those are counted that take too little to be measured: a recurrence of 64 steps had 126, each a copy of its own, and was not raced.
        Those are not that were compiled beside the search: an Inception's search ended 9 s early for 52 of 94.
        """
        running = (number for number, each in self.latest[0].chosen.items() if not each.implementation.is_free)
        uncompiled = unmeasured(self.model, [each for selection in self.latest for each in selection.chosen.values()])
        self.budget.uncompiled = measurer.uncompiled(uncompiled)
        self.budget.chosen_kernels = sum(self.uses.get(number, 1) for number in running)

    def repriced(self, selections: Iterable[Selection]) -> tuple[Selection, ...]:
        """Return selections at the costs that are believed, whatever they were chosen by: a candidate's once, their sum for all blocks."""
        return tuple(map(self._repriced, selections))

    def _repriced(self, selection: Selection) -> Selection:
        chosen = {number: replace(candidate, cost_us=self.model.cost_us(candidate)) for number, candidate in selection.chosen.items()}
        cost_us = math.fsum(self.uses.get(number, 1) * candidate.cost_us for number, candidate in chosen.items())
        return replace(selection, chosen=chosen, cost_us=cost_us)

    def needed_seconds(self, count: int, *, greedy: bool = False) -> float:
        """Return how long an extraction will take, by those that were made."""
        by_greed = self.longest.get((False, True), 0.0)
        policy = self.budget.policy.extract
        times = policy.variants_over_greedy if count > 1 else policy.exact_over_greedy
        return self.longest.get((count > 1, greedy), by_greed * (1.0 if greedy else times))

    def look_ahead(self, kernels: int, seconds: float) -> list[Job]:
        """Choose greedily what is measured first; return about so many ``kernels`` that are likely to be measured.

        After those of the best program, these are the kernels of the best ones that remain where the ones before disappoint, as far as
        choosing them takes no longer than ``seconds``.
        """
        policy, until_seconds = self.budget.policy.measure, self.budget.spent_seconds + seconds
        collector, speculative = Collector(policy=policy), replace(self, model=self.model.speculative())
        for number in range(policy.greedy_rounds):
            selections = speculative.choose(1, greedy=True)
            worth = worth_measuring(speculative.model, selections, policy.negligible, self.uses)
            if number == 0:
                self.waiting, self.latest = worth, selections
                self._reserve_time(collector)
            collector.measure_candidates(speculative.model, worth, lambda: math.inf, lambda text: None)
            is_late = self.budget.spent_seconds + self.needed_seconds(1, greedy=True) > until_seconds
            if not worth or collector.measured >= kernels or is_late:
                break
        return list(collector.jobs.values())

    def settle(
        self, measurer: Measures, time_left: Callable[[], float], rounds: Rounds, *, is_final: bool = False
    ) -> tuple[Selection, ...]:
        """Measure what promises most, then what is only possible, then what is chosen after that; return what ``refine`` does.

        Many of a library's kernels are never chosen, however the others turn out. They are measured where there is time, because an
        estimate may have been too high. ``is_final``: what the best program holds of estimated kernels then is measured too, however
        little they are believed to take: forty small ones of an EfficientNet took 350 us together, not 70.
        """
        self.refine(measurer, time_left, quick(self.budget.policy.measure))
        self.measure_families(measurer, time_left)
        settled = self.refine(measurer, time_left, quick(self.budget.policy.measure) + rounds)
        if not (settled and is_final and self.refine(measurer, time_left, rounds[:1], negligible=0.0)):
            return settled
        return self.refine(measurer, time_left, rounds)

    def measure_families(self, measurer: Measures, time_left: Callable[[], float]) -> None:
        """Measure one kernel of each family of a library's, in a part of the time that there is."""
        later_seconds = (1.0 - self.budget.policy.measure.family_share) * time_left()
        for _ in range(self.budget.policy.measure.family_rounds):
            if time_left() <= later_seconds:
                return
            unmeasured_jobs = jobs(self.model, self.candidates)
            measurer.measure_candidates(self.model, unmeasured_jobs, lambda: time_left() - later_seconds, self.budget.progress.update)

    def refine(
        self, measurer: Measures, time_left: Callable[[], float], rounds: Rounds, negligible: float | None = None
    ) -> tuple[Selection, ...]:
        """Measure what extraction chooses until it chooses only what is measured, or time is up; return that choice, if there is one.

        First for the best program alone, which is quickly extracted; then for all that are going to be timed. ``negligible``: the part
        of a program's time below which a generated kernel stays estimated, where it is not the policy's.
        """
        least_share = self.budget.policy.measure.negligible if negligible is None else negligible
        settled: tuple[Selection, ...] = ()
        if self.waiting and time_left() > 0:  # choosing the same again may take the time that there is
            measurer.measure_candidates(self.model, self.waiting, time_left, self.budget.progress.update)
            self.waiting = ()
        for most, program_count, greedy in rounds:
            for _ in range(most):
                if time_left() <= self.needed_seconds(program_count, greedy=greedy):
                    return ()
                selections = self.choose(program_count, greedy=greedy, most_seconds=time_left())
                to_measure = worth_measuring(self.model, selections, least_share, self.uses)
                self.latest = selections
                self._reserve_time(measurer)
                best_us = selections[0].cost_us
                message = f"best cost {best_us:.0f} us, {len(to_measure)} of its kernels to measure, {measurer.measured} so far"
                self.budget.progress.update(message)
                if time_left() <= 0:
                    self.waiting = to_measure
                    return ()
                settled = () if to_measure else selections
                if not to_measure:
                    self.settled = selections
                    break
                measurer.measure_candidates(self.model, to_measure, time_left, self.budget.progress.update)
                self._reserve_time(measurer)
        return settled


def is_exact(selection: Selection) -> bool:
    """Return whether no kernel of a selection rounds its operands."""
    return all(candidate.implementation.precision == PLAIN for candidate in selection.chosen.values())


def worth_measuring(
    model: CostModel, selections: Sequence[Selection], least_share: float, blocks: Mapping[int, int]
) -> list[Candidate]:
    """Return the distinct chosen candidates without a time, those first in which a program spends most, in all its layers.

    ``blocks``: how many blocks of the model compute a class, where it is more than one. Generated kernels in which none spends
    ``least_share`` of its time stay estimated; a library's are always measured, since any may be a reference implementation.
    """
    chosen = [pair for selection in selections for pair in selection.chosen.items() if not pair[1].implementation.is_free]
    uses: Counter[object] = Counter()
    for number, candidate in chosen:
        uses[model.key(candidate)] += blocks.get(number, 1)
    least_us = least_share * min((selection.cost_us for selection in selections), default=0.0)
    spent_us = {c: uses[model.key(c)] * model.estimate_us(c) for c in unmeasured(model, [each for _, each in chosen])}
    worth = (c for c, time_us in spent_us.items() if time_us >= least_us or not c.implementation.is_generated)
    return sorted(worth, key=lambda candidate: -spent_us[candidate])


@dataclass
class Space:
    """The candidates of an e-graph, less what was left out, and how one chooses among them."""

    everything: Chooser
    first: Chooser | None
    """What rules alone made, where derivations made more."""
    part: DerivedPart | None
    laid: Mapping[int, tuple[Candidate, ...]]
    left_out: dict[int, float] = field(default_factory=dict)
    """Classes whose derived kernels are left out that expect as large an error, or a larger one."""
    may_derived_round: bool = True
    """Whether kernels that derivations made are offered in a lower precision."""

    @property
    def seconds(self) -> float:
        """Return how long it takes at least to extract other programs: the best one, and one that does not round."""
        return 2 * self.extract_seconds

    @property
    def extract_seconds(self) -> float:
        """Return how long a greedy extraction takes, of everything and of what rules alone made."""
        return sum(chooser.needed_seconds(1, greedy=True) for chooser in (self.everything, self.first) if chooser)

    def leave_out(self, errors: Mapping[int, float]) -> None:
        """Leave out the derived kernels of these classes that expect such errors, beside those that are left out already."""
        self.left_out |= {number: min(error, self.left_out.get(number, error)) for number, error in errors.items()}
        self.everything.candidates = self._offered(self.left_out)
        self.everything.settled = self.everything.latest = ()

    def rounds_what_is_derived(self, selection: Selection) -> bool:
        """Return whether kernels of a choice round that derivations made."""
        return self.part is not None and any(map(self._is_derived_and_rounds, selection.chosen.values()))

    def allow_derived_rounding(self, may_round: bool) -> None:
        """Say whether kernels may round that derivations made: a fast algorithm rounds sums of operands, and is about twice as far off."""
        self.may_derived_round = may_round
        self.leave_out({})

    def _is_derived_and_rounds(self, candidate: Candidate) -> bool:
        return candidate.implementation.precision != PLAIN and self.part is not None and self.part.is_derived(candidate)

    def chosen_without(self, errors: Mapping[int, float]) -> Selection:
        """Return the greedy choice without these, too."""
        model, chooser = self.everything.model, self.everything
        more = {number: min(error, self.left_out.get(number, error)) for number, error in errors.items()}
        priced = model.price(self._offered(self.left_out | more), chooser.uses)
        (selection,) = extract(chooser.frozen, priced, 1, 0.0, chooser.seed, chooser.budget.policy.extract)
        return selection

    def rehearse(
        self, outline: Outline, rehearsal: Rehearsal, chosen: Sequence[Selection] = (), open_program: OpenProgram | None = None
    ) -> bool:
        """Leave out applications of derivations that lose digits in ``chosen``, or in the greedy choice; return whether there are any.

        Where rules alone would lose as many, nothing is left out.
        """
        if self.part is None:
            return False
        frozen, changed = self.everything.frozen, False
        for number in range(rehearsal.policy.bisections):
            if rehearsal.time_left() <= rehearsal.seconds:
                break
            selection = chosen[0] if chosen and not changed else self.everything.choose(1, greedy=True)[0]
            applications = self.part.applications(selection)
            reason = applications and rehearsal.difference(outline.program(frozen, selection), open_program)
            if not reason:
                break

            def differs(kept: frozenset[int], every: Iterable[int] = applications.keys()) -> str:
                program = outline.program(frozen, self.chosen_without({at: 0.0 for at in every if at not in kept}))
                return rehearsal.difference(program, open_program)

            if differs(frozenset()):
                break
            errors = {at: self.part.error_of(candidate) or 0.0 for at, candidate in applications.items()}
            kept = rehearsal.kept(sorted(errors, key=lambda at: (errors[at], at)), differs)
            lost = [at for at in errors if at not in kept]
            names = sorted({rule for at in lost for node in applications[at].covered for rule in node.rules if rule in self.part.errors})
            rehearsal.notes.append(f"{len(lost)} of {len(errors)} uses of derived programs are left out ({', '.join(names)}): {reason}")
            # At last whatever is derived there is left out, not only what expects as large an error.
            is_last = number + 1 == rehearsal.policy.bisections
            self.leave_out({at: 0.0 if is_last else errors[at] for at in lost})
            changed = True
        return changed

    def _offered(self, left_out: Mapping[int, float]) -> dict[int, tuple[Candidate, ...]]:
        assert self.part is not None
        offered = self.part.without(self.laid, left_out)
        if not self.may_derived_round:
            offered = {number: tuple(c for c in options if not self._is_derived_and_rounds(c)) for number, options in offered.items()}
        return without_twins(self.everything.model, offered)
