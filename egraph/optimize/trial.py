"""One search with its race: the programs that take part, compiled while there is time to race them, and which is the fastest."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from egraph.errors import EinsatError, ModelError
from egraph.optimize.budget import Budget
from egraph.optimize.choice import program_digest
from egraph.optimize.folding import Folder
from egraph.optimize.kernels import uncompiled
from egraph.optimize.race import ESTIMATED_DEVICE, NO_TIME_TO_RACE, Contender, Race, winner
from egraph.optimize.search import Search
from egraph.optimize.storage import with_rounded_weights
from egraph.policy import RacePolicy
from egraph.tensor import Program
from lower.compile import CompileOptions, compile_program
from lower.targets import lowering_for
from runtime.measure import Timing

ORIGINAL, PLAIN = "onnxruntime", "unoptimized"
"""Two names of contenders: the model as it was given, and its program without rules and fusion."""


@dataclass(frozen=True)
class Entry:
    """A program that takes part in the race; its contender's path is where it is compiled to."""

    contender: Contender
    program: Program

    def folded(self, folder: Folder) -> Entry:
        """Return the entry with what its program derives from weights computed: what can be compiled and saved."""
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
    """What the search is filed under."""
    preferred: tuple[str, ...] = ()
    """The names of all contenders, in the order in which ties are decided."""

    @property
    def is_timed(self) -> bool:
        """Return whether time was left to compile and race at least one program of the search, whatever came of that."""
        timings = [self.raced.timings[entry.contender.name] for entry in self.entries if entry.contender.name != PLAIN]
        return not timings or any(timing.message not in (NO_TIME_TO_COMPILE, NO_TIME_TO_RACE) for timing in timings)


