"""The budget of a run: the time left, the time that later steps take, and the time that a stage may use.

The time of a step is predicted from what the run has seen of model and machine: how long onnxruntime took to open and run the model, how
fast kernels were compiled, and by how much other processes slow everything down. Before a long step, a stage asks whether the step fits,
and does less if it does not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TypeVar

from egraph.optimize.kernels import compile_requests, compile_work, keeps_kernels, uncompiled
from egraph.optimize.progress import Progress
from egraph.policy import Policy
from egraph.tensor import Program
from lower.compile import CompileOptions

T = TypeVar("T")

RUNS_OF_A_CONTENDER = 3
"""Fewest runs of a contender in a race: when it is loaded, when it is first timed, and once more."""
WORKER_SECONDS, SETTLE_SECONDS = 0.3, 0.06
"""Time on a quiet machine to start a contender's process, and until the threads of a timed contender sleep."""
TELLING_SECONDS, MOST_SLOWDOWN = 0.1, 8.0
"""Least time of a call that shows how busy the machine is, and the largest slowdown that is assumed."""
RECENT_KERNELS, FEW_KERNELS = 32, 16
"""Number of recent kernels, of one operator each or as much work, whose pace predicts that of others, and the fewest that give a pace by
themselves.
"""
COMPILE_MARGIN = 2.0
"""Longest time to compile a program's kernels, in multiples of the prediction."""
FILES_OPENED = 3
"""Number of times that saved files are read at the end; each takes about as long as opening the standard model in onnxruntime."""


