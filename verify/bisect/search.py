"""Search for the rule or kernel that makes programs wrong: run the optimiser by estimates without some rules, and compare.

One saturation gives many programs: the cheapest by estimates, and others by random prices. The random prices avoid nodes that were
already compared if a rule made an alternative, so that wrong rewrites that the cost model does not choose are also found. onnxruntime
evaluates the rewritten programs without optimisations. Kernels are compiled and compared only if all of these programs are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from egraph.engine.saturate import Limits
from egraph.errors import ExtractError
from egraph.extract import extract, to_program
from egraph.optimize.blame import blame, changed, evaluate, kernel_values
from egraph.optimize.check_noise import relative_error
from egraph.optimize.estimated import EXTRACT_SECONDS, SMALL, compile_options, estimate, grown, open_program
from egraph.optimize.folding import Folder
from egraph.rule import MergeRule, Rule
from egraph.tensor import Candidate, ENode, FrozenEGraph, Graph, Program
from egraph.tolerance import Tolerance
from lower.candidates import candidates

AnyRule = Rule | MergeRule
Tell = Callable[[str], None]
MADE_BY_RULES = 0.2
"""Factor for the drawn prices of kernels to which a rule contributed."""
COMPARED = 1e3
"""Factor for the drawn prices of kernels with an already compared node that an uncompared node can replace."""


@dataclass(frozen=True)
class Settings:
    """How to search. ``programs``: number of programs of a saturation that are compared."""

    tolerance: float = Tolerance().relative
    programs: int = 6
    seed: int = 0
    threads: int = 1
    limits: Limits = SMALL


@dataclass(frozen=True)
class Wrong:
    """A program whose results differ from the model's, and by how much."""

    output: str
    error: float
    program: Program


@dataclass(frozen=True)
class Finding:
    """The outcome: the error found, the rules or the kernel without which it disappears, and where it is."""

    error: float
    output: str = ""
    rules: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    source_nodes: tuple[str, ...] = ()
    tried: tuple[tuple[str, float], ...] = ()
    """Rules that were removed one at a time, each with the remaining error."""

    @property
    def accurate(self) -> bool:
        return not self.output


def bisect(
    graph: Graph, rules: Sequence[AnyRule], feeds: Mapping[str, Any], expected: Mapping[str, Any], settings: Settings, tell: Tell
) -> Finding:
    """Return the rules or the kernel to remove so that the programs compute ``expected`` on ``feeds`` again."""

    def worst(kept: Sequence[AnyRule]) -> Wrong | None:
        return first_wrong(graph, kept, feeds, expected, settings)

    tell(f"{settings.programs} programs by {len(rules)} rules")
    wrong = worst(rules)
    if wrong is None:
        tell("as rewritten all are right: the kernels of the cheapest one")
        return _wrong_kernels(graph, rules, feeds, expected, settings)
    suspects, nodes = _suspects(graph, wrong.program, feeds, settings)
    tried: list[tuple[str, float]] = []
    for position, name in enumerate(suspects):
        tell(f"without {name} ({position + 1} of {len(suspects)})")
        left = worst([rule for rule in rules if rule.name != name])
        tried.append((name, left.error if left else 0.0))
        if left is None:
            return Finding(wrong.error, wrong.output, (name,), (), nodes, tuple(tried))
    culprits = _together(rules, worst, tell)
    return Finding(wrong.error, wrong.output, culprits, (), nodes, tuple(tried))


def _together(rules: Sequence[AnyRule], worst: Callable[[Sequence[AnyRule]], Wrong | None], tell: Tell) -> tuple[str, ...]:
    """Return rules that have to be removed together: suspects are removed until all programs are right, then as many as possible return."""
    out: list[str] = []
    while (wrong := worst([rule for rule in rules if rule.name not in out])) is not None:
        used = [rule for kernel in wrong.program.kernels for rule in kernel.rules if rule not in out]
        if not used:  # a rule that equates two values of the model leaves no node of its own
            used = [rule.name for rule in rules if rule.name not in out]
        if not used:
            return ()  # wrong without any rule: the import, or a kernel's meaning
        out += dict.fromkeys(used)
        tell(f"without {len(out)} rules")
    return _fewest(out, lambda out: worst([rule for rule in rules if rule.name not in out]) is None, tell)


