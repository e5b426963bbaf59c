"""From a graph to its few best programs: saturate, price, extract, measure what was chosen, extract again.

Where derivations take part, what the rules alone give is settled first, in the e-graph that they made: a search with
derivations knows all that one without them knows, and its program takes part in the race, however time runs out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from egraph.engine.deriving import Derivations
from egraph.engine.saturate import Iteration, Limits, Saturation, saturate
from egraph.errors import ExtractError
from egraph.extract import extract, to_program
from egraph.optimize.chooser import EXACT, Chooser, Times, varied
from egraph.optimize.measuring import Measurer
from egraph.optimize.outcome import Refused, summary
from egraph.optimize.progress import Progress
from egraph.optimize.refused import refused
from egraph.optimize.remembered import Earlier
from egraph.optimize.replay import read_selections, selections_text
from egraph.rule import MergeRule, Rule
from egraph.tensor import Candidate, FrozenEGraph, Graph, Program, Selection, format_fragment
from lower.candidates import candidates as lay_candidates
from lower.cost.model import CostModel, is_library, unmeasured, without_twins
from runtime.profile import Database

CAUTION = 4.0
"""Estimates count this many times in the last extraction: time ended before they could be measured."""
SATURATE_SHARE, EXTRACT_SHARE = 0.2, 0.04
"""Parts of the budget for saturation (derivations may take 0.4 of that besides), and for one exact extraction."""
MOST_LAID = 0.7
"""Part of the time for measuring that laying out the kernels of derived programs may take: where it takes more, few would be measured."""
DERIVED_SHARE = 0.4
"""Part of the time for measuring that is kept for derived programs while the rules' own are measured."""


@dataclass(frozen=True)
class Choice:
    """What was chosen from an e-graph, the best predicted first."""

    selections: tuple[Selection, ...]
    """Empty where there was no time to look at what derivations added."""
    by_rules: tuple[Selection, ...] = ()
    """The best of the e-graph that rules alone made, where there is such a one."""
    refused: tuple[Refused, ...] = ()
    extract_seconds: float = 0.0
    kernels_unmeasured: int = 0
    """Chosen kernels without a time of their own, where the search could measure."""
    is_earlier: bool = False
    """Whether an earlier search chose it."""

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
    calibrated: Callable[[], CostModel],
    measurer: Measurer | None,
    progress: Progress,
    *,
    finalists: int,
    max_nodes: int,
    seed: int,
    earlier: Earlier | None = None,
    derivations: Derivations | None = None,
    after_seconds: Callable[[int], float] = lambda unmeasured: 0.0,
) -> Search:
    """Return the ``finalists`` best programs; without a measurer, by what the database already knows.

    ``calibrated`` gives the cost model, once the e-graph has grown. ``after_seconds`` says how long all takes that comes after the
    search where so many of the chosen kernels were not measured; the search leaves that much of the budget, or more.

    Where the same search was made ``earlier``, its saturation is repeated to the same e-graph, and what it chose is taken as long
    as nothing of it has proved wrong since.
    """
    progress.stage("saturate")
    limits = Limits(seconds=SATURATE_SHARE * progress.budget_seconds, e_nodes=max_nodes)
    if earlier is not None:
        limits = Limits(seconds=float("inf"), e_nodes=max_nodes, iterations=earlier.iterations, looks=earlier.looks)
    history: list[Iteration] = []

    def show(iteration: Iteration) -> None:
        history.append(iteration)
        progress.update(f"iteration {len(history)}, {iteration.e_nodes} e-nodes, {iteration.e_classes} e-classes")

    saturation = saturate(graph, rules, limits, show, derivations=derivations)
    e_nodes = history[-1].e_nodes if history else 0
    progress.update(f"{len(history)} iterations, {e_nodes} e-nodes, stopped: {saturation.stop_reason}")
    model = calibrated()

    times = Times(progress, after_seconds)
    choice = earlier and _read(earlier, saturation, model)
    choice = choice or _choose(saturation, model, measurer, progress, times, finalists=finalists, seed=seed)
    programs = len(choice.selections) + len(choice.by_rules)
    progress.update(f"best cost {choice.best.cost_us:.0f} us ({choice.best.method}), {programs} programs")
    found = [to_program(saturation.frozen, selection, graph) for selection in choice.selections]
    found += [to_program(saturation.by_rules, selection, graph) for selection in choice.by_rules if saturation.by_rules]
    if measurer is not None and (short := shortages(saturation, choice)):
        progress.note(f"time ended the search ({', '.join(short)}): --budget {2 * progress.budget_seconds:.0f}s gives it twice as long")
    if choice.refused:
        progress.detail(summary(choice.refused))
    for one in choice.refused:
        if one.kind == "wrong":
            progress.detail(f"  {one.implementation} computes {one.fragment} wrongly: {one.reason}")
    return Search(saturation, choice, contending(found, len(choice.by_rules), finalists), _text(choice, saturation, model))


