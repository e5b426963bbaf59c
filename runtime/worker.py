"""The process that runs what is timed: if that crashes or hangs, only this process dies.

Started by :class:`runtime.measure.Worker`. One JSON object a line on standard input, one answer a line on standard
output; output of libraries goes to standard error.

    {"command": "load", "engine": "einsat", "path": ..., "threads": 2, "feeds": [...], "seed": 0, "inputs": "", "device": "cpu", "plan": ""}
    {"command": "time", "seconds": 0.05, "least": 5, "most": 1000, "error": 0.015}   -> {"samples_us": [...]}
    {"command": "settle", "seconds": 0.5}   answered when the threads that worked have gone to sleep
    {"command": "plans", "path": ..., "device": "cuda"}                                 -> {"plans": [...]}

A kernel's error on a GPU may spoil all later work in the same process. After such an error the answer has ``is_over``, and the process
ends.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from runtime.artefact import Artefact
from runtime.cores import settle
from runtime.devices import HOST, device
from runtime.errors import ArtefactError, LibraryMissing
from runtime.feeds import DRAWN, FeedSpec, random_feeds, random_weights
from runtime.input_file import Declared, read_inputs
from runtime.judge import ONLY_REFERENCE, ROUNDS_INSIDE, Expected, WrongResult, judge, reference_results
from runtime.measure import Engine
from runtime.opaque import FLUSH_ENTRY, open_session

if TYPE_CHECKING:
    from runtime import Session

RunMany: TypeAlias = Callable[[int], list[int]]
"""Runs n times and returns each run's nanoseconds."""
Draw: TypeAlias = Callable[[], dict[str, np.ndarray]]
"""Returns the inputs: drawn, or read from a file."""

PARENT_DEATH_SIGNAL = 1  # prctl(PR_SET_PDEATHSIG)
WARM_UP_RUNS = 1
REFERENCE = "ref"
PATIENCE = 4.0
"""The factor on the wanted seconds after which a slow kernel is run fewer times than wanted."""
DISTURBED = 0.5
"""The largest spread of a kernel that is not disturbed. A run that takes this much longer than the first quartile is disturbed, too."""
ELSEWHERE_SECONDS = 0.05
"""A sleep of this many seconds is long enough for the thread to be scheduled on another core."""
MOST_SECONDS_AGAIN = 3.0
"""The most seconds that a worker spends on repeated timings: on some machines all cores are hardware threads of one."""
ERROR_OF_ONE = 0.93
"""Standard error of the median of normal samples, in distances of their quartiles, times the root of their number."""
LEAST_TO_JUDGE = 8
"""The least number of samples in which slow ones are recognised."""


def die_with_parent() -> None:
    """Ask the system to end this process when its parent dies (Linux; elsewhere the end of input ends it)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)


def timed(call: Callable[[], object]) -> RunMany:
    """Time a Python call by the monotonic clock."""

    def run_many(count: int) -> list[int]:
        times_ns: list[int] = []
        for _ in range(count):
            start = time.perf_counter_ns()
            call()
            times_ns.append(time.perf_counter_ns() - start)
        return times_ns

    return run_many


def load_onnxruntime(path: str, threads: int, draw: Draw, *, arena: bool = True, keep_subnormals: bool = True) -> RunMany:
    """Open a model in onnxruntime with all its optimisations on; its arena keeps about twice the memory that is needed at once.

    Its sums of bytes are exact, as those of programs are: on some processors they would otherwise saturate, and take less time.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = arena
    if not keep_subnormals:
        options.add_session_config_entry(FLUSH_ENTRY, "1")  # for this thread too: it is the first session of the process
    session = open_session(path, options)
    feeds = draw()
    return timed(lambda: session.run(None, feeds))


def load_einsat(path: str, threads: int, draw: Draw) -> RunMany:
    """Open an artefact as a user does."""
    from runtime import Session

    session = Session(path, threads=threads)
    feeds = draw()
    return timed(lambda: session.run(None, feeds))


