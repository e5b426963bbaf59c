"""The phases of a search: lay candidates, measure and extract, first from what the rules made, then from everything.

Between both it is decided whether there is time to derive, and what is measured first is compiled beside that.
"""

from __future__ import annotations

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
"""Compiles kernels that are likely to be measured beside what is done next."""
Foresee: TypeAlias = Callable[[Outline, FrozenEGraph, Selection, bool], float]
"""Returns how many times the accepted error a choice is off that rounds; learns how far each kernel moves the outputs if told to."""
FORESEEN_SHARE = 0.3
"""Part of the time for measuring that is left for finding out how far a choice is off."""
LEAST_ACCURACY_GAIN = 1.2
"""How many times as large the error of a program has to be for a more accurate one to be preferred that takes longer."""
MOST_SLOWDOWN = 1.1
"""How many times as long that may be predicted to take."""
LOOKING_SHARE = 0.2
"""Part of the time for derivations in which it is found out what is compiled beside them, at most, but for the first choice."""
CHOICES_AT_LEAST = 3
"""Greedy choices that a derived program takes: before kernels are measured, to be rehearsed, and after that."""
REHEARSAL_MARGIN = 2.0
"""Times its estimate that the last rehearsal is given, at most."""


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
    """Return a chooser from an e-graph, and all its candidates: fused ones as far as there is time to lay them.

    ``is_timed``: whether time ends that; without, no clock is asked.
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
    """Return how long it takes at least to find a derived program: candidates are laid, some choices made, and one is rehearsed.

    ``first``: what chooses from what rules made, of which the e-graph with derived programs is ``growth`` times as large.
    """
    chosen_seconds = CHOICES_AT_LEAST * first.needed_seconds(1, greedy=True)
    return growth * (first.lay_seconds + chosen_seconds) + (rehearsal.seconds if rehearsal else 0.0)


@dataclass
class BetweenPhases:
    """What a search does once rules have settled: it finds out whether to derive, and has compiled what is measured first."""

    outline: Outline
    budget: Budget
    seed: int
    calibrated: Callable[[], CostModel]
    rehearsal: Rehearsal | None
    prepare: Prepare
    is_prepared: Callable[[], bool]
    derive_seconds: float
    """What derivations may take at least."""
    first: Chooser | None = None
    """What chooses from what the rules made, and all candidates of that, once they are laid."""
    laid: Laid = field(default_factory=dict)

    def may_derive(self, by_rules: FrozenEGraph) -> bool:
        """Lay the kernels of what rules made, and have those compiled that are measured first; return whether there is time to derive."""
        if not self.is_prepared():
            return True  # nothing waits for what the first run on a machine builds: derivations run beside it
        budget, policy = self.budget, self.budget.policy.measure
        model = self.calibrated()
        budget.progress.stage("derive")
        self.first, self.laid = chooser_of(self.outline, self.outline.in_order(by_rules), model, budget, self.seed, is_timed=True)
        pace_seconds = budget.seconds_to_compile(1)
        kernels = int(self.derive_seconds / pace_seconds) if pace_seconds else policy.batch
        likely = self.first.look_ahead(kernels, LOOKING_SHARE * self.derive_seconds)
        left_seconds = budget.measuring_seconds() - self.derive_seconds
        if derived_seconds(self.first, self.rehearsal) > policy.laid_share * left_seconds:
            return False  # the e-graph with derived programs may be smaller: rules that time cut short go on in it
        self.prepare(likely)
        return True

    def in_order(self, saturation: Saturation) -> Saturation:
        """Return a saturation whose e-graphs are those of the outline, in order; what was laid is of one of them."""
        if self.first is not None and saturation.by_rules is None:
            return replace(saturation, frozen=self.first.frozen)
        by_rules = self.first.frozen if self.first else saturation.by_rules and self.outline.in_order(saturation.by_rules)
        return replace(saturation, frozen=self.outline.in_order(saturation.frozen), by_rules=by_rules)


@dataclass
class Choosing:
    """Lay candidates, measure and extract: first from what the rules made, then from everything."""

    outline: Outline
    saturation: Saturation
    model: CostModel
    budget: Budget
    seed: int
    rehearsal: Rehearsal | None = None
    is_timed: bool = False
    """Whether time ends what is done; without, no clock is asked."""
    foresee: Foresee | None = None
    first: Chooser | None = None
    """What chooses from what rules alone made, and all candidates of that, where they were laid while the e-graph grew."""
    laid: Laid = field(default_factory=dict)

    def chooser(self, frozen: FrozenEGraph) -> tuple[Chooser, Laid]:
        """Return a chooser from an e-graph, and all its candidates."""
        if self.first is not None and self.first.frozen is frozen:
            return self.first, self.laid
        return chooser_of(self.outline, frozen, self.model, self.budget, self.seed, is_timed=self.is_timed)

    def space(self, first: Chooser | None = None) -> Space:
        """Return all that programs can be extracted from."""
        by_rules, frozen = self.saturation.by_rules, self.saturation.frozen
        if first is None and by_rules is not None:
            first, _ = self.chooser(by_rules)
        everything, laid = self.chooser(frozen)
        errors = self.rehearsal.errors() if self.rehearsal else {}
        return Space(everything, first, derived_part(by_rules, frozen, errors) if by_rules is not None else None, laid)

    def choose(self, measurer: Measures | None, finalists: int, laid: Space | None = None) -> tuple[Choice, Space | None]:
        """Return what is chosen, and what from; None where there was only time for what the rules made.

        ``laid``: what one chooses from, where that was laid before.
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
        is_timed = measurer is not None
        selections, by_rules = self._extracted(first, everything, settled, finalists, is_timed=is_timed)
        for _ in range(policy.library_rounds):
            if measurer is None or not self._proved_slow(measurer, (*selections, *by_rules)):
                break
            selections, by_rules = self._extracted(first, everything, (), finalists, is_timed=is_timed)
        chosen = [(selections, everything), (by_rules, first or everything)]
        priced = ((some, chooser.uses) for some, chooser in chosen if some)
        open_keys = {model.key(each) for some, uses in priced for each in worth_measuring(model, some, policy.negligible, uses)}
        seconds = everything.seconds + (first.seconds if first and everything is not first else 0.0)
        count = len(open_keys) if measurer is not None else 0
        return Choice(selections, by_rules, refused(model, everything.candidates), seconds, count), space

    def _extracted(
        self, first: Chooser | None, everything: Chooser, settled: tuple[Selection, ...], finalists: int, *, is_timed: bool
    ) -> tuple[tuple[Selection, ...], tuple[Selection, ...]]:
        """Return the best selections of everything, or what was ``settled``, and the best of what rules alone made, at believed costs.

        Estimates are met with caution: there is no time to measure them. What is chosen without is raced, too, where it promises more. The
        first are empty where derived programs are left out.
        """
        model = self.model
        model.caution = self.budget.policy.extract.caution
        selections = settled or everything.choose_in_time(finalists, is_timed=is_timed)
        selections = everything.with_exact(selections, finalists)
        by_rules = first.choose_in_time(1, is_timed=is_timed) if first is not None and everything is not first else ()
        model.caution = 1.0
        selections, by_rules = everything.repriced(selections), first.repriced(by_rules) if first is not None else ()
        if is_timed and not settled:
            selections = everything.with_estimated(selections, finalists)
        return ((), selections) if everything is first else (selections, by_rules)

    def _proved_slow(self, measurer: Measures, selections: Iterable[Selection]) -> bool:
        """Measure the chosen kernels of libraries that were not; return whether one failed: it has a reference implementation only.

        That is known before such a kernel runs. Where time ended measuring, four of a Mamba's took 50 ms each.
        """
        chosen = [candidate for selection in selections for candidate in selection.chosen.values()]
        called = [candidate for candidate in unmeasured(self.model, chosen) if candidate.implementation.is_library]
        measurer.measure_candidates(self.model, called, self.budget.compiling_seconds, self.budget.progress.update)
        records = map(self.model.record, called)
        return any(record is not None and record.median_us is None for record in records)

    def _laid(self, measurer: Measures | None) -> tuple[Chooser | None, Chooser, Space | None]:
        """Lay the candidates of both e-graphs, as far as there is time.

        Return the chooser from what rules alone made (None where derivations made nothing), the one to choose programs from, and the space
        with derived programs (None where there is no time for these).
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
                first.refine(measurer, lambda: budget.measuring_seconds() - kept_seconds, quick(policy))  # the rest is common to both
            if later_seconds > min(most_seconds, budget.measuring_seconds()):
                return first, first, None  # there is no time to measure the kernels of derived programs
        space = self.space(first)
        return first, space.everything, space

    def _settled(self, everything: Chooser, space: Space | None, measurer: Measures, rounds: Rounds) -> tuple[Selection, ...]:
        """Measure and extract, with what is chosen rehearsed before much is measured, and at the end."""
        left, rehearsal = self.budget.measuring_seconds, self.rehearsal
        if space is None or space.part is None or rehearsal is None:
            self._foresee(everything, space, measurer)
            return everything.settle(measurer, left, rounds, is_final=True)
        if left() > rehearsal.seconds and (expected := rehearsal.expected_errors(space.part, space.laid)):
            space.leave_out(expected)
            reason = "their transforms would lose too many digits on values of the sizes that this model computes"
            rehearsal.notes.append(f"derived programs of {len(expected)} values are left out: {reason}")
        kept_seconds = FORESEEN_SHARE * left() if self.foresee else 0.0
        everything.refine(measurer, lambda: left() - kept_seconds, quick(self.budget.policy.measure))
        started_seconds = self.budget.spent_seconds
        space.rehearse(self.outline, rehearsal)
        rehearsal_seconds = self.budget.spent_seconds - started_seconds
        # A Mamba of 1,440 kernels takes 4 s for both. The first may have been bisected, which takes several runs: the last mostly is not.
        self.budget.ending_seconds = min(rehearsal_seconds, REHEARSAL_MARGIN * rehearsal.seconds) + space.seconds
        self._foresee(everything, space, measurer)
        settled = everything.settle(measurer, left, rounds, is_final=True)
        if space.rehearse(self.outline, rehearsal, settled):
            settled = everything.settle(measurer, left, rounds, is_final=True)
        return settled

    def _foresee(self, everything: Chooser, space: Space | None, measurer: Measures) -> None:
        """Learn how far the kernels of the first choice move the outputs, where they round.

        Where it is too far off and what derivations made takes part in that, it is compared with the choice in which that does not round.
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