def _fewest(out: Sequence[str], is_right: Callable[[Sequence[str]], bool], tell: Tell) -> tuple[str, ...]:
    """Return a minimal part of ``out``, from which no name can be taken back: halves are tried, then smaller parts, then single names."""
    size = max(1, len(out) // 2)
    while True:
        for start in range(0, len(out), size):
            fewer = [*out[:start], *out[start + size :]]
            if fewer and is_right(fewer):
                tell(f"without {len(fewer)} rules")
                out = fewer
                break
        else:
            if size == 1:
                return tuple(out)
            size = (size + 1) // 2


def first_wrong(
    graph: Graph, rules: Sequence[AnyRule], feeds: Mapping[str, Any], expected: Mapping[str, Any], settings: Settings
) -> Wrong | None:
    """Return the first program whose results differ from the expected ones; None if all agree."""
    for program in programs(graph, rules, settings):
        outputs = dict(program.graph.outputs)
        values = evaluate(program.graph, [*outputs.values()], feeds, settings.threads)
        for name, node in outputs.items():
            error = _error(expected[name], values[node]) if node in values else 0.0
            if error > settings.tolerance:
                return Wrong(name, error, program)
    return None


def programs(graph: Graph, rules: Sequence[AnyRule], settings: Settings) -> Iterator[Program]:
    """Yield different programs of one saturation: the cheapest by estimates first, then programs by random prices."""
    frozen = grown(graph, rules, settings.limits)
    laid = candidates(frozen)
    folder = Folder(graph)
    seen: set[str] = set()
    compared: set[ENode] = set()
    for number in range(settings.programs):
        priced = _prices(laid, _replaceable(frozen, compared), Random(settings.seed + number)) if number else estimate(laid)
        try:
            selection = extract(frozen, priced, 1, EXTRACT_SECONDS, 0)[0]
        except ExtractError:
            continue
        compared |= {node for candidate in selection.chosen.values() for node in candidate.covered}
        program = to_program(frozen, selection, graph)
        digest = " ".join(root.digest for root in program.graph.roots)
        if digest not in seen:
            seen.add(digest)
            yield folder.fold(program)


def _replaceable(frozen: FrozenEGraph, compared: Set[ENode]) -> frozenset[ENode]:
    """Return the compared nodes of e-classes that also have an uncompared node made by a rule."""
    classes = (nodes for nodes in frozen.classes.values() if any(node.rule and node not in compared for node in nodes))
    return frozenset(node for nodes in classes for node in nodes if node in compared)


def _prices(laid: Mapping[int, tuple[Candidate, ...]], avoided: Set[ENode], random: Random) -> dict[int, tuple[Candidate, ...]]:
    """Draw prices; nodes made by rules are cheap, because only a program that contains them shows whether they are right."""

    def price(candidate: Candidate) -> float:
        drawn = random.uniform(0.1, 3.0) ** 3
        if not avoided.isdisjoint(candidate.covered):
            return COMPARED * drawn
        return MADE_BY_RULES * drawn if any(node.rule for node in candidate.covered) else drawn

    return {number: tuple(replace(candidate, cost_us=price(candidate)) for candidate in options) for number, options in laid.items()}


def _suspects(graph: Graph, program: Program, feeds: Mapping[str, Any], settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rules that contributed to the program, with those at the first changed value in front, and the source nodes there."""
    values = kernel_values(program, feeds, settings.threads)
    rules, nodes = changed(graph, program, values, feeds, settings.threads)
    used = [rule for kernel in program.kernels for rule in kernel.rules]
    return tuple(dict.fromkeys((*rules, *used))), nodes


def _wrong_kernels(
    graph: Graph, rules: Sequence[AnyRule], feeds: Mapping[str, Any], expected: Mapping[str, Any], settings: Settings
) -> Finding:
    program = next(programs(graph, rules, replace(settings, programs=1)))
    with open_program(program, threads=settings.threads) as session:
        results = dict(zip([name for name, _ in program.graph.outputs], session.run(None, dict(feeds)), strict=True))
    errors = {name: _error(expected[name], value) for name, value in results.items()}
    output, error = max(errors.items(), key=lambda item: item[1])
    if error <= settings.tolerance:
        return Finding(error)
    blamed = blame(graph, program, feeds, compile_options(settings.threads), Tolerance(settings.tolerance))
    reasons = tuple(f"{kernel.implementation}: {reason}" for kernel, reason in blamed.kernels)
    return Finding(error, output, (), reasons, blamed.source_nodes)


def _error(want: Any, got: Any) -> float:
    want, got = np.asarray(want), np.asarray(got)
    if want.shape != got.shape or want.dtype != got.dtype:
        return float("inf")
    if want.dtype.kind != "f":
        return 0.0 if np.array_equal(want, got) else float("inf")
    return relative_error(want, got) if np.array_equal(np.isnan(want), np.isnan(got)) else float("inf")
