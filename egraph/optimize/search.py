"""From a graph to its few best programs: saturate, price, extract, measure the chosen kernels, extract again.

If derivations take part, the best program by rules alone is settled first, in the e-graph that the rules made. A search with derivations
thus finds everything that one without them finds, and the program by rules takes part in the race even if time runs out.
"""

from __future__ import annotations

import math
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
    """The result of a search: programs with different kernels, in order of predicted time."""

    saturation: Saturation
    choice: Choice
    programs: tuple[Program, ...]
    """The programs before folding: an operand of a kernel may be an expression over weights."""
    text: str
    """The choice as text, from which the same search can be repeated."""
    outline: Outline
    """The outline that was searched in place of the model."""
    space: Space | None = None
    """The space that the programs were extracted from, or None if an earlier search chose them."""


def plain_program(graph: Graph, cost_model: CostModel, *, seed: int) -> Program:
    """Return the input program unchanged and not folded: no rules, the smallest kernel of each node, no measurements.

    Candidates that ``cost_model`` knows to be wrong are excluded.
    """
    model = CostModel(Database.in_memory(), "", cost_model.speed, target=replace(cost_model.target, precisions=()))
    frozen = saturate(graph, (), Limits()).frozen
    laid = lay_candidates(frozen, model.target, fused=False)
    smallest = {c: _smallest([candidate for candidate in options if not cost_model.is_wrong(candidate)]) for c, options in laid.items()}
    best = extract(frozen, model.price(smallest), 1, 0.0, seed)  # there is hardly any choice
    if not best:
        raise ExtractError("the input program has no lowering")
    return to_program(frozen, best[0], graph)


def library_sources(graph: Graph, target: Target) -> tuple[Path, ...]:
    """Return the C sources of the libraries that compute any part of the unchanged input program."""
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
    """Return the ``finalists`` best programs. Without a measurer, only the times in the database are used.

    If an ``outline`` is given, it is searched in place of the graph.

    ``rehearsal`` runs the chosen programs before they are compiled and excludes derived kernels that lose digits. ``foresee`` predicts the
    error of the first choice if it rounds.

    ``calibrated`` returns the cost model once the e-graph has grown. The search leaves at least as much of the budget as the later steps
    take. While derivations run, ``prepare`` compiles the kernels of the rules' programs that are likely to be measured, if ``is_prepared``.

    If the same search was made ``earlier``, its saturation is repeated to the same e-graph. Its choice is reused unless part of it has
    proved wrong since.
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
        most_growth=between.most_growth if asks else lambda by_rules: math.inf,
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
    """Return the limits of the saturation in a run with this budget."""
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
    """Return other programs of the same e-graph; no rules are applied and nothing is measured.

    They are without kernels that have proved wrong since. They are also without the derived kernels that make the program with the digest
    ``wrong`` lose digits when ``open_program`` runs it.
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
    """Resume a search that ran out of time: measure more kernels of the same e-graph, and extract again."""
    choosing = Choosing(searched.outline, searched.saturation, model, budget, seed, rehearsal, is_timed=True)
    choice, space = choosing.choose(measurer, finalists, searched.space)
    return _search_result(searched.outline, searched.saturation, choice, space, budget, finalists, is_timed=True)


def with_choice(searched: Search, choice: Choice, finalists: int) -> Search:
    """Return the search with another choice from the same e-graph and its programs."""
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
    """Return whether a search ran out of time before all its chosen kernels were measured, or before derived programs were compared."""
    derived_left_out = searched.saturation.by_rules is not None and not searched.choice.selections
    return derived_left_out or searched.choice.kernels_unmeasured > 0


def shortages(saturation: Saturation, choice: Choice) -> tuple[str, ...]:
    """Return notes on the parts of a search that there was no time for."""
    reasons = ["rules and derivations were cut short"] if saturation.stop_reason == "time" else []
    reasons += ["derived programs were left out"] if saturation.by_rules is not None and not choice.selections else []
    reasons += [f"{choice.kernels_unmeasured} of the chosen kernels are estimated"] if choice.kernels_unmeasured else []
    return tuple(reasons)