def shortages(saturation: Saturation, choice: Choice) -> tuple[str, ...]:
    """Return what there was no time for, in words."""
    found = ["rules and derivations were cut short"] if saturation.stop_reason == "time" else []
    found += ["derived programs were left out"] if saturation.by_rules is not None and not choice.selections else []
    found += [f"{choice.kernels_unmeasured} of the chosen kernels are estimated"] if choice.kernels_unmeasured else []
    return tuple(found)


def contending(found: Sequence[Program], by_rules: int, most: int) -> tuple[Program, ...]:
    """Return ``most`` distinct programs; the last ``by_rules`` of those that were found give way to none but the cheapest."""
    programs: dict[str, Program] = {}
    for program in found:
        programs.setdefault(program_digest(program), program)
    last = [program for program in found[len(found) - by_rules :] if program in programs.values()]
    others = [program for program in programs.values() if program not in last]
    if most == 1:
        return (min(programs.values(), key=lambda program: program.cost_us),)
    return (*others[: most - len(last)], *last)


def _text(choice: Choice, saturation: Saturation, model: CostModel) -> str:
    """Return what was chosen as text for the profile database."""
    by_rules = selections_text(choice.by_rules, saturation.by_rules, model) if saturation.by_rules else ""
    everything = selections_text(choice.selections, saturation.frozen, model) if choice.selections else ""
    return json.dumps([everything, by_rules])


def _read(earlier: Earlier, saturation: Saturation, model: CostModel) -> Choice | None:
    """Return what an earlier search chose, None where that does not fit any more."""
    try:
        text, by_rules_text = json.loads(earlier.choices)
    except (ValueError, TypeError):
        return None
    selections = read_selections(text, saturation.frozen, model) if text else ()
    by_rules = read_selections(by_rules_text, saturation.by_rules, model) if saturation.by_rules else ()
    is_whole = (selections or not text) and (by_rules or saturation.by_rules is None)
    return Choice(selections, by_rules, earlier.refused, is_earlier=True) if is_whole else None


def _choose(
    saturation: Saturation,
    model: CostModel,
    measurer: Measurer | None,
    progress: Progress,
    times: Times,
    *,
    finalists: int,
    seed: int,
) -> Choice:
    """Lay candidates, measure and extract: first from what the rules made, then from everything."""

    def chooser(frozen: FrozenEGraph) -> Chooser:
        started = progress.spent_seconds
        laid = without_twins(model, lay_candidates(frozen, "cpu"))
        lay_seconds = progress.spent_seconds - started
        return Chooser(frozen, laid, model, progress, times, EXTRACT_SHARE * progress.budget_seconds, seed, lay_seconds)

    settled: tuple[Selection, ...] = ()
    by_rules: tuple[Selection, ...] = ()
    if measurer is not None:
        progress.stage("measure")
    first = chooser(saturation.by_rules) if saturation.by_rules else None
    later_seconds = 0.0
    if measurer is not None and first is not None:
        later_seconds = first.lay_seconds * len(saturation.frozen.classes) / len(first.frozen.classes)
        kept_seconds = later_seconds + DERIVED_SHARE * (times.left() - later_seconds)
        by_rules = first.settle(measurer, lambda: times.left() - kept_seconds, EXACT)
    if first is not None and later_seconds > MOST_LAID * max(0.0, times.left()):
        everything = first  # there is no time to measure the kernels of derived programs
    else:
        everything = chooser(saturation.frozen)
    if measurer is not None:
        settled = everything.settle(measurer, times.left, EXACT + varied(finalists))
    progress.stage("extract")
    model.caution = CAUTION
    selections = settled or everything.choose_in_time(finalists, is_timed=measurer is not None)
    if everything is first:
        selections, by_rules = (), selections
    elif first is not None:
        by_rules = by_rules or first.choose_in_time(1, is_timed=measurer is not None)
    model.caution = 1.0
    selections, by_rules = (tuple(_repriced(selection, model) for selection in chosen) for chosen in (selections, by_rules))
    open_ones = {model.key(one) for selection in (*selections, *by_rules) for one in unmeasured(model, selection.chosen.values())}
    seconds = everything.seconds + (first.seconds if first and everything is not first else 0.0)
    return Choice(selections, by_rules, refused(model, everything.candidates), seconds, len(open_ones) if measurer is not None else 0)


def _repriced(selection: Selection, model: CostModel) -> Selection:
    """Return the selection at the costs that are believed, whatever it was chosen by."""
    chosen = {number: replace(one, cost_us=model.cost_us(one)) for number, one in selection.chosen.items()}
    return replace(selection, chosen=chosen, cost_us=math.fsum(one.cost_us for one in chosen.values()))
