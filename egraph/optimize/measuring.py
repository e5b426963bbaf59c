"""Measure single kernels: compile each alone, compare its result, time it in the worker and record the time."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from egraph.errors import EinsatError, LowerError
from egraph.optimize.kernels import (
    compile_batch,
    compile_work,
    feed_specs,
    in_bytes,
    in_float32,
    kernel_program,
    reference_graph,
    rounded,
    uncompiled_work,
)
from egraph.optimize.simulation import products
from egraph.policy import MeasurePolicy
from egraph.tensor import Candidate, Implementation, Node, Program, Target, TensorType, format_fragment, placeholder
from egraph.tensor.ops import apply
from lower.compile import CompileOptions
from lower.cost.model import CostModel, KernelKey, is_measurable
from lower.eoperator import KernelRequest
from lower.roofline import DeviceSpeed, Work, work
from lower.targets import Lowering, lowering_for
from runtime.judge import REFERENCE_MODEL, ROUNDS_INSIDE
from runtime.measure import FROM_MEMORY, Effort, Engine, Load, Timing, Worker, measure
from runtime.profile import Database, Record
from runtime.profile.versions import from_memory

SHOWN_CHARACTERS = 500
SHARE_OF_LAST = 0.25
"""Weight of the last kernel in the running mean that predicts how long it takes to time the next one."""


@dataclass(frozen=True)
class Job:
    """A kernel to measure, and the text that its time is recorded under."""

    fragment: Node
    implementation: Implementation
    text: str
    engine: Engine = "kernel"
    seconds: float = 0.0
    """Approximate time to measure it, or 0 if not known."""

    @property
    def key(self) -> KernelKey:
        """Return the key that the time is recorded under."""
        return self.text, self.implementation.text


class Measures(Protocol):
    """Measures the kernels that a search chooses."""

    @property
    def measured(self) -> int:
        """Return the number of kernels with a result."""

    def measure_candidates(
        self, model: CostModel, candidates: Iterable[Candidate], time_left: Callable[[], float], tell: Callable[[str], None]
    ) -> None:
        """Record in ``model`` the times of the candidates that have no measurement yet."""

    def uncompiled_work(self, candidates: Iterable[Candidate]) -> float:
        """Return the work of compiling the generated kernels among candidates that are still to be compiled."""



@dataclass
class Measurer:
    """Measures kernels one at a time, compiled in batches."""

    database: Database
    device: str
    options: CompileOptions
    worker: Worker
    seed: int = 0
    effort: Effort = field(default_factory=Effort)
    measured: int = 0
    hung: set[tuple[str, str]] = field(default_factory=set)
    """Kernels that hung once."""
    seconds_to_compile: Callable[[float], float] = lambda work: 0.0
    """Returns the time to compile generated kernels, given their work."""
    time_seconds: float = 0.0
    """Time to compare and time one compiled kernel, from the last ones."""
    policy: MeasurePolicy = MeasurePolicy()
    tell_compiled: Callable[[float, float], None] = lambda work, seconds: None
    """Called with the work of the generated kernels that were compiled together, and the seconds that this took."""

    def measure(
        self, jobs: Sequence[Job], time_left: Callable[[], float], tell: Callable[[str], None], file: Callable[[Record], None] | None = None
    ) -> None:
        """Measure in order until time is up. Every result is recorded at once, including kernels that fail or hang twice.

        Kernels that take longer to compile than the time left are skipped.
        """
        waiting = list(jobs)
        while waiting:
            batch, waiting = self._fitting(waiting, time_left())
            if not batch:
                return
            with tempfile.TemporaryDirectory(prefix="einsat-kernels-") as folder:
                programs = [kernel_program(job.fragment, job.implementation, seed=self.seed) for job in batch]
                compiled_folders = compile_batch(programs, Path(folder), self.options, self.tell_compiled)
                for job, program, compiled in zip(batch, programs, compiled_folders, strict=True):
                    if time_left() <= 0:
                        return
                    if job.seconds > time_left():
                        continue
                    started = time.monotonic()
                    timing = self._timing(program, compiled, job, time_left())
                    if isinstance(compiled, Path):
                        took_seconds = time.monotonic() - started
                        self.time_seconds += (SHARE_OF_LAST if self.time_seconds else 1.0) * (took_seconds - self.time_seconds)
                    if timing is None:
                        continue
                    self.measured += 1
                    tell(f"{self.measured} kernels measured")
                    if timing.status == "hung" and job.key not in self.hung:
                        self.hung.add(job.key)  # the machine may be overloaded: try once more
                        continue
                    device = from_memory(self.device) if job.engine == FROM_MEMORY else self.device
                    digest = lowering_for(self.options.target).code_digest(job.fragment, job.implementation)
                    record = Record(device, *job.key, timing.status, timing.samples_us, timing.message, digest)
                    (file or self.database.put)(record)

    def _fitting(self, jobs: Sequence[Job], left_seconds: float) -> tuple[list[Job], list[Job]]:
        """Return the first jobs that can be compiled together and then timed in the time left, and the rest."""
        batch: list[Job] = []
        seconds = 0.0
        for number, job in enumerate(jobs if left_seconds > 0 else ()):
            compile_seconds = self.seconds_to_compile(uncompiled_work(((job.fragment, job.implementation),), self.options))
            if compile_seconds > left_seconds:
                continue
            seconds += compile_seconds + self.time_seconds
            if batch and (seconds > left_seconds or len(batch) == self.policy.batch):
                return batch, list(jobs[number:])
            batch.append(job)
        return batch, []

    def measure_candidates(
        self, model: CostModel, candidates: Iterable[Candidate], time_left: Callable[[], float], tell: Callable[[str], None]
    ) -> None:
        """Measure the candidates that have no measurement yet."""
        jobs = [job_of(model, candidate, self.policy) for candidate in candidates if not model.is_settled(candidate)]
        self.measure(jobs, time_left, tell, model.file)

    def uncompiled_work(self, candidates: Iterable[Candidate]) -> float:
        """Return the work of compiling the generated kernels among candidates that are still to be compiled."""
        return uncompiled_work(((each.fragment, each.implementation) for each in candidates), self.options)


    def measure_again(self, model: CostModel, candidates: Sequence[Candidate], time_left: Callable[[], float]) -> dict[KernelKey, Record]:
        """Return the times of single kernels, measured now; nothing is recorded."""
        records: dict[KernelKey, Record] = {}

        def keep(record: Record) -> None:
            records[record.fragment, record.implementation] = record

        jobs = [job_of(model, candidate, self.policy) for candidate in candidates if is_measurable(candidate.fragment)]
        self.measure(jobs, time_left, lambda text: None, keep)
        return records

    def _timing(self, program: Program, compiled: Path | EinsatError, job: Job, left_seconds: float) -> Timing | None:
        """Return the timing, or None if there was no time to find out whether the kernel hangs."""
        if isinstance(compiled, EinsatError):
            return Timing("failed", message=str(compiled)[:SHOWN_CHARACTERS])
        write_reference(program, job.implementation, compiled, self.options)
        load = Load(job.engine, str(compiled), feed_specs(program), self.options.threads, self.seed)
        usual_seconds = self.worker.time_out_seconds
        longest_seconds = usual_seconds + self.policy.runs * job.seconds
        patience_seconds = min(longest_seconds, max(self.policy.patience_seconds, left_seconds))
        self.worker.time_out_seconds = patience_seconds
        try:
            timing = measure(self.worker, load, self.effort)
        finally:
            self.worker.time_out_seconds = usual_seconds
        if timing.lacks_library:  # if it were recorded, no kernel could be used later
            raise LowerError(f"kernels cannot be run on this machine: {timing.message}")
        return None if timing.status == "hung" and patience_seconds < longest_seconds else timing


@dataclass
class Collector:
    """Collects the kernels that a search would measure, each once, in their order."""

    jobs: dict[KernelKey, Job] = field(default_factory=dict)
    policy: MeasurePolicy = MeasurePolicy()

    @property
    def measured(self) -> int:
        return len(self.jobs)

    def measure_candidates(
        self, model: CostModel, candidates: Iterable[Candidate], time_left: Callable[[], float], tell: Callable[[str], None]
    ) -> None:
        """Collect the candidates that have no measurement yet; ``model`` then assumes disappointing times for them."""
        for candidate in candidates:
            if not model.is_settled(candidate):
                time_us = self.policy.disappointment * model.estimate_us(candidate)
                self.jobs[model.key(candidate)] = job_of(model, candidate, self.policy)
                device, digest = model.device_of(candidate.fragment), model.code_digest(candidate)
                model.file(Record(device, *model.key(candidate), "ok", (time_us,), generator=digest))

    def uncompiled_work(self, candidates: Iterable[Candidate]) -> float:
        """Return the work of compiling all generated kernels among candidates, because nothing is compiled before they are known."""
        return compile_work(KernelRequest(each.fragment) for each in candidates if each.implementation.is_generated)



def write_reference(program: Program, implementation: Implementation, folder: Path, options: CompileOptions) -> None:
    """Write the standard model that defines the result of a compiled kernel, beside the kernel."""
    if options.export_graph is not None:
        # the constants of an opaque kernel are in its own model, so there are no weights to give to the reference
        plain = reference = program.graph
        if not implementation.is_opaque:
            plain = in_float32(reference_graph(in_bytes(program).graph))
            reference = rounded(plain, implementation.precision)
        (folder / REFERENCE_MODEL).write_bytes(options.export_graph(reference))
        if reference is not plain and len(products(program.kernels[0])) > 1:
            (folder / ROUNDS_INSIDE).touch()


def job_of(model: CostModel, candidate: Candidate, policy: MeasurePolicy = MeasurePolicy()) -> Job:
    """Return the job that measures a candidate."""
    seconds = policy.runs * model.estimate_us(candidate) / 1e6 + model.work(candidate.fragment).size_bytes / policy.judged_bytes_s
    engine: Engine = FROM_MEMORY if model.reads_memory(candidate.fragment) else "kernel"
    return Job(candidate.fragment, candidate.implementation, model.key(candidate)[0], engine, seconds)


def _calibration(target_lowering: Lowering) -> dict[str, tuple[Node, Implementation]]:
    def tensor(index: int, *shape: int) -> Node:
        return placeholder(index, TensorType("float32", shape))

    def add(*shape: int) -> Node:
        return apply("Add", tensor(0, *shape), tensor(1, *shape))

    weight = placeholder(1, TensorType("float32", (512, 512)), constant=True)
    return {
        "launch": (add(16), target_lowering.generated),
        "cache": (add(64, 1024), target_lowering.generated),
        "memory": (add(4096, 1024), target_lowering.generated),
        "contraction": (apply("MatMul", tensor(0, 512, 512), weight), target_lowering.contraction),
        "other": (apply("Exp", tensor(0, 64, 1024)), target_lowering.generated),
    }


def calibration_jobs(target: Target) -> dict[str, Job]:
    """Return the kernels that are timed to learn the device's speed, by name."""
    kernels = _calibration(lowering_for(target)).items()
    jobs = {name: Job(fragment, implementation, format_fragment(fragment)) for name, (fragment, implementation) in kernels}
    return jobs | {"call": replace(jobs["launch"], text=f"Session.run: {jobs['launch'].text}", engine="einsat")}


