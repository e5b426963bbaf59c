"""Say how long what is left of a run takes, by what the run has seen of model and machine: the search ends in time for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from egraph.optimize.batch import compile_requests, kernel_requests, uncompiled
from egraph.optimize.progress import Progress
from egraph.policy import Policy
from egraph.tensor import Program
from lower.compile import CompileOptions

T = TypeVar("T")

RUNS_OF_A_CONTENDER = 3
"""Runs of a contender that a race needs at least: when it is loaded, when it is first timed, and once more."""
FILES_OPENED = 3
"""Times that saved files are read at the end, each of which takes about as long as onnxruntime took to open the model."""


@dataclass
class Schedule:
    """What a run has seen of its own speed."""

    progress: Progress
    contenders: int
    checks: int
    open_seconds: float
    """How long onnxruntime took to open the model, and then to run it."""
    run_seconds: float
    compilations: list[tuple[int, float]] = field(default_factory=list)
    """How many generated kernels were compiled together, and in how many seconds."""
    plain_kernels: int = 0
    """Kernels of the program without rules that are still to be compiled."""
    given: int = 0
    """Inputs of the user's own: the check compares all of them, whatever time that takes."""
    policy: Policy = Policy()

    def compile(self, programs: Sequence[Program], folder: Path, options: CompileOptions) -> None:
        """Fill the kernel cache for programs that are going to be compiled one by one; a kernel that fails is met again there."""
        wanted = kernel_requests(programs, options)
        if wanted:
            library = compile_requests(list(wanted.values()), folder / "ahead.so", options)
            self.compiled(library.compiled, library.seconds)

    def compiled(self, kernels: int, seconds: float) -> None:
        """Learn how long compiling takes. What started the compiler says little, and is forgotten when more is known."""
        if kernels:
            self.compilations.append((kernels, seconds))

    def foresee(self, programs: Sequence[Program], options: CompileOptions) -> None:
        """Count the kernels of programs that are going to be compiled whatever the search finds."""
        self.plain_kernels = uncompiled(programs, options)

    def seconds_to_compile(self, kernels: int) -> float:
        """Return how long so many generated kernels take, at the pace that was seen."""
        known = self.compilations[1:] or self.compilations
        return kernels * sum(seconds for _, seconds in known) / max(1, sum(count for count, _ in known))

    def seconds_of(self, program: Program, options: CompileOptions) -> float:
        """Return how long it takes to compile a program and to time it once more than the others."""
        return self.seconds_to_compile(uncompiled([program], options)) + self.open_seconds + RUNS_OF_A_CONTENDER * self.run_seconds

    @property
    def race_seconds(self) -> float:
        """Return how long a race of the original and the most promising program takes at least, and with all where opening is quick."""
        all_seconds = min(self.contenders * self.open_seconds, self.policy.race.open_share * self.progress.budget_seconds)
        return max(self.policy.race.contenders * self.open_seconds, all_seconds) + 2 * RUNS_OF_A_CONTENDER * self.run_seconds

    @property
    def inputs(self) -> int:
        """Return on how many inputs the check compares where there is time."""
        return max(self.checks, self.given)

    @property
    def input_seconds(self) -> float:
        """Return how long the check takes with one input: the original and two saved files run."""
        return 3 * self.run_seconds

    @property
    def check_seconds(self) -> float:
        """Return how long saving, and the check of what was saved, take."""
        least_seconds = max(1, self.given) * self.input_seconds
        return FILES_OPENED * self.open_seconds + max(least_seconds, min(self.inputs * self.input_seconds, self.policy.check.seconds))

    def after_search_seconds(self, unmeasured: int = 0) -> float:
        """Return how long all takes that comes after the search, where so many of the chosen kernels are not compiled yet."""
        compile_seconds = self.seconds_to_compile(self.plain_kernels + unmeasured)
        most_seconds = self.policy.budget.compile_share * self.progress.budget_seconds
        return min(compile_seconds, most_seconds) + self.race_seconds + self.check_seconds

    def may_check(self) -> bool:
        """Return whether the check goes on to another input: while there is time, or little is asked for."""
        return self.inputs * self.input_seconds <= self.policy.check.seconds or self.progress.left_seconds > self.input_seconds


def worked(call: Callable[[], T]) -> tuple[T, float]:
    """Return what a call gives, and the seconds that it took, or would have taken if no other process had needed the cores."""
    started, worked_before = time.monotonic(), time.process_time()
    result = call()
    return result, min(time.monotonic() - started, time.process_time() - worked_before)