def load_kernel(path: str, threads: int, draw: Draw, *, weights_from_memory: bool = False, plan: str = "") -> RunMany:
    """Open an artefact, compare its result with its reference, and time inside the native dispatcher.

    ``plan`` is the library's plan to use, if not the library's own choice.
    """
    from runtime import Session

    artefact, weights = opened(Path(path))
    if plan:
        artefact = replace(artefact, plan=device(artefact.plan.device).by_library_plan(artefact.plan, plan))
    session = Session(artefact, threads=threads)
    _sessions.append(session)
    chosen = session.executable.implementations.values()
    slow = sorted({name for name in chosen if any(part.startswith(REFERENCE) for part in name.split("+"))})
    if slow:  # thousands of times slower: running it once may take longer than everything else together
        raise RuntimeError(f"{ONLY_REFERENCE} for this: {', '.join(slow)}")
    feeds = draw()
    results = session.run(None, feeds)
    if (summarised := Expected.read(Path(path))) is not None:
        summarised.judge(results, {**feeds, **weights})
    else:
        expected = reference_results(Path(path), feeds, weights, threads)
        for result, expected_result in zip(results, expected or (), strict=expected is not None):
            judge(result, expected_result, rounds_inside=(Path(path) / ROUNDS_INSIDE).exists())

    def run_many(count: int) -> list[int]:
        return session.run_native(count, evict=True, weights_from_memory=weights_from_memory)

    return run_many


def opened(folder: Path) -> tuple[Artefact, Mapping[str, np.ndarray]]:
    """Open a kernel's artefact; return it with its weights, in their own order of axes.

    Weights that are drawn anew on the measuring machine are not in it; a file says how to draw them.
    """
    artefact = Artefact.open(folder)
    if not (folder / DRAWN).exists():
        return artefact, artefact.weights
    drawn = json.loads((folder / DRAWN).read_text(encoding="utf-8"))
    weights = random_weights(_specs(drawn["weights"]), drawn["seed"])
    stored = {name: np.ascontiguousarray(weights[drawn_as].transpose(order)) for name, (drawn_as, order) in drawn["stored"].items()}
    return replace(artefact, weights={**weights, **stored}), weights


def plans(folder: Path, name: str) -> Sequence[str]:
    """Return the plans by which a library computes a kernel; none for other kernels."""
    from runtime import Session

    with Session(opened(folder)[0]) as session:
        return list(device(name).library_plans(session.executable.loaded))


_sessions: list[Session] = []
"""Loaded kernels, which are closed before the next one is loaded, because Python does not collect what they hold on a device."""


def close_sessions() -> None:
    """Free the memory and code of kernels that were loaded."""
    while _sessions:
        _sessions.pop().close()


ENGINES: Mapping[Engine, Callable[[str, int, Draw], RunMany]] = {
    "onnxruntime": load_onnxruntime,
    "onnxruntime without arena": partial(load_onnxruntime, arena=False),
    "onnxruntime, subnormals are zero": partial(load_onnxruntime, keep_subnormals=False),
    "onnxruntime without arena, subnormals are zero": partial(load_onnxruntime, arena=False, keep_subnormals=False),
    "einsat": load_einsat,
    "kernel": load_kernel,
    "kernel, weights from memory": partial(load_kernel, weights_from_memory=True),
}


KERNELS: tuple[Engine, ...] = ("kernel", "kernel, weights from memory")


def drawing(request: Mapping[str, Any]) -> Draw:
    """Return the function that makes a request's inputs; for kernels, which run for less time than drawing takes, parts are repeated."""
    specs = _specs(request["feeds"])
    if request.get("inputs"):
        declared = [Declared(spec.name, spec.dtype, spec.shape) for spec in specs]
        return partial(read_inputs, Path(request["inputs"]), declared)
    return partial(random_feeds, specs, request["seed"], repeated=request["engine"] in KERNELS)


def _specs(rows: Iterable[Sequence[Any]]) -> list[FeedSpec]:
    return [FeedSpec(name, dtype, tuple(shape), *fields) for name, dtype, shape, *fields in rows]


