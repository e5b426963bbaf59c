"""From a graph to its few best programs: saturate, price, extract, measure what was chosen, extract again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from egraph.cost import FREE, CostModel, is_library, jobs, unmeasured, without_twins
from egraph.deriving import Derivations
from egraph.errors import ExtractError
from egraph.extract import extract, to_program
from egraph.ir import Candidate, FrozenEGraph, Graph, Program, Selection, format_fragment
from egraph.optimize.measuring import Measurer
from egraph.optimize.outcome import Refused, summary
from egraph.optimize.progress import Progress
from egraph.optimize.refused import refused
from egraph.optimize.remembered import Earlier
from egraph.optimize.replay import read_selections, selections_text
from egraph.rule import MergeRule, Rule
from egraph.saturate import Iteration, Limits, Saturation, saturate
from lower.candidates import candidates as lay_candidates
from runtime.profile import Database

GREEDY_ROUNDS, ROUNDS, VARIED_ROUNDS = 6, 8, 3
"""Extractions at most: each one measures what the last one chose, first by greed, which is quick, then of the best program, then
of all finalists."""
FAMILY_ROUNDS = 3
"""Where the first kernel of a family fails, others of it are tried, this many in all."""
CAUTION = 4.0
"""Estimates count this many times in the last extraction: time ended before they could be measured."""
SATURATE_SHARE, MEASURE_SHARE, EXTRACT_SHARE = 0.25, 0.6, 0.04
"""Parts of the budget: saturation may take a quarter; measuring ends when 0.6 of the budget is spent."""


@dataclass(frozen=True)
class Choice:
    """What was chosen from an e-graph, the best predicted first."""

    selections: tuple[Selection, ...]
    refused: tuple[Refused, ...] = ()
    extract_seconds: float = 0.0
    kernels_unmeasured: int = 0
    """Chosen kernels that there was no time to measure; 0 where the search was finished."""
    is_earlier: bool = False
    """Whether an earlier search chose it."""


@dataclass(frozen=True)
class Search:
    """What the search found: programs with different kernels, the best predicted first."""

    saturation: Saturation
    choice: Choice
    programs: tuple[Program, ...]
    """Not folded: what a kernel reads may be an expression over weights."""
    text: str
    """What was chosen, for the same search again."""


def program_digest(program: Program) -> str:
    """Return a hash of what a program computes and of how its kernels do that."""
    parts = [f"{name}={node.digest}" for name, node in program.graph.outputs]
    for kernel in program.kernels:
        operands = ",".join(node.digest for node in kernel.inputs)
        parts.append(f"{kernel.implementation}|{format_fragment(kernel.fragment)}|{operands}|{kernel.output.digest}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def plain_program(graph: Graph, known: CostModel, *, seed: int) -> Program:
    """Return the input program as it stands, not folded: no rules, one kernel a node (the smallest that exists), no measurements.

    What is ``known`` to compute wrong results is left out all the same.
    """
    model = CostModel(Database.in_memory(), "", known.speed)
    frozen = saturate(graph, (), Limits()).frozen
    laid = lay_candidates(frozen, "cpu", fused=False)
    smallest = {c: _smallest([one for one in options if not known.is_wrong(one)]) for c, options in laid.items()}
    best = extract(frozen, model.price(smallest), 1, 0.0, seed)  # there is next to nothing to choose
    if not best:
        raise ExtractError("the input program has no lowering")
    return to_program(frozen, best[0], graph)


def _smallest(options: Sequence[Candidate]) -> tuple[Candidate, ...]:
    def rank(one: Candidate) -> tuple[int, bool, bool]:
        return len(one.covered), one.implementation == "opaque", not is_library(one)

    least = min(map(rank, options), default=None)
    return tuple(one for one in options if rank(one) == least)


def search(
    graph: Graph,
    rules: Sequence[Rule | MergeRule],
    model: CostModel,
    measurer: Measurer | None,
    progress: Progress,
    *,
    finalists: int,
    max_nodes: int,
    seed: int,
    earlier: Earlier | None = None,
    derivations: Derivations | None = None,
) -> Search:
    """Return the ``finalists`` best programs; without a measurer, by what the database already knows.

    Where the same search was made ``earlier``, its number of iterations and not the clock ends the saturation, and what it
    chose is taken as long as nothing of it has proved wrong since.
    """
    progress.stage("saturate")
    limits = Limits(seconds=SATURATE_SHARE * progress.budget_seconds, e_nodes=max_nodes)
    if earlier is not None:
        limits = Limits(seconds=float("inf"), e_nodes=max_nodes, iterations=earlier.iterations)
    history: list[Iteration] = []

    def show(iteration: Iteration) -> None:
        history.append(iteration)
        progress.update(f"iteration {len(history)}, {iteration.e_nodes} e-nodes, {iteration.e_classes} e-classes")

    saturation = saturate(graph, rules, limits, show, derivations=derivations)
    e_nodes = history[-1].e_nodes if history else 0
    progress.update(f"{len(history)} iterations, {e_nodes} e-nodes, stopped: {saturation.stop_reason}")
    known = read_selections(earlier.choices, saturation.frozen, model) if earlier else ()
    if earlier and known:
        choice = Choice(known, earlier.refused, is_earlier=True)
    else:
        choice = _choose(saturation.frozen, model, measurer, progress, finalists, seed)
    selections = choice.selections
    progress.update(f"best cost {selections[0].cost_us:.0f} us ({selections[0].method}), {len(selections)} programs")
    programs: dict[str, Program] = {}
    for selection in selections:
        program = to_program(saturation.frozen, selection, graph)
        programs.setdefault(program_digest(program), program)
    if choice.refused:
        progress.detail(summary(choice.refused))
    for one in choice.refused:
        if one.kind == "wrong":
            progress.detail(f"  {one.implementation} computes {one.fragment} wrongly: {one.reason}")
    return Search(saturation, choice, tuple(programs.values()), selections_text(selections, saturation.frozen, model))


def _choose(frozen: FrozenEGraph, model: CostModel, measurer: Measurer | None, progress: Progress, finalists: int, seed: int) -> Choice:
    """Lay candidates, measure and extract."""
    laid = without_twins(model, lay_candidates(frozen, "cpu"))

    def time_left() -> float:
        return progress.left_seconds - (1.0 - MEASURE_SHARE) * progress.budget_seconds

    chooser = Chooser(frozen, laid, model, progress, EXTRACT_SHARE * progress.budget_seconds, seed)
    settled: tuple[Selection, ...] = ()
    if measurer is not None:
        progress.stage("measure")
        share_seconds = time_left() / 2
        for _ in range(FAMILY_ROUNDS):
            measurer.measure_candidates(model, jobs(model, laid), lambda: time_left() - share_seconds, progress.update)
        settled = chooser.refine(measurer, time_left, count=finalists)
    progress.stage("extract")
    model.caution = CAUTION
    selections = settled or chooser.choose(finalists)
    model.caution = 1.0
    selections = tuple(_repriced(selection, model) for selection in selections)
    open_ones = {model.key(one) for selection in selections for one in unmeasured(model, selection.chosen.values())}
    is_open = measurer is not None and time_left() <= 0
    return Choice(selections, refused(model, laid), chooser.seconds, len(open_ones) if is_open else 0)


def _repriced(selection: Selection, model: CostModel) -> Selection:
    """Return the selection at the costs that are believed, whatever it was chosen by."""
    chosen = {number: replace(one, cost_us=model.cost_us(one)) for number, one in selection.chosen.items()}
    return replace(selection, chosen=chosen, cost_us=math.fsum(one.cost_us for one in chosen.values()))


@dataclass
class Chooser:
    """Extracts with the costs that are known by then."""

    frozen: FrozenEGraph
    candidates: Mapping[int, tuple[Candidate, ...]]
    model: CostModel
    progress: Progress
    extract_seconds: float
    seed: int
    seconds: float = 0.0

    def choose(self, count: int, *, greedy: bool = False) -> tuple[Selection, ...]:
        seconds = 0.0 if greedy else self.extract_seconds
        selections = extract(self.frozen, self.model.price(self.candidates), count, seconds, self.seed)
        if not selections:
            raise ExtractError("no program can be extracted", fix="this is a defect: every operator should have a kernel")
        self.seconds += sum(selection.seconds for selection in selections)
        return selections

    def refine(self, measurer: Measurer, time_left: Callable[[], float], *, count: int) -> tuple[Selection, ...]:
        """Measure what extraction chooses until it chooses only what is measured, or time is up; return that choice, if there is one.

        First for the best program alone, which is quickly extracted; then for all that are going to be timed.
        """
        settled: tuple[Selection, ...] = ()
        for rounds, wanted_programs, greedy in ((GREEDY_ROUNDS, 1, True), (ROUNDS, 1, False), (VARIED_ROUNDS, count, False)):
            for _ in range(rounds):
                selections = self.choose(wanted_programs, greedy=greedy)
                chosen = (one for s in selections for one in s.chosen.values() if one.implementation not in FREE)
                wanted = unmeasured(self.model, chosen)
                best_us = selections[0].cost_us
                self.progress.update(f"best cost {best_us:.0f} us, {len(wanted)} of its kernels to measure, {measurer.measured} measured")
                if time_left() <= 0:
                    return ()
                settled = () if wanted else selections
                if not wanted:
                    break
                measurer.measure_candidates(self.model, wanted, time_left, self.progress.update)
        return settled
