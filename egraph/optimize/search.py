"""From a graph to its few best programs: saturate, price, extract, measure what was chosen, extract again.

Where derivations take part, what the rules alone give is settled first, in the e-graph that they made: a search with
derivations knows all that one without them knows, and its program takes part in the race, however time runs out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

from egraph.engine.deriving import Derivations
from egraph.engine.saturate import Iteration, Limits, Saturation, saturate
from egraph.errors import ExtractError
from egraph.extract import extract, to_program
from egraph.optimize.budget import Budget
from egraph.optimize.chooser import Chooser, Rounds, Space, exact, quick, varied, worth_measuring
from egraph.optimize.measuring import Job, Measures
from egraph.optimize.outcome import REFUSALS, Kind, Refused, summary
from egraph.optimize.records import Earlier
from egraph.optimize.rehearsal import OpenProgram, Rehearsal, derived_part
from egraph.optimize.repeats import Outline
from egraph.policy import SaturationPolicy
from egraph.rule import MergeRule, Rule
from egraph.tensor import PLAIN, Candidate, FrozenEGraph, Graph, Program, Selection, Target, format_fragment
from egraph.tensor.text import TextError, format_selection, parse_selections
from lower.candidates import candidates as lay_candidates
from lower.candidates import needed_sources
from lower.cost.model import CostModel, unmeasured, without_twins
from runtime.judge import ONLY_REFERENCE
from runtime.profile import Database


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


@dataclass(frozen=True)
class Mixed:
    """A selection that rounds, some of whose kernels return to float32: one by one in the model's program, not in all equal blocks."""

    selection: Selection
    exact_us: Mapping[int, float]
    """What these kernels take in float32, by their positions in the program."""
    is_by_rules: bool = False
    """Whether the selection is from the e-graph that rules alone made."""

    def program(self, saturation: Saturation, outline: Outline) -> Program:
        """Return the program with these kernels in float32."""
        frozen = saturation.by_rules if self.is_by_rules else saturation.frozen
        assert frozen is not None
        return returned(outline.program(frozen, self.selection), self.exact_us)


def returned(program: Program, exact_us: Mapping[int, float]) -> Program:
    """Return a program whose kernels at these positions do not round any more; ``exact_us``: what they take then."""
    kernels = list(program.kernels)
    for position, cost_us in exact_us.items():
        kernel = kernels[position]
        kernels[position] = replace(kernel, implementation=kernel.implementation.in_precision(PLAIN), cost_us=cost_us)
    more_us = math.fsum(cost_us - program.kernels[position].cost_us for position, cost_us in exact_us.items())
    return replace(program, kernels=tuple(kernels), cost_us=program.cost_us + more_us)


@dataclass(frozen=True)
class Choice:
    """What was chosen from an e-graph, the best predicted first."""

    selections: tuple[Selection, ...]
    """Empty where there was no time for what derivations added."""
    by_rules: tuple[Selection, ...] = ()
    """The best of the e-graph that rules alone made, where there is such a one."""
    refused: tuple[Refused, ...] = ()
    extract_seconds: float = 0.0
    kernels_unmeasured: int = 0
    """Chosen kernels without a time of their own, where the search could measure."""
    is_earlier: bool = False
    """Whether an earlier search chose it."""
    mixed: Mixed | None = None

    @property
    def best(self) -> Selection:
        """Return what is predicted to be the best."""
        return (self.selections or self.by_rules)[0]


@dataclass(frozen=True)
class Search:
    """What the search found: programs with different kernels, the best predicted first."""

    saturation: Saturation
    choice: Choice
    programs: tuple[Program, ...]
    """Not folded: what a kernel reads may be an expression over weights."""
    text: str
    """What was chosen, for the same search again."""
    outline: Outline
    """What was searched in place of the model."""
    space: Space | None = None
    """What it was extracted from; None where an earlier search chose it."""