def sample(run_many: RunMany, *, seconds: float, least: int, most: int, error: float) -> list[float]:
    """Run until the standard error of the median is at most ``error`` of it, or time is up; return microseconds a run.

    If other processes keep disturbing, time is up later. Runs that were slow because of them are discarded.
    """
    samples_us: list[float] = []
    start = time.perf_counter()
    while len(samples_us) < most:
        missing = (least if len(samples_us) < least else most) - len(samples_us)
        samples_us += [nanoseconds / 1e3 for nanoseconds in run_many(max(1, min(len(samples_us), missing)))]
        spent_seconds = time.perf_counter() - start
        if len(samples_us) < least and spent_seconds < PATIENCE * seconds:
            continue
        is_disturbed = error > 0.0 and len(samples_us) >= 4 and _spread(samples_us) > DISTURBED
        if spent_seconds >= (PATIENCE * seconds if is_disturbed else seconds):
            break
        if len(samples_us) >= 2 * least and _error(samples_us) <= error:
            break
    return undisturbed(samples_us)


@dataclass
class Steady:
    """Repeats timings during which both threads ran on one core; a sleep between lets a virtual machine's cores move."""

    is_disturbed: Callable[[int], bool]
    left_seconds: float = MOST_SECONDS_AGAIN

    def sample(self, run_many: RunMany, threads: int, **effort: Any) -> list[float]:
        """Return the result of ``sample`` from the first time that the threads had cores of their own, or from the last."""
        while True:
            started = time.perf_counter()
            shared = self.is_disturbed(threads)
            samples_us = sample(run_many, **effort)
            if self.left_seconds <= 0.0 or not (shared or self.is_disturbed(threads)):
                return samples_us
            time.sleep(ELSEWHERE_SECONDS)
            self.left_seconds -= time.perf_counter() - started


def undisturbed(samples_us: list[float]) -> list[float]:
    """Return the samples without those that took much longer than the first quartile, because another process had a core then."""
    if len(samples_us) < LEAST_TO_JUDGE:
        return samples_us
    limit = (1.0 + DISTURBED) * statistics.quantiles(samples_us, n=4)[0]
    return [value for value in samples_us if value <= limit]


def _spread(samples_us: list[float]) -> float:
    """Return (third quartile - first quartile) / median."""
    first, middle, third = statistics.quantiles(samples_us, n=4)
    return (third - first) / middle if middle else 0.0


def _error(samples_us: list[float]) -> float:
    """Return (standard error of the median) / median, as if the samples were normal."""
    return ERROR_OF_ONE * _spread(samples_us) / math.sqrt(len(samples_us))


def main() -> None:
    """Answer requests until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent handles it
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    run_many: RunMany | None = None
    threads, steady = 1, Steady(lambda threads: False)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        reply: dict[str, Any] = {}
        name = request.get("device", HOST)
        try:
            match request.pop("command"):
                case "load":
                    run_many = None
                    close_sessions()
                    chosen = {"plan": request["plan"]} if request.get("plan") else {}
                    run_many = ENGINES[request["engine"]](request["path"], request["threads"], drawing(request), **chosen)
                    run_many(WARM_UP_RUNS)
                    threads, steady.is_disturbed = request["threads"], device(name).is_disturbed
                case "plans":
                    reply["plans"] = plans(Path(request["path"]), name)
                case "time":
                    if run_many is None:
                        raise RuntimeError("nothing is loaded")
                    reply["samples_us"] = steady.sample(run_many, threads, **request)
                case "settle":
                    settle(request["seconds"])
        except WrongResult as error:
            reply["wrong"] = str(error)
        except Exception as error:  # an exception of a kernel is the result of this measurement, not the end of this process
            reply["error"] = f"{type(error).__name__}: {error}"
            reply["is_over"] = name != HOST and not isinstance(error, (ArtefactError, LibraryMissing))
        print(json.dumps(reply), file=answers)
        if reply.get("is_over"):
            return


if __name__ == "__main__":
    main()
