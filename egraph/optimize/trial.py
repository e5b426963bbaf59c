"""One search with its race: the programs that take part, compiled while there is time to race them, and the fastest one."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from egraph.errors import EinsatError, ModelError
from egraph.optimize.budget import Budget
from egraph.optimize.choice import program_digest
from egraph.optimize.folding import Folder
from egraph.optimize.kernels import compile_work, uncompiled
from egraph.optimize.race import ESTIMATED_DEVICE, NO_TIME_TO_RACE, Contender, Race, winner
from egraph.optimize.search import Search
from egraph.optimize.storage import with_rounded_weights
from egraph.policy import RacePolicy
from egraph.tensor import Program
from lower.compile import CompileOptions, compile_program
from lower.targets import lowering_for
from runtime.measure import Timing

ORIGINAL, PLAIN = "onnxruntime", "unoptimized"
"""Names of two contenders: the original model, and its program without rules and fusion."""


@dataclass(frozen=True)
class Entry:
    """A program that takes part in the race; it is compiled to its contender's path."""

    contender: Contender
    program: Program

    def folded(self, folder: Folder) -> Entry:
        """Return the entry with a folded program, which can be compiled and saved: expressions over weights are computed."""
        return replace(self, program=folder.fold(self.program))


@dataclass(frozen=True)
class Trial:
    """One search with its race: its programs, their times, and the best one (None: onnxruntime on the original)."""

    searched: Search
    plain: Program
    entries: tuple[Entry, ...]
    raced: Race
    best: Entry | None
    search_key: str
    """Key that the search is filed under."""
    preferred: tuple[str, ...] = ()
    """The names of all contenders, in the order in which ties are decided."""

    @property
    def is_timed(self) -> bool:
        """Return whether there was time to compile and race at least one program of the search, whatever the result."""
        timings = [self.raced.timings[entry.contender.name] for entry in self.entries if entry.contender.name != PLAIN]
        return not timings or any(timing.message not in (NO_TIME_TO_COMPILE, NO_TIME_TO_RACE) for timing in timings)