@dataclass
class Budget:
    """The time of one run, and what the run has seen of its own speed."""

    progress: Progress
    _: KW_ONLY
    contenders: int = 0
    checks: int = 0
    quiet_open_seconds: float = 0.0
    """Time in which onnxruntime opens the model, and below runs it, on a machine without other load."""
    quiet_run_seconds: float = 0.0
    quiet_saved_open_seconds: float = 0.0
    """Longest time in which onnxruntime opened a program as a standard model: with fast convolutions, five times that of the model."""
    slowdown: float = 1.0
    """Factor by which other processes on the cores slow everything down."""
    compilations: list[tuple[float, float]] = field(default_factory=list)
    """For each batch of generated kernels, their work (``compile_work``) and the seconds to compile them."""
    fold_seconds: float = 0.0
    """Time to fold a program: a second or two for a thousand kernels."""
    compared_seconds: float = 0.0
    """Longest time to compare a program with the original on one input; if they differ, kernels and parts are compared separately."""
    uncompiled_work: float = 0.0
    """Work of compiling the generated kernels that the search chose and that are not compiled yet."""
    chosen_kernels: int = 0
    """Number of kernels of the program that the search chose last."""
    ending_seconds: float = 0.0
    """Time of the search after measuring: the last rehearsal and the last extractions."""
    simulating_seconds: float = 0.0
    """Time kept for simulating the finally chosen programs, if they round."""
    given: int = 0
    """Number of the user's own inputs; the check compares all of them, whatever time that takes."""
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
        """Return the current seconds to open the model in onnxruntime."""
        return self.slowdown * self.quiet_open_seconds

    @property
    def saved_open_seconds(self) -> float:
        """Return the current seconds to open a program in onnxruntime as the standard model that is saved."""
        return self.slowdown * max(self.quiet_open_seconds, self.quiet_saved_open_seconds)

    @property
    def run_seconds(self) -> float:
        """Return the current seconds to run the model in onnxruntime."""
        return self.slowdown * self.quiet_run_seconds

    def measuring_seconds(self) -> float:
        """Return the seconds that are left for measuring."""
        policy = self.policy.measure
        later_seconds = self.ending_seconds + self.simulating_seconds + self.after_search_seconds(self.uncompiled_work)
        kept_seconds = max((1.0 - policy.share) * self.seconds, later_seconds)
        return self.left_seconds - min(kept_seconds, policy.kept_share * self.seconds)

    def spare_seconds(self) -> float:
        """Return the seconds that no later step needs, once measuring is over."""
        return self.left_seconds - self.after_search_seconds(self.uncompiled_work)

    def compile(self, programs: Sequence[Program], folder: Path, options: CompileOptions, kept_seconds: float = 0.0) -> bool:
        """Compile the kernels of programs into the kernel cache, before the programs are compiled one by one.

        Kernels are compiled in batches, and finished ones stay in the cache. A kernel that fails here fails again when its program is
        compiled. Return whether there was time for all, with ``kept_seconds`` left. Without a cache, nothing is compiled; return whether
        there is time to compile the programs.
        """
        requests, policy = uncompiled(programs, options), self.policy.measure
        if not keeps_kernels(options):
            return self.seconds_to_compile(compile_work(requests)) <= self.left_seconds - kept_seconds
        start, size = 0, policy.first_batch
        while batch := requests[start : start + size]:
            start, size = start + size, min(2 * size, policy.batch)
            work = compile_work(batch)
            if self.seconds_to_compile(work) > self.left_seconds - kept_seconds:
                return False
            library, done = compile_requests(batch, folder / "ahead.so", options)
            self.compiled(done, library.seconds)
        return True

    def compiled(self, work: float, seconds: float) -> None:
        """Record how long compiling took. The first batch, which includes one-time loading, is ignored once there are others."""
        if work:
            self.compilations.append((work, seconds))

    def look_again(self, run: Callable[[], object]) -> None:
        """Run the model to learn whether the machine is still as busy as it was when the model was read.

        For example, a busy moment made a search end after 29 s of 55, and its program, four times as fast as the model, was not raced.
        """
        seconds: list[float] = []
        elapsed_seconds: list[float] = []
        while self.slowdown > 1.0 and sum(elapsed_seconds) < TELLING_SECONDS:
            _, quiet_seconds, took_seconds = timed(run)
            seconds.append(quiet_seconds)
            elapsed_seconds.append(took_seconds)
        self.slowdown = min(self.slowdown, slowdown_of(seconds, elapsed_seconds))

    def opened(self, quiet_seconds: float) -> None:
        """Record how long onnxruntime took to open a program as a standard model."""
        self.quiet_saved_open_seconds = max(self.quiet_saved_open_seconds, quiet_seconds)

    def folded(self, seconds: float) -> None:
        """Record how long folding a program took."""
        self.fold_seconds = max(self.fold_seconds, seconds)

    def compared(self, seconds: float) -> None:
        """Record how long the comparison of a program with the original took on one input."""
        self.compared_seconds = max(self.compared_seconds, seconds)

    def seconds_to_compile(self, work: float) -> float:
        """Return the seconds to compile generated kernels, given their work, at the pace of the most recent ones.

        The recent pace is used because it depends on other processes. If fewer than ``FEW_KERNELS`` were compiled, the missing ones are
        assumed to take ``measure.kernel_seconds`` each.
        """
        last, seconds = 0.0, 0.0
        for batch_work, took_seconds in reversed(self.compilations[1:] or self.compilations):
            if last >= RECENT_KERNELS:
                break
            last, seconds = last + batch_work, seconds + took_seconds
        assumed_work = max(0.0, FEW_KERNELS - last) if last else 0.0
        assumed_seconds = assumed_work * self.slowdown * self.policy.measure.kernel_seconds
        return work * (seconds + assumed_seconds) / max(1.0, last + assumed_work)

    def seconds_of(self, program: Program, options: CompileOptions) -> float:
        """Return the seconds to compile a program and to time it as one more contender."""
        contender_seconds = self.contender_seconds + RUNS_OF_A_CONTENDER * self.run_seconds
        return self.seconds_to_compile(compile_work(uncompiled([program], options))) + contender_seconds

    @property
    def contender_seconds(self) -> float:
        """Return the seconds to open a contender of a race in a process of its own."""
        return self.open_seconds + self.slowdown * WORKER_SECONDS

    @property
    def least_race_seconds(self) -> float:
        """Return the least seconds of a race of the original and the most promising program: both are opened, and timed in one round."""
        policy = self.policy.race
        turn_seconds = RUNS_OF_A_CONTENDER * self.run_seconds + self.slowdown * SETTLE_SECONDS
        return policy.contenders * (self.contender_seconds + turn_seconds)

    @property
    def race_seconds(self) -> float:
        """Return the seconds that are kept for a race: at least those of the original and the most promising program.

        One run of each does not show which is faster. All contenders are therefore opened and run as often as a race asks for, if this
        takes a small part of the budget.
        """
        policy = self.policy.race
        contenders = max(policy.contenders, self.contenders)
        all_seconds = min(contenders * self.contender_seconds, policy.open_share * self.seconds)
        rounds_seconds = (1 + policy.least_rounds * policy.runs) * self.run_seconds + policy.least_rounds * self.slowdown * SETTLE_SECONDS
        open_seconds = max(policy.contenders * self.contender_seconds, all_seconds)
        least_seconds = self.least_race_seconds - policy.contenders * self.contender_seconds
        return open_seconds + max(least_seconds, min(contenders * rounds_seconds, policy.runs_share * self.seconds))

    def fair_race_seconds(self, contenders: int) -> float:
        """Return the seconds to open this many contenders, and to run them often enough to show which is fastest."""
        policy = self.policy.race
        runs = policy.least_rounds * policy.runs if self.run_seconds < policy.slow_run_seconds else 1
        return contenders * (self.contender_seconds + (1 + runs) * self.run_seconds)

    @property
    def inputs(self) -> int:
        """Return the number of inputs that the check compares if there is time."""
        return max(self.checks, self.given)

    @property
    def input_seconds(self) -> float:
        """Return the seconds of the check on one input: the original and two saved files run."""
        return 3 * self.run_seconds

    @property
    def check_seconds(self) -> float:
        """Return the seconds of saving and of the check of the saved files."""
        least_seconds = max(1, self.given) * self.input_seconds
        return FILES_OPENED * self.saved_open_seconds + max(least_seconds, min(self.inputs * self.input_seconds, self.policy.check.seconds))

    @property
    def racing_seconds(self) -> float:
        """Return the seconds that a race may take: the time that saving and the check leave.

        A program that differs by more than the tolerance takes longer to compare. Time for that is kept, too, but not at the expense of a
        shortest race.
        """
        seconds = self.left_seconds - self.check_seconds
        return max(seconds - self.other_inputs_seconds, min(seconds, self.least_race_seconds))

    @property
    def other_inputs_seconds(self) -> float:
        """Return the seconds to compare the user's inputs, except the first, which was compared before the race."""
        return max(0, self.given - 1) * self.compared_seconds

    def after_search_seconds(self, uncompiled_work: float = 0.0) -> float:
        """Return the seconds of all steps after the search, given the work of compiling the chosen kernels.

        The shipped program has to be folded, planned and compiled. No time is kept for the program without rules.
        """
        compile_seconds = self.seconds_to_compile(uncompiled_work)
        plan_seconds = self.slowdown * self.policy.budget.plan_seconds * self.chosen_kernels
        return self.fold_seconds + plan_seconds + compile_seconds + self.race_seconds + self.check_seconds

    def has_time_to_ship(self) -> bool:
        """Return whether there is time to link, time and check another program whose kernels are compiled."""
        return self.left_seconds > self.open_seconds + self.least_race_seconds + self.check_seconds

    def compiling_seconds(self) -> float:
        """Return the seconds that compiling may take; a program that is compiled later cannot be raced and checked."""
        return self.left_seconds - self.least_race_seconds - self.check_seconds

    def may_compile_late(self, work: float) -> bool:
        """Return whether a program whose compilation takes this work may be compiled too late to be raced and checked."""
        return COMPILE_MARGIN * self.seconds_to_compile(work) > self.compiling_seconds()

    def may_check(self, compared_seconds: float = 0.0) -> bool:
        """Return whether the check continues with another input: if there is time, or if all inputs take little time.

        ``compared_seconds`` is the time that each input took so far, which exceeds that of running it if kernels and parts were compared
        alone.
        """
        seconds = max(self.input_seconds, compared_seconds)
        return self.inputs * seconds <= self.policy.check.seconds or self.left_seconds > seconds


def timed(call: Callable[[], T]) -> tuple[T, float, float]:
    """Return the result of a call, the seconds that it would have taken without other load, and the seconds that it took."""
    started, worked_before = time.monotonic(), time.process_time()
    result = call()
    elapsed_seconds = time.monotonic() - started
    return result, min(elapsed_seconds, time.process_time() - worked_before), elapsed_seconds


def worked_here(call: Callable[[], T]) -> tuple[T, float]:
    """Return the result of a call and the CPU seconds of this thread, which do not depend on other threads."""
    worked_before = time.thread_time()
    result = call()
    return result, time.thread_time() - worked_before


def slowdown_of(seconds: Sequence[float], elapsed_seconds: Sequence[float]) -> float:
    """Return the factor by which calls were slower than on a quiet machine, or 1 if they were too short to tell."""
    if sum(elapsed_seconds) < TELLING_SECONDS:
        return 1.0
    return min(MOST_SLOWDOWN, max(1.0, sum(elapsed_seconds) / max(sum(seconds), 1e-9)))
