"""Optimise by estimates alone, without any measurement, for many small models and for tests.

    program = estimated_program(graph)
    session = open_session(model, threads=1)      # the whole way: import, saturate, extract, compile, load

The pipeline searches the fastest program; this module finds a good one within milliseconds. ``price`` replaces the cost model. Tests pass
random prices, so that every kernel and every rewritten form is chosen sooner or later.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TypeAlias

import onnx

from egraph.engine.saturate import Limits, saturate
from egraph.extract import extract, to_program
from egraph.onnx import exporter, importer
from egraph.optimize.folding import Folder
from egraph.rewrite.terms import Pattern
from egraph.rule import MergeRule, Rule
from egraph.tensor import Candidate, FrozenEGraph, Graph, Program, walk
from lower.candidates import candidates
from lower.compile import CompileOptions, compile_program
from lower.cost.model import CostModel, without_twins
from lower.roofline import DeviceSpeed
from lower.targets import lowering
from runtime import Session
from runtime.devices import HOST
from runtime.profile import Database

Price: TypeAlias = Callable[[Mapping[int, tuple[Candidate, ...]]], Mapping[int, tuple[Candidate, ...]]]
"""Returns candidates with their costs."""

SMALL = Limits(seconds=5.0, e_nodes=2_000, iterations=8)
EXTRACT_SECONDS = 1.0


def grown(graph: Graph, rules: Sequence[Rule | MergeRule], limits: Limits = SMALL) -> FrozenEGraph:
    """Return the saturated e-graph. Rules whose operators cannot occur are not compiled, because compiling rules takes most of the time."""
    present = {node.op for node in walk(graph.roots)}
    while True:
        active = [rule for rule in rules if _operators(rule) <= present]
        frozen = saturate(graph, active, limits).frozen
        made = {node.op for nodes in frozen.classes.values() for node in nodes} - present
        if not any(_operators(rule) <= present | made for rule in rules if rule not in active):
            return frozen
        present |= made


@lru_cache(maxsize=1024)
def _operators(rule: Rule | MergeRule) -> frozenset[str]:
    """Return the operators of a rule's left side."""

    def inside(pattern: Pattern) -> frozenset[str]:
        return frozenset({pattern.op}).union(*(inside(operand) for operand in pattern.operands if isinstance(operand, Pattern)))

    return inside((rule if isinstance(rule, Rule) else rule.member).pattern)


def estimate(laid: Mapping[int, tuple[Candidate, ...]], speed: DeviceSpeed | None = None) -> Mapping[int, tuple[Candidate, ...]]:
    """Price candidates by the bytes that they move, their operations, and the described speed of the device."""
    model = CostModel(Database.in_memory(), "estimated", speed or DeviceSpeed())
    return model.price(without_twins(model, laid))


def estimated_program(
    graph: Graph,
    rules: Sequence[Rule | MergeRule] | None = None,
    *,
    price: Price | None = None,
    device: str = HOST,
) -> Program:
    """Return the cheapest program for a device; all shipped rules are used unless ``rules`` are given."""
    frozen = grown(graph, shipped_rules() if rules is None else rules)
    folder, target_lowering = Folder(graph), lowering(device)
    price = price or partial(estimate, speed=target_lowering.speed)
    selection = extract(frozen, price(candidates(frozen, target_lowering.target)), seconds=EXTRACT_SECONDS)[0]
    return folder.fold(to_program(frozen, selection, graph))


@cache
def shipped_rules() -> tuple[Rule | MergeRule, ...]:
    """Return the shipped rules that are proved."""
    from egraph.optimize.admission import admitted  # takes 0.2 s, and is not needed by callers with their own rules
    from egraph.rules import RULES

    return admitted(RULES)


def compile_options(threads: int, device: str = HOST) -> CompileOptions:
    """Return options that let a program keep opaque nodes."""
    return CompileOptions(threads, lowering(device).target, export_graph=exporter.serialized)


def open_program(program: Program, *, threads: int = 1, device: str = HOST) -> Session:
    """Compile a program and load it; its files are deleted, because the session keeps what it needs."""
    with tempfile.TemporaryDirectory(prefix="einsat-") as folder:
        compile_program(program, Path(folder), compile_options(threads, device))
        return Session(folder, threads=threads, on=device)


def open_session(model: str | Path | onnx.ModelProto, *, threads: int = 1, device: str = HOST) -> Session:
    """Return a session on the optimised model."""
    return open_program(estimated_program(importer.load(model).graph, device=device), threads=threads, device=device)