def recorded(database: Database, device: str, target: Target, job: Job) -> Record | None:
    """Return the record of a job's kernel with its current code."""
    return database.get(device, *job.key, lowering_for(target).code_digest(job.fragment, job.implementation))


def calibration_missing(database: Database, device: str, target: Target) -> list[Job]:
    """Return the standard kernels that ``calibrate`` has to measure."""
    return [job for job in calibration_jobs(target).values() if recorded(database, device, target, job) is None]


def calibration_programs(database: Database, device: str, target: Target, *, seed: int) -> list[Program]:
    """Return the programs of the standard kernels that ``calibrate`` has to measure."""
    missing = calibration_missing(database, device, target)
    return [kernel_program(job.fragment, job.implementation, seed=seed) for job in missing]


def calibrate(
    database: Database, device: str, target: Target, measurer: Measurer | None, *, has_time: Callable[[], bool] = lambda: True
) -> DeviceSpeed:
    """Return the device's speed from a few standard kernels, which are measured once and kept in the database like any other."""
    if (described := lowering_for(target).speed) is not None:
        return described
    jobs = calibration_jobs(target)
    if measurer is not None:
        for _ in range(2):  # a kernel that hung is tried again: all estimates rest on these
            missing = calibration_missing(database, device, target)
            measurer.measure(missing, lambda: math.inf if has_time() else 0.0, lambda text: None)
    times_us: dict[str, float] = {}
    amounts: dict[str, Work] = {}
    for name, job in jobs.items():
        record = recorded(database, device, target, job)
        if record is None or record.median_us is None:
            return DeviceSpeed()
        # The minimum is used because other processes only ever slow a kernel: after one slow reading, all kernels of its kind would look
        # slow and never be tried.
        times_us[name], amounts[name] = min(record.samples_us), work(job.fragment)
    launch_us = times_us["launch"]

    def rate(name: str, amount: float) -> float:
        return amount / max(times_us[name] - launch_us, 0.05 * times_us[name]) / 1e3

    memory_gigabytes_s = rate("memory", amounts["memory"].size_bytes)
    return DeviceSpeed(
        launch_us=launch_us,
        call_us=max(0.0, times_us["call"] - launch_us),
        cache_gigabytes_s=max(memory_gigabytes_s, rate("cache", amounts["cache"].size_bytes)),
        memory_gigabytes_s=memory_gigabytes_s,
        contraction_gigaflops_s=rate("contraction", amounts["contraction"].flops),
        other_gigaflops_s=rate("other", amounts["other"].flops),
    )
