"""Where jobs run: in processes of this machine, or on a Ray cluster.

A job is a call of a module's function with picklable arguments. Results come in the order of the jobs, each as soon as it and all before it
are complete. A job whose process or machine dies is run again elsewhere; an exception that a job raises is passed to the caller.
"""

from __future__ import annotations

import argparse
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

from runtime.cores import usable_cores
from runtime.errors import ExecutionError, LibraryMissing

Result = TypeVar("Result")
Arguments: TypeAlias = tuple[Any, ...]

MOST_ATTEMPTS = 3
"""The most attempts at a job whose process or machine dies each time."""
KINDS = "processes, processes:N, ray or ray:ADDRESS"


class JobLost(ExecutionError):
    """A job's process or machine died at every attempt."""


class Runner(ABC):
    """Runs jobs; a context manager that releases its processes."""

    @abstractmethod
    def run(self, function: Callable[..., Result], jobs: Sequence[Arguments]) -> Iterator[Result]:
        """Yield ``function(*arguments)`` of each job, in order; raises JobLost."""

    @abstractmethod
    def close(self) -> None:
        """End all jobs that are still running."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class Processes(Runner):
    """``count`` processes of this machine."""

    def __init__(self, count: int) -> None:
        self._count = max(1, count)
        self._pool: ProcessPoolExecutor | None = None

    def run(self, function: Callable[..., Result], jobs: Sequence[Arguments]) -> Iterator[Result]:
        attempts = [0] * len(jobs)
        futures: dict[int, Future[Result]] = {}

        def begin(first: int) -> None:
            """Start each job from ``first`` on that has no result, in a new pool."""
            self.close()
            pool = self._pool = ProcessPoolExecutor(min(self._count, len(jobs) - first), get_context("spawn"))
            for number in range(first, len(jobs)):
                if number not in futures or not _has_result(futures[number]):
                    futures[number] = _submitted(pool, function, jobs[number])

        try:
            for number, arguments in enumerate(jobs):
                if number == 0:
                    begin(0)
                while True:
                    try:
                        result = futures[number].result()
                        break
                    except BrokenProcessPool as error:  # every job of the pool is lost with one process, and any may be the reason
                        attempts[number] += 1
                        if attempts[number] == MOST_ATTEMPTS:
                            raise JobLost(f"its process died {MOST_ATTEMPTS} times", where=str(arguments)) from error
                        begin(number)
                yield result
        finally:
            self.close()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


def _submitted(pool: ProcessPoolExecutor, function: Callable[..., Result], arguments: Arguments) -> Future[Result]:
    try:
        return pool.submit(function, *arguments)
    except BrokenProcessPool as error:
        broken: Future[Result] = Future()
        broken.set_exception(error)
        return broken


def _has_result(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and not isinstance(future.exception(), BrokenProcessPool)


class Cluster(Runner):
    """The processes of a Ray cluster; ``address`` as Ray names it, '' for the cluster of this machine or one started for this run.

    The package is installed on each machine of the cluster, in the same version.
    """

    def __init__(self, address: str = "") -> None:
        self._ray = _import_ray()
        self._began = not self._ray.is_initialized()
        if self._began:
            try:
                self._ray.init(address=address or os.environ.get("RAY_ADDRESS"), log_to_driver=False, logging_level="ERROR")
            except ConnectionError as error:
                raise ExecutionError(f"there is no Ray cluster at {address}", fix="ray start --head, or --runner ray alone") from error

    def run(self, function: Callable[..., Result], jobs: Sequence[Arguments]) -> Iterator[Result]:
        remote = self._ray.remote(max_retries=MOST_ATTEMPTS - 1, num_cpus=1)(function)
        pending = [remote.remote(*arguments) for arguments in jobs]
        done = 0
        try:
            for arguments, reference in zip(jobs, pending, strict=True):
                done += 1
                yield self._result(reference, arguments)
        finally:
            for reference in pending[done:]:
                self._ray.cancel(reference)

    def run_on(self, node: str, function: Callable[..., Result], arguments: Arguments) -> Any:
        """Start a job on one machine of the cluster, alone there; return Ray's reference to its result."""
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        cores = next((each["Resources"]["CPU"] for each in self._ray.nodes() if each["NodeID"] == node and each["Alive"]), 1)
        return self._ray.remote(max_retries=0, num_cpus=cores, scheduling_strategy=strategy)(function).remote(*arguments)

    def first(self, references: Sequence[Any]) -> Any:
        """Wait for the first of some references and return it."""
        (ready, *_), _ = self._ray.wait(list(references), num_returns=1)
        return ready

    def result(self, reference: Any) -> Any:
        """Return a job's result; raises JobLost if its machine is gone."""
        return self._result(reference, ())

    def share(self, value: object) -> Any:
        """Put a value where each machine fetches it once; jobs that get it as an argument see the value."""
        return self._ray.put(value)

    def nodes(self) -> tuple[str, ...]:
        """Return the machines that are alive and run jobs."""
        return tuple(sorted(node["NodeID"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")))

    def _result(self, reference: Any, arguments: Arguments) -> Any:
        kinds = self._ray.exceptions
        deaths = kinds.WorkerCrashedError, kinds.NodeDiedError, kinds.ObjectLostError, kinds.RaySystemError, kinds.TaskUnschedulableError
        try:
            return self._ray.get(reference)
        except kinds.RayTaskError as error:
            raise error.cause from None
        except deaths as error:
            raise JobLost(f"what ran it died: {type(error).__name__}", where=str(arguments)) from error

    def close(self) -> None:
        if self._began:
            self._ray.shutdown()


def _import_ray() -> Any:
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # a job without a GPU leaves the environment as it is
    try:
        ray = importlib.import_module("ray")
        importlib.import_module("ray.util.scheduling_strategies")
    except ImportError as error:
        raise LibraryMissing("--runner ray needs Ray", fix="pip install 'einsat[ray]'") from error
    return ray


def parse_runner(text: str) -> str:
    """Return the text of a runner if it names one; raises an error that argparse reports as a wrong argument."""
    kind, _, argument = text.partition(":")
    if (kind == "processes" and (not argument or (argument.isdigit() and int(argument) > 0))) or kind == "ray":
        return text
    raise argparse.ArgumentTypeError(f"{text!r} names no runner: {KINDS}")


def open_runner(text: str) -> Runner:
    """Return the runner that a text names: `processes` of all usable cores, `processes:4`, `ray`, `ray:ADDRESS`."""
    kind, _, argument = parse_runner(text).partition(":")
    if kind == "ray":
        return Cluster(argument)
    return Processes(int(argument) if argument else usable_cores())
