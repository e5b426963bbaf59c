"""The budget of a run: what is left of it, how long what comes later takes, and what a stage may use before that.

How long a step takes is foreseen by what the run has seen of model and machine: opening and running the model in onnxruntime, the pace
at which kernels were compiled, and how much longer things take because other processes need the cores, too. A stage asks before a long
step whether that fits, and does less where it does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from egraph.optimize.kernels import compile_requests, uncompiled
from egraph.optimize.progress import Progress
from egraph.policy import Policy
from egraph.tensor import Program
from lower.compile import CompileOptions

T = TypeVar("T")

RUNS_OF_A_CONTENDER = 3
"""The fewest runs of a contender in a race: when it is loaded, when it is first timed, and once more."""
WORKER_SECONDS, SETTLE_SECONDS = 0.3, 0.06
"""How long it takes on a quiet machine to start the process of a contender, and until the threads of one that was timed sleep."""
TELLING_SECONDS, MOST_SLOWDOWN = 0.1, 8.0
"""Seconds that a call has to take to show how busy the machine is, and the largest slowdown that is assumed."""
RECENT_KERNELS, FEW_KERNELS = 32, 16
"""The most recent kernels whose mean compile time predicts that of others, and the fewest that give a mean by themselves."""
FILES_OPENED = 3
"""Times that saved files are read at the end, each of which takes about as long as onnxruntime took to open the model."""


@dataclass
class Budget:
    """The time of one run, and what the run has seen of its own speed."""

    progress: Progress
    contenders: int = 0
    checks: int = 0
    quiet_open_seconds: float = 0.0
    """How long onnxruntime took to open the model, and then to run it, or would have if no other process had needed the cores."""
    quiet_run_seconds: float = 0.0
    slowdown: float = 1.0
    """How many times as long things take because other processes need the cores, too."""
    compilations: list[tuple[int, float]] = field(default_factory=list)
    """How many generated kernels were compiled together, and in how many seconds."""
    plain_kernels: int = 0
    """Kernels of the program without rules that are still to be compiled."""
    fold_seconds: float = 0.0
    """How long folding a program took: a second or two where it has a thousand kernels."""
    compared_seconds: float = 0.0
    """The longest comparison of a program with the original on one input: where they differ, it looks at kernels and parts alone."""
    uncompiled: int = 0
    """Generated kernels that the search chose and has not measured."""
    chosen_kernels: int = 0
    """Kernels of the program that the search chose last."""
    ending_seconds: float = 0.0
    """How long the search takes once measuring is over: the last rehearsal and the last extractions."""
    simulating_seconds: float = 0.0
    """For simulations of the programs that are chosen in the end, where they round."""
    given: int = 0
    """Inputs of the user's own: the check compares all of them, whatever time that takes."""
    policy: Policy = Policy()

    @property
    def seconds(self) -> float:
        return self.progress.budget_seconds

    @property
    def spent_seconds(self) -> float:
        return self.progress.spent_seconds

    @property
    def left_seconds(self) -> float:
        return self.progress.left_seconds

    @property
    def open_seconds(self) -> float:
        """Return how long it takes now to open the model in onnxruntime."""
        return self.slowdown * self.quiet_open_seconds

    @property
    def run_seconds(self) -> float:
        """Return how long it takes now to run the model in onnxruntime."""
        return self.slowdown * self.quiet_run_seconds

    def measuring_seconds(self) -> float:
        """Return the seconds that are left for measuring."""
        policy = self.policy.measure
        later_seconds = self.ending_seconds + self.simulating_seconds + self.after_search_seconds(self.uncompiled)
        kept_seconds = max((1.0 - policy.share) * self.seconds, later_seconds)
        return self.left_seconds - min(kept_seconds, policy.kept_share * self.seconds)

    def spare_seconds(self) -> float:
        """Return the seconds that nothing needs, now that measuring is over."""
        return self.left_seconds - self.after_search_seconds(self.uncompiled)

    def compile(self, programs: Sequence[Program], folder: Path, options: CompileOptions, kept_seconds: float = 0.0) -> bool:
        """Fill the kernel cache for programs that are going to be compiled one by one; a kernel that fails is met again there.

        Return whether there was time for all, with ``kept_seconds`` left: a few are compiled together, and what was is kept.
        """
        requests, policy = uncompiled(programs, options), self.policy.measure
        start, size = 0, policy.first_batch
        while batch := requests[start : start + size]:
            start, size = start + size, min(2 * size, policy.batch)
            if self.seconds_to_compile(len(batch)) > self.left_seconds - kept_seconds:
                return False
            library = compile_requests(batch, folder / "ahead.so", options)
            self.compiled(library.compiled, library.seconds)
        return True

    def compiled(self, kernels: int, seconds: float) -> None:
        """Record how long compiling took. The first kernels, which load what all need, are dropped once there are others."""
        if kernels:
            self.compilations.append((kernels, seconds))

    def look_again(self, run: Callable[[], object]) -> None:
        """Learn from runs of the model whether the machine is still as busy as it was when the model was read.

        A moment that was busy made a search end after 29 s of 55, and its program, four times as fast as the model, was not raced.
        """
        seconds: list[float] = []
        elapsed_seconds: list[float] = []
        while self.slowdown > 1.0 and sum(elapsed_seconds) < TELLING_SECONDS:
            _, quiet_seconds, took_seconds = timed(run)
            seconds.append(quiet_seconds)
            elapsed_seconds.append(took_seconds)
        self.slowdown = min(self.slowdown, slowdown_of(seconds, elapsed_seconds))

    def folded(self, seconds: float) -> None:
        """Record how long folding a program took."""
        self.fold_seconds = max(self.fold_seconds, seconds)

    def compared(self, seconds: float) -> None:
        """Record how long a program was compared with the original on one input."""
        self.compared_seconds = max(self.compared_seconds, seconds)

    def foresee(self, programs: Sequence[Program], options: CompileOptions) -> None:
        """Count the kernels of programs that are going to be compiled whatever the search finds."""
        self.plain_kernels = len(uncompiled(programs, options))

    def seconds_to_compile(self, kernels: int) -> float:
        """Return how long so many generated kernels take, at the pace of the last ones: those of fused operators take longer.

        Where fewer than ``FEW_KERNELS`` were compiled, the missing ones are assumed to take ``measure.kernel_seconds`` each.
        """
        last, seconds = 0, 0.0
        for count, took_seconds in reversed(self.compilations[1:] or self.compilations):
            if last >= RECENT_KERNELS:
                break
            last, seconds = last + count, seconds + took_seconds
        assumed_kernels = max(0, FEW_KERNELS - last) if last else 0
        assumed_seconds = assumed_kernels * self.slowdown * self.policy.measure.kernel_seconds
        return kernels * (seconds + assumed_seconds) / max(1, last + assumed_kernels)

    def seconds_of(self, program: Program, options: CompileOptions) -> float:
        """Return how long it takes to compile a program and to time it once more than the others."""
        contender_seconds = self.contender_seconds + RUNS_OF_A_CONTENDER * self.run_seconds
        return self.seconds_to_compile(len(uncompiled([program], options))) + contender_seconds

    @property
    def contender_seconds(self) -> float:
        """Return how long it takes to open a contender of a race, in a process of its own."""
        return self.open_seconds + self.slowdown * WORKER_SECONDS

    @property
    def least_race_seconds(self) -> float:
        """Return how long a race of the original and the most promising program takes at least: both are opened, and timed in one round."""
        policy = self.policy.race
        turn_seconds = RUNS_OF_A_CONTENDER * self.run_seconds + self.slowdown * SETTLE_SECONDS
        return policy.contenders * (self.contender_seconds + turn_seconds)

    @property
    def race_seconds(self) -> float:
        """Return how long a race of the original and the most promising program takes at least, and of all where they are quick.

        One run of each does not tell the faster one: all have as many as a race asks for where that takes a small part of the budget.
        """
        policy = self.policy.race
        contenders = max(policy.contenders, self.contenders)
        all_seconds = min(contenders * self.contender_seconds, policy.open_share * self.seconds)
        rounds_seconds = (1 + policy.least_rounds * policy.runs) * self.run_seconds + policy.least_rounds * self.slowdown * SETTLE_SECONDS
        open_seconds = max(policy.contenders * self.contender_seconds, all_seconds)
        least_seconds = self.least_race_seconds - policy.contenders * self.contender_seconds
        return open_seconds + max(least_seconds, min(contenders * rounds_seconds, policy.runs_share * self.seconds))

    def fair_race_seconds(self, contenders: int) -> float:
        """Return how long it takes to open so many contenders, and to run them as often as tells the faster one."""
        policy = self.policy.race
        runs = policy.least_rounds * policy.runs if self.run_seconds < policy.slow_run_seconds else 1
        return contenders * (self.contender_seconds + (1 + runs) * self.run_seconds)

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

    @property
    def racing_seconds(self) -> float:
        """Return how long a race may take: what saving and the check leave, and a shortest race in any case where these leave one.

        A program that differs by more than the tolerance is compared for longer, on the first input already before the race.
        """
        seconds = self.left_seconds - self.check_seconds
        return max(seconds - self.other_inputs_seconds, min(seconds, self.least_race_seconds))

    @property
    def other_inputs_seconds(self) -> float:
        """Return how long the check compares the user's inputs but the first, which was compared before the race."""
        return max(0, self.given - 1) * self.compared_seconds

    def after_search_seconds(self, uncompiled: int = 0) -> float:
        """Return how long all takes that comes after the search, where so many of the chosen kernels are not compiled yet.

        What is shipped has to be folded, planned and compiled; the program without rules gives way to measuring.
        """
        most_seconds = self.policy.budget.compile_share * self.seconds
        compile_seconds = self.seconds_to_compile(uncompiled) + min(self.seconds_to_compile(self.plain_kernels), most_seconds)
        plan_seconds = self.slowdown * self.policy.budget.plan_seconds * self.chosen_kernels
        return self.fold_seconds + plan_seconds + compile_seconds + self.race_seconds + self.check_seconds

    def has_time_to_ship(self) -> bool:
        """Return whether another program whose kernels are compiled can be linked, timed and checked."""
        return self.left_seconds > self.open_seconds + self.least_race_seconds + self.check_seconds

    def compiling_seconds(self) -> float:
        """Return how long compiling may go on: a program that is compiled later cannot be raced and checked."""
        return self.left_seconds - self.least_race_seconds - self.check_seconds

    def may_check(self, compared_seconds: float = 0.0) -> bool:
        """Return whether the check continues with another input: while there is time, or few inputs are required.

        ``compared_seconds``: how long each took so far, where kernels and parts were compared alone more than running it.
        """
        seconds = max(self.input_seconds, compared_seconds)
        return self.inputs * seconds <= self.policy.check.seconds or self.left_seconds > seconds


def timed(call: Callable[[], T]) -> tuple[T, float, float]:
    """Return what a call gives, the seconds that it would have taken if no other process had needed the cores, and those that it took."""
    started, worked_before = time.monotonic(), time.process_time()
    result = call()
    elapsed_seconds = time.monotonic() - started
    return result, min(elapsed_seconds, time.process_time() - worked_before), elapsed_seconds


def worked_here(call: Callable[[], T]) -> tuple[T, float]:
    """Return what a call gives, and the seconds that this thread worked for it, whatever others did beside it."""
    worked_before = time.thread_time()
    result = call()
    return result, time.thread_time() - worked_before


def slowdown_of(seconds: Sequence[float], elapsed_seconds: Sequence[float]) -> float:
    """Return how many times as long calls took as they would have on a quiet machine, 1 where they were too short to tell."""
    if sum(elapsed_seconds) < TELLING_SECONDS:
        return 1.0
    return min(MOST_SLOWDOWN, max(1.0, sum(elapsed_seconds) / max(sum(seconds), 1e-9)))