def by_importance(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries, which begin with the plain program, in the order that they are compiled and timed in: the best first."""
    plain, *others = entries
    return [*others[:1], plain, *others[1:]]


def entry_named(name: str, entries: Sequence[Entry]) -> Entry | None:
    """Return the entry of a contender, None where that is the original model."""
    return next((entry for entry in entries if entry.contender.name == name), None)


def by_preference(entries: Sequence[Entry], derived: Container[str]) -> tuple[str, ...]:
    """Return the contenders' names in the order in which ties are decided.

    The model as it was given is first and the plain program last; of others, first what has fewer kernels by ``derived`` programs, which
    round more, then what is predicted to take less.
    """

    def effort(entry: Entry) -> tuple[bool, int, float]:
        kernels = sum(any(name in derived for name in kernel.rules) for kernel in entry.program.kernels)
        return entry.contender.name == PLAIN, kernels, entry.program.cost_us

    return (ORIGINAL, *(entry.contender.name for entry in sorted(entries, key=effort)))


def fastest(preferred: Sequence[str], raced: Race, policy: RacePolicy) -> str:
    """Return the name of the winner: that of onnxruntime on the original model unless a program is faster beyond doubt."""
    if raced.timings[ORIGINAL].status != "ok":
        raise ModelError(f"onnxruntime cannot time the original model: {raced.timings[ORIGINAL].message}")
    return winner(preferred, raced.timings, policy) or ORIGINAL


def cheapest(entries: Sequence[Entry], raced: Race) -> Entry | None:
    """Return what is estimated to take the least, where nothing is timed; None where all programs are given up."""
    left = [entry for entry in by_importance(entries) if raced.timings[entry.contender.name].message == ESTIMATED_DEVICE]
    return min(left, key=lambda entry: entry.program.cost_us, default=None)


def gain(trial: Trial) -> float:
    """Return how many times as fast as the original the best program of a race is."""
    medians_us = [trial.raced.median_us(entry.contender.name) for entry in trial.entries]
    return trial.raced.median_us(ORIGINAL) / min(medians_us, default=float("inf"))


def without(trial: Trial, wrong: Entry, reason: str, folder: Folder, policy: RacePolicy) -> Trial:
    """Return the trial with the best of what is left where a program is given up for a reason."""
    raced = replace(trial.raced, timings={**trial.raced.timings, wrong.contender.name: Timing("failed", message=reason)})
    is_estimated = raced.timings[ORIGINAL].message == ESTIMATED_DEVICE
    best = cheapest(trial.entries, raced) if is_estimated else entry_named(fastest(trial.preferred, raced, policy), trial.entries)
    return replace(trial, raced=raced, best=best and best.folded(folder))


def unchecked(trial: Trial, folder: Folder, policy: RacePolicy) -> Trial:
    """Return the trial without the programs that are left: there is no time to check another one."""
    while trial.best is not None:
        trial = without(trial, trial.best, NO_TIME_TO_CHECK, folder, policy)
    return trial


def entries_of(searched: Search, plain: Program, work: Path, number: int, *, keep_subnormals: bool) -> list[Entry]:
    """Return the plain program and those of a search; ``number``: of the extraction, so that each has a place of its own."""
    named = [(PLAIN, plain), *((f"program {i}", program) for i, program in enumerate(searched.programs, start=1))]
    folders = {name: work / f"{name.replace(' ', '-')}-{number}" for name, _ in named}
    return [
        Entry(Contender(name, program_digest(program), "einsat", str(folders[name]), keep_subnormals=keep_subnormals), program)
        for name, program in named
    ]


NO_TIME_TO_COMPILE = "there was no time left to compile it"
NO_TIME_TO_CHECK = "there was no time left to check it"
QUICK_SHARE = 0.25
"""Part of the time for compiling that a program's kernels may be believed to take for it to be compiled before all others."""


def compile_entry(entry: Entry, options: CompileOptions) -> int:
    """Compile a program to its contender's place; return about what it keeps in memory, in bytes."""
    program = with_rounded_weights(entry.program, lowering_for(options.target))
    plan = compile_program(program, Path(entry.contender.path), options)
    return plan.arena_bytes + sum(array.nbytes for array in entry.program.graph.tensors.values())


def in_order(entries: Sequence[Entry], folded: Callable[[Entry], Entry], budget: Budget, options: CompileOptions) -> Iterator[Entry]:
    """Yield programs, which come in the order of their importance, in the order that they are compiled in: mostly the same.

    Where the first one has so many kernels to compile that this may take all the time there is, the last one goes before it if it has next
    to none, so that there is a program to race: it is the one by rules alone, where derivations take part.
    """
    first, last = entries[0], entries[-1]
    if len(entries) > 1 and PLAIN not in (first.contender.name, last.contender.name):
        kernels = len(uncompiled([folded(first).program], options))
        is_long = budget.seconds_to_compile(kernels) > QUICK_SHARE * budget.compiling_seconds()
        if is_long and len(uncompiled([folded(last).program], options)) <= QUICK_SHARE * kernels:
            yield last
            entries = entries[:-1]
    yield from entries


def compile_all(
    entries: Sequence[Entry], folder: Folder, budget: Budget, work: Path, options: CompileOptions
) -> tuple[dict[str, int], dict[str, str]]:
    """Compile every program, the most promising first; return the sizes, and the reasons of those that cannot be compiled.

    The most promising one is while there is time to check a program afterwards, the others while there is time to race them and the
    original, too. So kernels that were not foreseen, or that other processes hold up, cost the gain and not the budget. Folding takes
    seconds where a program has a thousand kernels: none is folded that would be compiled too late.
    """
    sizes_bytes: dict[str, int] = {}
    failed: dict[str, str] = {}
    ranks = {entry.contender.name: rank for rank, entry in enumerate(entries)}

    by_name: dict[str, Entry] = {}

    def folded(entry: Entry) -> Entry:
        name, left_seconds = entry.contender.name, budget.left_seconds
        if name not in by_name:
            by_name[name] = entry.folded(folder)
            budget.folded(left_seconds - budget.left_seconds)
        return by_name[name]

    for entry in in_order(entries, folded, budget, options):
        rank = ranks[entry.contender.name] if sizes_bytes else 0
        race_seconds = budget.fair_race_seconds(len(sizes_bytes) + 2) if rank else budget.least_race_seconds
        kept_seconds = budget.check_seconds + race_seconds
        fold_seconds = 0.0 if entry.contender.name in by_name else budget.fold_seconds
        if budget.left_seconds < kept_seconds + fold_seconds:
            failed[entry.contender.name] = NO_TIME_TO_COMPILE
            continue
        entry = folded(entry)
        is_late = budget.left_seconds < kept_seconds + (budget.seconds_of(entry.program, options) if rank else 0.0)
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
