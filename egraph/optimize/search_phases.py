"""The phases of a search: lay candidates, measure and extract, first from the rules' e-graph, then from everything.

Between the phases, the search decides whether there is time to derive. While derivations run, the kernels that are measured first are
compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from egraph.engine.saturate import Saturation
from egraph.optimize.budget import Budget
from egraph.optimize.choice import Choice
from egraph.optimize.chooser import Chooser, Rounds, Space, exact, quick, varied, worth_measuring
from egraph.optimize.measuring import Job, Measures
from egraph.optimize.outcome import REFUSALS, Kind, Refused
from egraph.optimize.outline import Outline
from egraph.optimize.rehearsal import Rehearsal, derived_part
from egraph.tensor import Candidate, FrozenEGraph, Selection
from lower.candidates import candidates as lay_candidates
from lower.cost.model import CostModel, unmeasured, without_twins
from runtime.judge import ONLY_REFERENCE

Laid: TypeAlias = Mapping[int, tuple[Candidate, ...]]
"""All candidates of an e-graph, by class."""
Prepare: TypeAlias = Callable[[Sequence[Job]], None]
"""Compiles kernels that are likely to be measured while the next step runs."""
Foresee: TypeAlias = Callable[[Outline, FrozenEGraph, Selection, bool], float]
"""Returns the error of a choice that rounds, in multiples of the accepted error; if the flag is set, learns each kernel's effect."""
FORESEEN_SHARE = 0.3
"""Part of the time for measuring that is kept for predicting the error of a choice."""
LEAST_ACCURACY_GAIN = 1.2
"""A slower, more accurate program is preferred only if the error of the faster one is at least this many times as large."""
MOST_SLOWDOWN = 1.1
"""Largest predicted time of the more accurate program, in multiples of the faster one's."""
LOOKING_SHARE = 0.2
"""Largest part of the time for derivations that is spent on choosing the kernels to compile meanwhile; the first choice is always made."""
CHOICES_AT_LEAST = 3
"""Number of greedy choices that a derived program takes: before measuring, for its rehearsal, and after that."""
REHEARSAL_MARGIN = 2.0
"""Largest time kept for the last rehearsal, in multiples of its estimate."""


def refused(model: CostModel, candidates: Mapping[int, Iterable[Candidate]]) -> tuple[Refused, ...]:
    """Return the distinct candidates that the database knows to be unusable, the wrong ones first."""
    rows: dict[tuple[str, str], Refused] = {}
    for options in candidates.values():
        for candidate in options:
            record = model.record(candidate)
            if record is None or record.status == "ok":
                continue
            kind: Kind = "slow" if ONLY_REFERENCE in record.message else record.status
            key = model.key(candidate)
            rows[key] = Refused(kind, candidate.implementation.text, key[0], record.message)
    order = list(REFUSALS)
    return tuple(sorted(rows.values(), key=lambda r: (order.index(r.kind), r.implementation, r.fragment)))


def chooser_of(
    outline: Outline, frozen: FrozenEGraph, model: CostModel, budget: Budget, seed: int, *, is_timed: bool
) -> tuple[Chooser, Laid]:
    """Return a chooser for an e-graph and all its candidates, with as many fused ones as there is time to lay.

    If not ``is_timed``, no clock is read.
    """
    policy = budget.policy.measure
    started, kept_seconds = budget.spent_seconds, (1.0 - policy.laid_share) * max(0.0, budget.measuring_seconds())

    def is_late() -> bool:
        is_small = budget.spent_seconds - started < policy.laid_least_seconds
        return is_timed and not is_small and budget.measuring_seconds() <= kept_seconds

    laid = lay_candidates(frozen, model.target, policy=budget.policy.candidates, is_late=is_late)
    offered = without_twins(model, laid)
    lay_seconds, extract_seconds = budget.spent_seconds - started, budget.policy.extract.share * budget.seconds
    return Chooser(frozen, offered, model, budget, extract_seconds, seed, lay_seconds, uses=outline.uses(frozen)), laid


