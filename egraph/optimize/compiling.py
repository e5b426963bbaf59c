"""Compile the programs of a race: what is shipped in any case, the others while there is time to race them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from egraph.errors import EinsatError
from egraph.optimize.budget import Budget
from egraph.optimize.folding import Folder
from egraph.optimize.trial import PLAIN, Entry, by_importance
from lower.compile import CompileOptions, compile_program

NO_TIME_TO_COMPILE = "there was no time left to compile it"


def compile_entry(entry: Entry, options: CompileOptions) -> int:
    """Compile a program to its contender's place; return about what it keeps in memory, in bytes."""
    plan = compile_program(entry.program, Path(entry.contender.path), options)
    return plan.arena_bytes + sum(array.nbytes for array in entry.program.graph.tensors.values())


def compile_cheapest(entries: Sequence[Entry], folder: Folder, options: CompileOptions) -> Entry:
    """Compile what is estimated to take the least, where nothing is timed; return it, folded."""
    cheapest = min(by_importance(entries), key=lambda entry: entry.program.cost_us).folded(folder)
    compile_entry(cheapest, options)
    return cheapest


def compile_all(
    entries: Sequence[Entry], folder: Folder, budget: Budget, work: Path, options: CompileOptions
) -> tuple[dict[str, int], dict[str, str]]:
    """Compile every program; return the sizes, and the reasons of those that cannot be compiled.

    The most promising one always is, the plain one, which nobody ships, unless that takes much longer than there is time; the
    others while there is time to race them afterwards.
    """
    sizes_bytes: dict[str, int] = {}
    failed: dict[str, str] = {}
    for rank, entry in enumerate(by_importance(entries)):
        entry, is_plain = entry.folded(folder), entry.contender.name == PLAIN
        spare_seconds = max(0.0, budget.left_seconds - budget.race_seconds - budget.check_seconds)
        spare_seconds += budget.policy.budget.grace_seconds if is_plain else 0.0
        if rank > 0 and budget.seconds_of(entry.program, options) > spare_seconds:
            failed[entry.contender.name] = NO_TIME_TO_COMPILE
            continue
        budget.compile([entry.program], work, options)
        try:
            sizes_bytes[entry.contender.name] = compile_entry(entry, options)
        except EinsatError as error:
            if is_plain:
                raise
            failed[entry.contender.name] = str(error)
    return sizes_bytes, failed
