"""From a graph to its few best programs: saturate, price, extract, measure what was chosen, extract again.

Where derivations take part, what the rules alone give is settled first, in the e-graph that they made: a search with
derivations knows all that one without them knows, and its program takes part in the race, however time runs out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from egraph.engine.deriving import Derivations
from egraph.engine.saturate import Iteration, Limits, Saturation, saturate
from egraph.errors import ExtractError
from egraph.extract import extract, to_program
from egraph.optimize.budget import Budget
from egraph.optimize.choice import Choice, choice_text, program_digest, programs_of, read_choice
from egraph.optimize.chooser import Space
from egraph.optimize.measuring import Measures
from egraph.optimize.outcome import summary
from egraph.optimize.outline import Outline
from egraph.optimize.records import Earlier
from egraph.optimize.rehearsal import OpenProgram, Rehearsal
from egraph.optimize.search_phases import BetweenPhases, Choosing, Foresee, Prepare, refused
from egraph.policy import SaturationPolicy
from egraph.rule import MergeRule, Rule
from egraph.tensor import Candidate, Graph, Program, Target
from lower.candidates import candidates as lay_candidates
from lower.candidates import needed_sources
from lower.cost.model import CostModel
from runtime.profile import Database


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
    return replace(searched, choice=choice, programs=programs, text=choice_text(choice))


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
    return Search(saturation, choice, programs, choice_text(choice), outline, space)


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