def derived_seconds(first: Chooser, rehearsal: Rehearsal | None, growth: float = 1.0) -> float:
    """Return the least seconds to find a derived program: candidates are laid, some choices are made, and one is rehearsed.

    ``first`` chooses from the rules' e-graph; the e-graph with derived programs is ``growth`` times as large.
    """
    chosen_seconds = CHOICES_AT_LEAST * first.needed_seconds(1, greedy=True)
    return growth * (first.lay_seconds + chosen_seconds) + (rehearsal.seconds if rehearsal else 0.0)


@dataclass
class BetweenPhases:
    """The step of a search after the rules have settled: decide whether to derive, and compile the kernels that are measured first."""

    outline: Outline
    budget: Budget
    seed: int
    calibrated: Callable[[], CostModel]
    rehearsal: Rehearsal | None
    prepare: Prepare
    is_prepared: Callable[[], bool]
    derive_seconds: float
    """Least time that derivations may take."""
    first: Chooser | None = None
    """Chooser for the rules' e-graph, once its candidates (``laid``) are laid."""
    laid: Laid = field(default_factory=dict)

    def most_growth(self, by_rules: FrozenEGraph) -> float:
        """Lay the kernels of the rules' e-graph, and compile those that are measured first.

        Return how many times as large derivations may make the e-graph, or 0 if there is no time to derive.
        """
        if not self.is_prepared():
            return math.inf  # the first run on a machine still builds libraries: derivations run meanwhile
        budget, policy = self.budget, self.budget.policy.measure
        model = self.calibrated()
        budget.progress.stage("derive")
        self.first, self.laid = chooser_of(self.outline, self.outline.in_order(by_rules), model, budget, self.seed, is_timed=True)
        pace_seconds = budget.seconds_to_compile(1)
        kernels = int(self.derive_seconds / pace_seconds) if pace_seconds else policy.batch
        likely = self.first.look_ahead(kernels, LOOKING_SHARE * self.derive_seconds)
        left_seconds = budget.measuring_seconds() - self.derive_seconds
        least_seconds = derived_seconds(self.first, self.rehearsal)
        if least_seconds > policy.laid_share * left_seconds:
            return 0.0  # no growth is assumed: rules that were cut short go on in the derived e-graph and may shrink it
        self.prepare(likely)
        each_seconds = derived_seconds(self.first, self.rehearsal, 2.0) - least_seconds
        spare_seconds = policy.derived_laid_share * left_seconds - least_seconds
        return max(1.0, 1.0 + spare_seconds / each_seconds) if each_seconds else math.inf

    def in_order(self, saturation: Saturation) -> Saturation:
        """Return the saturation with its e-graphs in the outline's order; an e-graph whose candidates are laid is reused."""
        if self.first is not None and saturation.by_rules is None:
            return replace(saturation, frozen=self.first.frozen)
        by_rules = self.first.frozen if self.first else saturation.by_rules and self.outline.in_order(saturation.by_rules)
        return replace(saturation, frozen=self.outline.in_order(saturation.frozen), by_rules=by_rules)