def program_digest(program: Program) -> str:
    """Return a hash of what a program computes and of how its kernels do that."""
    parts = [f"{name}={node.digest}" for name, node in program.graph.outputs]
    for kernel in program.kernels:
        operands = ",".join(node.digest for node in kernel.inputs)
        parts.append(f"{kernel.implementation}|{format_fragment(kernel.fragment)}|{operands}|{kernel.output.digest}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def plain_program(graph: Graph, cost_model: CostModel, *, seed: int) -> Program:
    """Return the input program as it stands, not folded: no rules, one kernel a node (the smallest that exists), no measurements.

    Candidates that ``cost_model`` knows to be wrong are left out all the same.
    """
    model = CostModel(Database.in_memory(), "", cost_model.speed, target=replace(cost_model.target, precisions=()))
    frozen = saturate(graph, (), Limits()).frozen
    laid = lay_candidates(frozen, model.target, fused=False)
    smallest = {c: _smallest([candidate for candidate in options if not cost_model.is_wrong(candidate)]) for c, options in laid.items()}
    best = extract(frozen, model.price(smallest), 1, 0.0, seed)  # hardly anything can be chosen
    if not best:
        raise ExtractError("the input program has no lowering")
    return to_program(frozen, best[0], graph)


def library_sources(graph: Graph, target: Target) -> tuple[Path, ...]:
    """Return the C sources of the libraries that compute any part of the input program as it stands."""
    return needed_sources(saturate(graph, (), Limits()).frozen, target)


def _smallest(options: Sequence[Candidate]) -> tuple[Candidate, ...]:
    def rank(candidate: Candidate) -> tuple[int, bool, bool]:
        return len(candidate.covered), candidate.implementation.is_opaque, not candidate.implementation.is_library

    least = min(map(rank, options), default=None)
    return tuple(candidate for candidate in options if rank(candidate) == least)


def search(
    graph: Graph,
    rules: Sequence[Rule | MergeRule],
    calibrated: Callable[[], CostModel],
    measurer: Measures | None,
    budget: Budget,
    *,
    finalists: int,
    max_nodes: int,
    seed: int,
    earlier: Earlier | None = None,
    derivations: Derivations | None = None,
    rehearsal: Rehearsal | None = None,
    outline: Outline | None = None,
    foresee: Foresee | None = None,
    prepare: Prepare = lambda jobs: None,
    is_prepared: Callable[[], bool] = lambda: True,
) -> Search:
    """Return the ``finalists`` best programs; without a measurer, by what the database already knows.

    The ``outline`` is searched in place of the graph, where one is given.

    ``rehearsal`` runs what is chosen before it is compiled, and leaves out what loses digits; ``foresee`` learns how far what is chosen
    first is off where it rounds.

    ``calibrated`` gives the cost model, once the e-graph has grown. Of the budget so much is left as what comes after the search takes,
    or more. While derivations run, ``prepare`` compiles what is to be measured of the programs that rules made, if by then all
    ``is_prepared`` that this takes.

    Where the same search was made ``earlier``, its saturation is repeated to the same e-graph, and what it chose is taken as long
    as nothing of it has proved wrong since.
    """
    progress, policy = budget.progress, budget.policy
    progress.stage("saturate")
    limits = limits_of(policy.saturation, budget.seconds, max_nodes)
    if measurer is not None:
        limits = replace(limits, seconds=min(limits.seconds, max(0.0, budget.measuring_seconds())))
    if earlier is not None:
        limits = replace(limits, seconds=float("inf"), iterations=earlier.iterations, looks=earlier.looks)
    history: list[Iteration] = []

    def show(iteration: Iteration) -> None:
        history.append(iteration)
        progress.update(f"iteration {len(history)}, {iteration.e_nodes} e-nodes, {iteration.e_classes} e-classes")

    outline = outline or Outline(graph, graph)
    derive_seconds = policy.saturation.derivations_share * limits.seconds
    between = BetweenPhases(outline, budget, seed, calibrated, rehearsal, prepare, is_prepared, derive_seconds)
    asks = measurer is not None and earlier is None
    saturation = saturate(
        outline.graph, rules, limits, show, derivations=derivations, policy=policy.saturation,
        may_derive=between.may_derive if asks else lambda by_rules: True,
    )  # fmt: skip
    saturation = between.in_order(saturation)
    e_nodes = history[-1].e_nodes if history else 0
    progress.update(f"{len(history)} iterations, {e_nodes} e-nodes, stopped: {saturation.stop_reason}")
    model = calibrated()

    choice, space = earlier and read_choice(earlier, saturation, model), None
    if not choice:
        choosing = Choosing(
            outline, saturation, model, budget, seed, rehearsal, is_timed=measurer is not None, foresee=foresee,
            first=between.first, laid=between.laid,
        )  # fmt: skip
        choice, space = choosing.choose(measurer, finalists)
    return _search_result(outline, saturation, choice, space, budget, finalists, is_timed=measurer is not None)


def limits_of(policy: SaturationPolicy, budget_seconds: float, e_nodes: int) -> Limits:
    """Return the limits of a saturation within a run."""
    return Limits(policy.share * budget_seconds, e_nodes, policy.iterations, policy.matches)


def search_again(
    searched: Search,
    model: CostModel,
    budget: Budget,
    rehearsal: Rehearsal,
    open_program: OpenProgram | None,
    *,
    wrong: str,
    finalists: int,
    seed: int,
) -> Search:
    """Return other programs of the same e-graph; nothing grows and nothing is measured.

    They are without kernels that have proved wrong since, and without what makes the program of the digest ``wrong`` lose digits as
    ``open_program`` runs it.
    """
    outline = searched.outline
    space = searched.space or Choosing(outline, searched.saturation, model, budget, seed, rehearsal, is_timed=True).space()
    budget.progress.stage("extract")
    space.everything.settled = ()
    frozen = searched.saturation.frozen
    chosen = [each for each in searched.choice.selections if program_digest(outline.program(frozen, each)) == wrong]
    if chosen:
        space.rehearse(outline, rehearsal, chosen, open_program)
    model.caution = budget.policy.extract.caution
    selections = space.everything.with_exact(space.everything.choose_in_time(finalists, is_timed=True), finalists)
    by_rules = space.first.choose_in_time(1, is_timed=True) if space.first else ()
    model.caution = 1.0
    selections, by_rules = space.everything.repriced(selections), space.first.repriced(by_rules) if space.first else ()
    other = refused(model, space.everything.candidates)
    choice = replace(searched.choice, selections=selections, by_rules=by_rules, refused=other, is_earlier=False, mixed=None)
    return _search_result(outline, searched.saturation, choice, space, budget, finalists, is_timed=False)


def resume_search(
    searched: Search, model: CostModel, measurer: Measures, budget: Budget, rehearsal: Rehearsal, *, finalists: int, seed: int
) -> Search:
    """Resume a search that time ended: measure more kernels of the same e-graph, and extract again."""
    choosing = Choosing(searched.outline, searched.saturation, model, budget, seed, rehearsal, is_timed=True)
    choice, space = choosing.choose(measurer, finalists, searched.space)
    return _search_result(searched.outline, searched.saturation, choice, space, budget, finalists, is_timed=True)


def with_choice(searched: Search, choice: Choice, finalists: int) -> Search:
    """Return a search with the programs of another choice from the same e-graph."""
    programs = programs_of(choice, searched.saturation, searched.outline, finalists)
    return replace(searched, choice=choice, programs=programs, text=_text(choice))


def _search_result(
    outline: Outline,
    saturation: Saturation,
    choice: Choice,
    space: Space | None,
    budget: Budget,
    finalists: int,
    *,
    is_timed: bool,
) -> Search:
    progress = budget.progress
    programs = programs_of(choice, saturation, outline, finalists)
    count = len(choice.selections) + len(choice.by_rules)
    progress.update(f"best cost {min(each.cost_us for each in programs):.0f} us ({choice.best.method}), {count} programs")
    if is_timed and (short := shortages(saturation, choice)):
        progress.note(f"time ended the search ({', '.join(short)}): --budget {progress.longer_seconds:.0f}s gives it twice as long")
    if choice.refused:
        progress.detail(summary(choice.refused))
    for row in choice.refused:
        if row.kind == "wrong":
            progress.detail(f"  {row.implementation} computes {row.fragment} wrongly: {row.reason}")
    return Search(saturation, choice, programs, _text(choice), outline, space)


def programs_of(choice: Choice, saturation: Saturation, outline: Outline, finalists: int) -> tuple[Program, ...]:
    """Return the ``finalists`` best programs of what was chosen."""
    programs = [outline.program(saturation.frozen, selection) for selection in choice.selections]
    if choice.mixed:
        programs = sorted([choice.mixed.program(saturation, outline), *programs], key=lambda program: program.cost_us)
    programs += [outline.program(saturation.by_rules, selection) for selection in choice.by_rules if saturation.by_rules]
    return contending(programs, len(choice.by_rules), finalists)


def is_cut_short(searched: Search) -> bool:
    """Return whether time ended a search before all that it chose was measured, or before derived programs were compared."""
    derived_left_out = searched.saturation.by_rules is not None and not searched.choice.selections
    return derived_left_out or searched.choice.kernels_unmeasured > 0


def shortages(saturation: Saturation, choice: Choice) -> tuple[str, ...]:
    """Return notes on what there was no time for."""
    reasons = ["rules and derivations were cut short"] if saturation.stop_reason == "time" else []
    reasons += ["derived programs were left out"] if saturation.by_rules is not None and not choice.selections else []
    reasons += [f"{choice.kernels_unmeasured} of the chosen kernels are estimated"] if choice.kernels_unmeasured else []
    return tuple(reasons)


def contending(candidates: Sequence[Program], by_rules: int, most: int) -> tuple[Program, ...]:
    """Return ``most`` distinct programs; the last ``by_rules`` of those that were found give way to none but the cheapest.

    One that does not round stays, where there is one. The last ones go first where they are cheaper than all others, and only they round.
    """
    programs: dict[str, Program] = {}
    for program in candidates:
        programs.setdefault(program_digest(program), program)
    last = [program for program in candidates[len(candidates) - by_rules :] if program in programs.values()]
    remaining = [program for program in programs.values() if program not in last]
    if most == 1:
        return (min(programs.values(), key=lambda program: program.cost_us),)
    kept, others = remaining[: most - len(last)], remaining[most - len(last) :]
    if len(kept) > 1 and not any(map(_is_exact, (*kept, *last))):
        kept[-1:] = [next(filter(_is_exact, others), kept[-1])]
    if last and not _is_exact(last[0]) and all(_is_exact(program) and program.cost_us > last[0].cost_us for program in kept):
        return (*last, *kept)
    return (*kept, *last)


def _is_exact(program: Program) -> bool:
    return all(kernel.implementation.precision == PLAIN for kernel in program.kernels)


def _text(choice: Choice) -> str:
    """Return what was chosen as text for the profile database."""
    texts: list[object] = ["".join(map(format_selection, selections)) for selections in (choice.selections, choice.by_rules)]
    if mixed := choice.mixed:
        texts += [format_selection(mixed.selection), sorted(mixed.exact_us.items()), mixed.is_by_rules]
    return json.dumps(texts)


def read_selections(text: str, frozen: FrozenEGraph, model: CostModel) -> tuple[Selection, ...]:
    """Return the selections of a text; none where it does not fit the e-graph, or a kernel has proved wrong since.

    The same model, rules and options grow the same e-graph, so neither candidates nor prices are needed to have a choice again.
    """
    try:
        selections = parse_selections(text, frozen)
    except (TextError, TypeError):
        return ()  # written by another version, or the e-graph grew differently: a search tells it anew
    return () if any(model.is_wrong(candidate) for selection in selections for candidate in selection.chosen.values()) else selections


def read_choice(earlier: Earlier, saturation: Saturation, model: CostModel) -> Choice | None:
    """Return what an earlier search chose, None where that does not fit any more."""
    try:
        text, by_rules_text, *mixed_texts = json.loads(earlier.choices)
    except (ValueError, TypeError):
        return None
    selections = read_selections(text, saturation.frozen, model) if text else ()
    by_rules = read_selections(by_rules_text, saturation.by_rules, model) if saturation.by_rules else ()
    mixed: Mixed | None = None
    if mixed_texts:
        whole_text, exact_us, *place = mixed_texts
        frozen = saturation.by_rules if any(place) else saturation.frozen
        if frozen is None or not (whole := read_selections(whole_text, frozen, model)):
            return None
        mixed = Mixed(whole[0], dict(exact_us), any(place))
    is_whole = (selections or not text) and (by_rules or not by_rules_text)
    return Choice(selections, by_rules, earlier.refused, is_earlier=True, mixed=mixed) if is_whole else None


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
        if self.first.lay_seconds > policy.laid_share * left_seconds:
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

        Estimates are met with caution: there is no time to measure them. The first are empty where derived programs are left out.
        """
        model = self.model
        model.caution = self.budget.policy.extract.caution
        selections = settled or everything.choose_in_time(finalists, is_timed=is_timed)
        selections = everything.with_exact(selections, finalists)
        by_rules: tuple[Selection, ...] = ()
        if everything is first:
            selections, by_rules = (), selections
        elif first is not None:
            by_rules = first.choose_in_time(1, is_timed=is_timed)
        model.caution = 1.0
        return everything.repriced(selections), (first or everything).repriced(by_rules)

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

        def is_late() -> bool:
            return measurer is not None and later_seconds > policy.laid_share * max(0.0, budget.measuring_seconds())

        if measurer is not None and not is_late():
            kept_seconds = later_seconds + policy.derived_share * (budget.measuring_seconds() - later_seconds)
            first.refine(measurer, lambda: budget.measuring_seconds() - kept_seconds, quick(policy))  # the rest is common to both
        if is_late():
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
