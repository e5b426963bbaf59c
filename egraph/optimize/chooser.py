"""Extract by the known costs, measure the chosen kernels, extract again, until no chosen kernel is estimated or time is up.

A ``Space`` is the set of candidates that programs are extracted from, without those that prove wrong or lose digits.
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
"""For each round: the largest number of extractions, the programs that each finds, and whether it is greedy. Each measures its choice."""


LAST_CHOICES = 2
"""Time of the search after measuring (it chooses, and writes out the program), in multiples of a greedy choice."""

LEAST_ESTIMATED_GAIN = 1.3
"""Least predicted speedup at which a program with many estimates is raced beside the one with few. With less it mostly proves slower: an
EfficientNet's program was predicted to be 1.1 times as fast, and took 1.03 times as long.
"""
COSTLY_SHARE = 0.05
"""Part of the budget above which ``LAST_CHOICES`` take long enough for the latest choice to be kept if time is short."""


def quick(policy: MeasurePolicy) -> Rounds:
    """Return the rounds that choose one program greedily."""
    return ((policy.greedy_rounds, 1, True),)


def exact(policy: MeasurePolicy) -> Rounds:
    """Return the rounds that find the best program exactly."""
    return ((policy.exact_rounds, 1, False),)


def varied(policy: MeasurePolicy, count: int) -> Rounds:
    """Return the rounds that measure all programs that are going to be timed."""
    return ((policy.variant_rounds, count, False),)


@dataclass
class Chooser:
    """Extracts programs from one e-graph by the costs known so far."""

    frozen: FrozenEGraph
    candidates: Mapping[int, tuple[Candidate, ...]]
    model: CostModel
    budget: Budget
    extract_seconds: float
    seed: int
    lay_seconds: float = 0.0
    """Time that it took to lay the candidates."""
    seconds: float = 0.0
    """Time spent on the extracted programs."""
    longest: dict[tuple[bool, bool], float] = field(default_factory=dict)
    """Seconds of the longest extraction so far, by (several programs, greedy)."""
    settled: tuple[Selection, ...] = ()
    """The last choice whose kernels were all measured."""
    latest: tuple[Selection, ...] = ()
    """The last choice, whether its kernels were measured or estimated."""
    uses: Mapping[int, int] = field(default_factory=dict)
    """Number of blocks of the model that compute a class, if more than one."""
    waiting: Sequence[Candidate] = ()
    """The candidates that were still to be measured when time was up."""
    cautious_work: float | None = None
    """Work of compiling the program that is chosen with caution about estimates, or None if none was chosen yet."""

    def choose(self, count: int, *, greedy: bool = False, most_seconds: float = math.inf) -> tuple[Selection, ...]:
        """Extract ``count`` programs; an exact extraction returns the best so far after ``most_seconds``."""
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
        """Extract as many programs, and as exactly, as there is time for; if not ``is_timed``, no clock is read."""
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
        # The settled choice may be older than the last measurements, and the newest may contain estimates: both are compared.
        return tuple(sorted((*newest, *self.repriced(self.settled)), key=lambda selection: selection.cost_us)[:count])

    def with_exact(self, selections: tuple[Selection, ...], most: int) -> tuple[Selection, ...]:
        """Return ``most`` selections, including one that does not round its operands, because the errors of all others may be too large."""
        policy = self.budget.policy.extract
        if not selections or any(is_exact(selection) for selection in selections[:most]):
            return selections[:most]
        exact = {n: tuple(each for each in options if each.implementation.precision == PLAIN) for n, options in self.candidates.items()}
        return (*selections[: max(1, most - 1)], *extract(self.frozen, self.model.price(exact, self.uses), 1, 0.0, self.seed, policy))

    def with_estimated(self, selections: tuple[Selection, ...], most: int) -> tuple[Selection, ...]:
        """Return ``most`` selections; the second is the latest choice if it is believed to be clearly faster than the first.

        The latest choice contains estimates if time ended measuring, while the first was chosen with caution about estimates. A race
        decides which is faster. The time to compile the latest choice's kernels is reserved.
        """
        latest = self.repriced(self.latest[:1])
        if not (latest and selections) or LEAST_ESTIMATED_GAIN * latest[0].cost_us >= selections[0].cost_us:
            return selections
        return (*selections[:1], *latest, *selections[1:])[:most]

    def with_compiled(self, selections: tuple[Selection, ...], most: int, measurer: Measures) -> tuple[Selection, ...]:
        """Return ``most`` selections; the last one has hardly any kernels to compile if the first may be compiled too late.

        For example, of the 10 s for an Inception, 1.1 s were left for its 15 kernels, and it was kept unchanged. A program that is
        predicted to be slower than the model is not worth a race.
        """
        budget = self.budget
        work = measurer.uncompiled_work(selections[0].chosen.values()) if selections else 0.0
        if not budget.may_compile_late(work) or self.needed_seconds(1, greedy=True) > budget.compiling_seconds():
            return selections
        offered, policy = self._compiled_candidates(measurer), budget.policy.extract
        ready = self.repriced(extract(self.frozen, self.model.price(offered, self.uses), 1, 0.0, self.seed, policy))
        is_worth_it = ready and ready[0].cost_us < 1e6 * budget.run_seconds and measurer.uncompiled_work(ready[0].chosen.values()) < work
        return (*selections[: max(1, most - 1)], *ready) if is_worth_it else selections

    def _compiled_candidates(self, measurer: Measures) -> dict[int, tuple[Candidate, ...]]:
        """Return the candidates of each class that need no compilation, or all of them if each needs one."""

        def is_ready(candidate: Candidate) -> bool:
            return not (candidate.implementation.is_generated and measurer.uncompiled_work((candidate,)))

        return {number: tuple(filter(is_ready, options)) or options for number, options in self.candidates.items()}

    def _reserve_time(self, measurer: Measures) -> None:
        """Tell the budget how much work it is to compile the latest choice, and how many kernels its program has.

        Kernels that take too little time to be measured are counted. For example, a recurrence of 64 steps had 126, each a copy of its own,
        and was not raced. Kernels that were compiled while the search ran are not counted: 53 of 77 in a search of an Inception,
        which take 8 s to compile.
        """
        running = (number for number, each in self.latest[0].chosen.items() if not each.implementation.is_free)
        uncompiled = unmeasured(self.model, [each for selection in self.latest for each in selection.chosen.values()])
        work = measurer.uncompiled_work(uncompiled)
        self.budget.uncompiled_work = work if self.cautious_work is None else min(work, self.cautious_work)
        self.budget.chosen_kernels = sum(self.uses.get(number, 1) for number in running)

    def _reserve_less_time(self, measurer: Measures) -> bool:
        """Reserve the compile time of the program that is chosen with caution about estimates; return whether this may save time.

        That program is the one to be compiled if measuring ends now. The latest choice, for which time was reserved so far, has many more
        uncompiled kernels: they seem fast because they are estimated. For example, 15 s of 55 were reserved for 102 kernels of a text
        detector, and were not used. Nothing is chosen if compiling takes no longer than ``LAST_CHOICES`` anyway.
        """
        if self.budget.seconds_to_compile(self.budget.uncompiled_work) <= LAST_CHOICES * self.needed_seconds(1, greedy=True):
            return False
        self.model.caution = self.budget.policy.extract.caution
        try:
            (selection,) = self.choose(1, greedy=True)
        finally:
            self.model.caution = 1.0
        self.cautious_work = measurer.uncompiled_work(unmeasured(self.model, selection.chosen.values()))
        self._reserve_time(measurer)
        return True

    def repriced(self, selections: Iterable[Selection]) -> tuple[Selection, ...]:
        """Return selections at their believed costs, whatever costs they were chosen by. A selection's cost sums over all blocks."""
        return tuple(map(self._repriced, selections))

    def _repriced(self, selection: Selection) -> Selection:
        chosen = {number: replace(candidate, cost_us=self.model.cost_us(candidate)) for number, candidate in selection.chosen.items()}
        cost_us = math.fsum(self.uses.get(number, 1) * candidate.cost_us for number, candidate in chosen.items())
        return replace(selection, chosen=chosen, cost_us=cost_us)

    def needed_seconds(self, count: int, *, greedy: bool = False) -> float:
        """Return the expected seconds of an extraction, from the extractions so far."""
        by_greed = self.longest.get((False, True), 0.0)
        policy = self.budget.policy.extract
        times = policy.variants_over_greedy if count > 1 else policy.exact_over_greedy
        return self.longest.get((count > 1, greedy), by_greed * (1.0 if greedy else times))

    def look_ahead(self, kernels: int, seconds: float) -> list[Job]:
        """Choose greedily what is measured first; return about this many ``kernels`` that are likely to be measured.

        The best program's kernels come first. They are followed by those of the programs that are best if the kernels before prove slower
        than estimated, as long as choosing takes no longer than ``seconds``.
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
        """Measure the most promising kernels, then library kernels, then the new choice; return what ``refine`` does.

        Many library kernels are never chosen, whatever the other times are. They are measured if there is time, because an estimate may
        have been too high. If ``is_final``, the estimated kernels of the best program are measured too, however fast they are believed to
        be. For example, forty small kernels of an EfficientNet took 350 us together, not 70.

        If time is up and ``is_final``, less time may be reserved for compiling, and measuring goes on.
        """
        settled = self._settle_once(measurer, time_left, rounds, is_final=is_final)
        if settled or not (is_final and self.latest and self._reserve_less_time(measurer)):
            return settled
        return self._settle_once(measurer, time_left, rounds, is_final=True)

    def _settle_once(
        self, measurer: Measures, time_left: Callable[[], float], rounds: Rounds, *, is_final: bool
    ) -> tuple[Selection, ...]:
        """Do what ``settle`` does, until the time runs out that is not reserved."""
        self.refine(measurer, time_left, quick(self.budget.policy.measure))
        self.measure_families(measurer, time_left)
        settled = self.refine(measurer, time_left, quick(self.budget.policy.measure) + rounds)
        if not (settled and is_final and self.refine(measurer, time_left, rounds[:1], negligible=0.0)):
            return settled
        return self.refine(measurer, time_left, rounds)

    def measure_families(self, measurer: Measures, time_left: Callable[[], float]) -> None:
        """Measure one kernel of each family of library kernels, in a part of the remaining time."""
        later_seconds = (1.0 - self.budget.policy.measure.family_share) * time_left()
        for _ in range(self.budget.policy.measure.family_rounds):
            if time_left() <= later_seconds:
                return
            unmeasured_jobs = jobs(self.model, self.candidates)
            measurer.measure_candidates(self.model, unmeasured_jobs, lambda: time_left() - later_seconds, self.budget.progress.update)

    def refine(
        self, measurer: Measures, time_left: Callable[[], float], rounds: Rounds, negligible: float | None = None
    ) -> tuple[Selection, ...]:
        """Measure the chosen kernels and extract again until all chosen ones are measured; return that choice, or () if time is up.

        The first rounds choose only the best program, which is quick; the later rounds choose all programs that are going to be timed.
        ``negligible`` is the part of a program's time below which a generated kernel stays estimated; by default it is the policy's.
        """
        least_share = self.budget.policy.measure.negligible if negligible is None else negligible
        settled: tuple[Selection, ...] = ()
        if self.waiting and time_left() > 0:  # choosing the same again may take all the time that is left
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
    """Return the distinct chosen candidates without a time, in order of the time that a program spends in all their uses.

    ``blocks`` gives the number of blocks of the model that compute a class, if more than one. A generated kernel that takes less than
    ``least_share`` of every program's time stays estimated. Library kernels are always measured, because any may be a reference
    implementation.
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
    """The candidates of an e-graph, without the excluded ones, and the choosers that select among them."""

    everything: Chooser
    first: Chooser | None
    """Chooser for the rules' e-graph, if derivations added to it."""
    part: DerivedPart | None
    laid: Mapping[int, tuple[Candidate, ...]]
    left_out: dict[int, float] = field(default_factory=dict)
    """By class, the expected error from which on its derived kernels are excluded."""
    may_derived_round: bool = True
    """Whether derived kernels are offered in a lower precision."""

    @property
    def seconds(self) -> float:
        """Return the least seconds to extract other programs: the best one, and one that does not round."""
        return 2 * self.extract_seconds

    @property
    def extract_seconds(self) -> float:
        """Return the seconds of two greedy extractions, from everything and from the rules' e-graph."""
        return sum(chooser.needed_seconds(1, greedy=True) for chooser in (self.everything, self.first) if chooser)

    def leave_out(self, errors: Mapping[int, float]) -> None:
        """Exclude, in addition, the derived kernels of these classes whose expected errors are at least as large."""
        self.left_out |= {number: min(error, self.left_out.get(number, error)) for number, error in errors.items()}
        self.everything.candidates = self._offered(self.left_out)
        self.everything.settled = self.everything.latest = ()
        self.everything.cautious_work = None

    def rounds_what_is_derived(self, selection: Selection) -> bool:
        """Return whether derived kernels of a choice round."""
        return self.part is not None and any(map(self._is_derived_and_rounds, selection.chosen.values()))

    def allow_derived_rounding(self, may_round: bool) -> None:
        """Set whether derived kernels may round: a fast algorithm rounds sums of operands, so its error is about twice as large."""
        self.may_derived_round = may_round
        self.leave_out({})

    def _is_derived_and_rounds(self, candidate: Candidate) -> bool:
        return candidate.implementation.precision != PLAIN and self.part is not None and self.part.is_derived(candidate)

    def chosen_without(self, errors: Mapping[int, float]) -> Selection:
        """Return the greedy choice that also excludes the derived kernels with these errors."""
        model, chooser = self.everything.model, self.everything
        more = {number: min(error, self.left_out.get(number, error)) for number, error in errors.items()}
        priced = model.price(self._offered(self.left_out | more), chooser.uses)
        (selection,) = extract(chooser.frozen, priced, 1, 0.0, chooser.seed, chooser.budget.policy.extract)
        return selection

    def rehearse(
        self, outline: Outline, rehearsal: Rehearsal, chosen: Sequence[Selection] = (), open_program: OpenProgram | None = None
    ) -> bool:
        """Exclude applications of derivations that lose digits in ``chosen``, or in the greedy choice; return whether there are any.

        If the choice without derivations loses as many digits, nothing is excluded.
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
            # The last bisection excludes every derived kernel of these classes, not only those that expect as large an error.
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