def by_importance(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, which begin with the plain program, in the order of compiling and timing: the best first, the plain one last.

    The plain program shows how much the search gains, and hardly ever wins.
    """
    plain, *others = entries
    return [*others, plain]


def entry_named(name: str, entries: Sequence[Entry]) -> Entry | None:
    """Return the entry of a contender, or None for the original model."""
    return next((entry for entry in entries if entry.contender.name == name), None)


def by_preference(entries: Sequence[Entry], derived: Container[str]) -> tuple[str, ...]:
    """Return the contenders' names in the order in which ties are decided.

    The original model is first and the plain program is last. The others are ordered by the number of kernels from ``derived`` programs,
    which round more, and then by predicted time.
    """

    def effort(entry: Entry) -> tuple[bool, int, float]:
        kernels = sum(any(name in derived for name in kernel.rules) for kernel in entry.program.kernels)
        return entry.contender.name == PLAIN, kernels, entry.program.cost_us

    return (ORIGINAL, *(entry.contender.name for entry in sorted(entries, key=effort)))


def fastest(preferred: Sequence[str], raced: Race, policy: RacePolicy) -> str:
    """Return the name of the winner: onnxruntime on the original model, unless a program is clearly faster."""
    if raced.timings[ORIGINAL].status != "ok":
        raise ModelError(f"onnxruntime cannot time the original model: {raced.timings[ORIGINAL].message}")
    return winner(preferred, raced.timings, policy) or ORIGINAL


def cheapest(entries: Sequence[Entry], raced: Race) -> Entry | None:
    """Return the program with the least estimated time, on a device without timing, or None if all programs have failed."""
    left = [entry for entry in by_importance(entries) if raced.timings[entry.contender.name].message == ESTIMATED_DEVICE]
    return min(left, key=lambda entry: entry.program.cost_us, default=None)


def gain(trial: Trial) -> float:
    """Return the speedup of the best program of a race over the original."""
    medians_us = [trial.raced.median_us(entry.contender.name) for entry in trial.entries]
    return trial.raced.median_us(ORIGINAL) / min(medians_us, default=float("inf"))


def without(trial: Trial, wrong: Entry, reason: str, folder: Folder, policy: RacePolicy) -> Trial:
    """Return the trial without a rejected program, and with the best of the remaining ones."""
    raced = replace(trial.raced, timings={**trial.raced.timings, wrong.contender.name: Timing("failed", message=reason)})
    is_estimated = raced.timings[ORIGINAL].message == ESTIMATED_DEVICE
    best = cheapest(trial.entries, raced) if is_estimated else entry_named(fastest(trial.preferred, raced, policy), trial.entries)
    return replace(trial, raced=raced, best=best and best.folded(folder))


def unchecked(trial: Trial, folder: Folder, policy: RacePolicy) -> Trial:
    """Return the trial without all remaining programs, because there is no time to check another one."""
    while trial.best is not None:
        trial = without(trial, trial.best, NO_TIME_TO_CHECK, folder, policy)
    return trial


def entries_of(searched: Search, plain: Program, work: Path, number: int, *, keep_subnormals: bool) -> list[Entry]:
    """Return the plain program and those of a search. ``number`` counts extractions, so that each has folders of its own."""
    named = [(PLAIN, plain), *((f"program {i}", program) for i, program in enumerate(searched.programs, start=1))]
    folders = {name: work / f"{name.replace(' ', '-')}-{number}" for name, _ in named}
    return [
        Entry(Contender(name, program_digest(program), "einsat", str(folders[name]), keep_subnormals=keep_subnormals), program)
        for name, program in named
    ]


NO_TIME_TO_COMPILE = "there was no time left to compile it"
NO_TIME_TO_CHECK = "there was no time left to check it"
QUICK_SHARE = 0.25
"""Largest part of the time for compiling that the first program may be predicted to take to be compiled before all others."""


def compile_entry(entry: Entry, options: CompileOptions) -> int:
    """Compile a program to its contender's path; return its approximate size in memory, in bytes."""
    program = with_rounded_weights(entry.program, lowering_for(options.target))
    plan = compile_program(program, Path(entry.contender.path), options)
    return plan.arena_bytes + sum(array.nbytes for array in entry.program.graph.tensors.values())


def in_order(entries: Sequence[Entry], folded: Callable[[Entry], Entry], budget: Budget, options: CompileOptions) -> Iterator[Entry]:
    """Yield programs, given in the order of their importance, in the order of compiling, which is mostly the same.

    If compiling the kernels of the first program may take all the time there is, and those of the last program of the search take less,
    the last one comes first, so that there is a program to race. It also comes first if it has next to none to compile, and the first one
    takes more than a moment. If derivations take part, the last one is the program by rules alone.
    """
    programs = [entry for entry in entries if entry.contender.name != PLAIN]
    if len(programs) > 1:
        first, last = programs[0], programs[-1]
        work = compile_work(uncompiled([folded(first).program], options))
        is_long = budget.seconds_to_compile(work) > QUICK_SHARE * budget.compiling_seconds()
        most = 1.0 if budget.may_compile_late(work) else QUICK_SHARE if is_long else 0.0
        if most and compile_work(uncompiled([folded(last).program], options)) < most * work:
            yield last
            entries = [entry for entry in entries if entry is not last]
    yield from entries


def compile_all(
    entries: Sequence[Entry], folder: Folder, budget: Budget, work: Path, options: CompileOptions
) -> tuple[dict[str, int], dict[str, str]]:
    """Compile the programs, the most promising first; return sizes in bytes, and the reasons of programs that were not compiled.

    The first one is compiled if there is time for a shortest race and the check afterwards, the others if there is time to race them and
    the original, too. Unexpected kernels, or other processes, may thus cost the gain, but never more than the budget. A program that would
    be compiled too late is not folded either, because folding takes seconds for a thousand kernels.
    """
    sizes_bytes: dict[str, int] = {}
    failed: dict[str, str] = {}
    by_name: dict[str, Entry] = {}

    def folded(entry: Entry) -> Entry:
        name, left_seconds = entry.contender.name, budget.left_seconds
        if name not in by_name:
            by_name[name] = entry.folded(folder)
            budget.folded(left_seconds - budget.left_seconds)
        return by_name[name]

    for entry in in_order(entries, folded, budget, options):
        race_seconds = budget.fair_race_seconds(len(sizes_bytes) + 2) if sizes_bytes else budget.least_race_seconds
        kept_seconds = budget.check_seconds + race_seconds
        fold_seconds = 0.0 if entry.contender.name in by_name else budget.fold_seconds
        if budget.left_seconds < kept_seconds + fold_seconds:
            failed[entry.contender.name] = NO_TIME_TO_COMPILE
            continue
        entry = folded(entry)
        is_late = budget.left_seconds < kept_seconds + (budget.seconds_of(entry.program, options) if sizes_bytes else 0.0)
        if is_late or not budget.compile([entry.program], work, options, kept_seconds):
            failed[entry.contender.name] = NO_TIME_TO_COMPILE
            continue
        try:
            sizes_bytes[entry.contender.name] = compile_entry(entry, options)
        except EinsatError as error:
            if entry.contender.name == PLAIN:
                raise
            failed[entry.contender.name] = str(error)
    return sizes_bytes, failed