@dataclass
class Choosing:
    """Lay candidates, measure and extract: first from the rules' e-graph, then from everything."""

    outline: Outline
    saturation: Saturation
    model: CostModel
    budget: Budget
    seed: int
    rehearsal: Rehearsal | None = None
    is_timed: bool = False
    """Whether steps end when time is up; if not, no clock is read."""
    foresee: Foresee | None = None
    first: Chooser | None = None
    """Chooser for the rules' e-graph, if its candidates (``laid``) were laid while the e-graph grew."""
    laid: Laid = field(default_factory=dict)

    def chooser(self, frozen: FrozenEGraph) -> tuple[Chooser, Laid]:
        """Return a chooser for an e-graph and all its candidates."""
        if self.first is not None and self.first.frozen is frozen:
            return self.first, self.laid
        return chooser_of(self.outline, frozen, self.model, self.budget, self.seed, is_timed=self.is_timed)

    def space(self, first: Chooser | None = None) -> Space:
        """Return the space that programs are extracted from."""
        by_rules, frozen = self.saturation.by_rules, self.saturation.frozen
        if first is None and by_rules is not None:
            first, _ = self.chooser(by_rules)
        everything, laid = self.chooser(frozen)
        errors = self.rehearsal.errors() if self.rehearsal else {}
        return Space(everything, first, derived_part(by_rules, frozen, errors) if by_rules is not None else None, laid)

    def choose(self, measurer: Measures | None, finalists: int, laid: Space | None = None) -> tuple[Choice, Space | None]:
        """Return the choice and the space it was made from; no space if there was only time for the rules' e-graph.

        ``laid`` is the space if it was laid before.
        """
        model, budget = self.model, self.budget
        progress, policy = budget.progress, budget.policy.measure
        settled: tuple[Selection, ...] = ()
        if measurer is not None:
            progress.stage("measure")
        first, everything, space = self._laid(measurer) if laid is None else (laid.first, laid.everything, laid)
        if measurer is not None:
            settled = self._settled(everything, space, measurer, exact(policy) + varied(policy, finalists))
        progress.stage("extract")
        selections, by_rules = self._extracted(first, everything, settled, finalists, measurer)
        for _ in range(policy.library_rounds):
            if measurer is None or not self._proved_slow(measurer, (*selections, *by_rules)):
                break
            selections, by_rules = self._extracted(first, everything, (), finalists, measurer)
        chosen = [(selections, everything), (by_rules, first or everything)]
        priced = ((some, chooser.uses) for some, chooser in chosen if some)
        open_keys = {model.key(each) for some, uses in priced for each in worth_measuring(model, some, policy.negligible, uses)}
        seconds = everything.seconds + (first.seconds if first and everything is not first else 0.0)
        count = len(open_keys) if measurer is not None else 0
        return Choice(selections, by_rules, refused(model, everything.candidates), seconds, count), space

    def _extracted(
        self, first: Chooser | None, everything: Chooser, settled: tuple[Selection, ...], finalists: int, measurer: Measures | None
    ) -> tuple[tuple[Selection, ...], tuple[Selection, ...]]:
        """Return the best selections of everything (or ``settled``), and the best one by rules alone, at their believed costs.

        Estimates are multiplied by a safety factor because there is no time left to measure them. The best choice without that factor is
        raced, too, if it promises clearly more, and one of compiled kernels if the best may be compiled too late. The first selections are
        empty if derived programs are left out.
        """
        model, is_timed = self.model, measurer is not None
        model.caution = self.budget.policy.extract.caution
        selections = settled or everything.choose_in_time(finalists, is_timed=is_timed)
        selections = everything.with_exact(selections, finalists)
        by_rules = first.choose_in_time(1, is_timed=is_timed) if first is not None and everything is not first else ()
        model.caution = 1.0
        selections, by_rules = everything.repriced(selections), first.repriced(by_rules) if first is not None else ()
        if measurer is not None and not settled:
            selections = everything.with_estimated(selections, finalists)
            selections = everything.with_compiled(selections, finalists, measurer)
        return ((), selections) if everything is first else (selections, by_rules)

    def _proved_slow(self, measurer: Measures, selections: Iterable[Selection]) -> bool:
        """Measure the chosen library kernels that have no time; return whether one failed because it is a reference implementation.

        This is detected before such a kernel runs. For example, when time ended measuring, four such kernels of a Mamba took 50 ms each.
        The time to compile the chosen kernels is left.
        """
        budget = self.budget
        untimed = unmeasured(self.model, [candidate for selection in selections for candidate in selection.chosen.values()])
        compile_seconds = budget.seconds_to_compile(measurer.uncompiled_work(untimed))
        called = [candidate for candidate in untimed if candidate.implementation.is_library]
        measurer.measure_candidates(self.model, called, lambda: budget.compiling_seconds() - compile_seconds, budget.progress.update)
        records = map(self.model.record, called)
        return any(record is not None and record.median_us is None for record in records)

    def _laid(self, measurer: Measures | None) -> tuple[Chooser | None, Chooser, Space | None]:
        """Lay the candidates of both e-graphs, as far as there is time.

        Return the chooser for the rules' e-graph (None if derivations added nothing), the chooser for programs, and the space with derived
        programs (None if there is no time for them).
        """
        saturation, budget, policy = self.saturation, self.budget, self.budget.policy.measure
        first = self.chooser(saturation.by_rules)[0] if saturation.by_rules else None
        if first is None:
            space = self.space()
            return None, space.everything, space
        later_seconds = derived_seconds(first, self.rehearsal, len(saturation.frozen.classes) / len(first.frozen.classes))
        if measurer is not None:
            most_seconds = policy.laid_share * max(0.0, budget.measuring_seconds())
            if later_seconds <= most_seconds:
                kept_seconds = later_seconds + policy.derived_share * (budget.measuring_seconds() - later_seconds)
                kept_seconds = max(kept_seconds, later_seconds / policy.laid_share)
                first.refine(measurer, lambda: budget.measuring_seconds() - kept_seconds, quick(policy))  # later rounds serve both
            if later_seconds > min(most_seconds, budget.measuring_seconds()):
                return first, first, None  # there is no time to measure the kernels of derived programs
        space = self.space(first)
        return first, space.everything, space

    def _settled(self, everything: Chooser, space: Space | None, measurer: Measures, rounds: Rounds) -> tuple[Selection, ...]:
        """Measure and extract; the choice is rehearsed before much is measured, and again at the end."""
        left, rehearsal = self.budget.measuring_seconds, self.rehearsal
        if space is None or space.part is None or rehearsal is None:
            self._foresee(everything, space, measurer)
            return everything.settle(measurer, left, rounds, is_final=True)
        if left() > rehearsal.seconds and (expected := rehearsal.expected_errors(space.part, space.laid)):
            space.leave_out(expected)
            reason = "their transforms would lose too many digits on values of the sizes that this model computes"
            rehearsal.notes.append(f"derived programs of {len(expected)} values are left out: {reason}")
        kept_seconds = FORESEEN_SHARE * left() if self.foresee else 0.0
        kept_seconds += rehearsal.seconds
        everything.refine(measurer, lambda: left() - kept_seconds, quick(self.budget.policy.measure))
        started_seconds = self.budget.spent_seconds
        space.rehearse(self.outline, rehearsal)
        rehearsal_seconds = self.budget.spent_seconds - started_seconds
        # The first rehearsal may include a bisection of several runs, the last one mostly does not. Rehearsal and extraction of a Mamba of
        # 1,440 kernels take 4 s.
        self.budget.ending_seconds = min(rehearsal_seconds, REHEARSAL_MARGIN * rehearsal.seconds) + space.seconds
        self._foresee(everything, space, measurer)
        settled = everything.settle(measurer, left, rounds, is_final=True)
        if space.rehearse(self.outline, rehearsal, settled):
            settled = everything.settle(measurer, left, rounds, is_final=True)
        return settled

    def _foresee(self, everything: Chooser, space: Space | None, measurer: Measures) -> None:
        """Learn how far the rounding kernels of the first choice move the outputs.

        If its error is too large and derived kernels round in it, it is compared with the choice in which derived kernels do not round.
        """
        left = self.budget.measuring_seconds
        if self.foresee is None:
            return
        kept_seconds = FORESEEN_SHARE * left()
        everything.refine(measurer, lambda: left() - kept_seconds, quick(self.budget.policy.measure))
        if left() > everything.needed_seconds(1, greedy=True):
            foresee = partial(self.foresee, self.outline, everything.frozen)
            (selection,) = everything.repriced(everything.choose(1, greedy=True))
            if space is not None and space.rounds_what_is_derived(selection):
                if (tolerances := foresee(selection, False)) <= 1.0:
                    return
                space.allow_derived_rounding(False)
                (plain,) = everything.repriced(everything.choose(1, greedy=True))
                is_as_fast = plain.cost_us <= MOST_SLOWDOWN * selection.cost_us
                is_plain = is_as_fast and 0.0 < LEAST_ACCURACY_GAIN * foresee(plain, False) < tolerances
                space.allow_derived_rounding(not is_plain)
                selection = plain if is_plain else selection
            foresee(selection, True)
