"""Time plans and models in a separate process that may crash or hang without taking the caller along.

    with Worker() as worker:
        timing = measure(worker, Load("kernel", folder, feeds, threads=2))
        timing.status, timing.samples_us          # 'ok' | 'failed' | 'hung' | 'wrong'
"""

from __future__ import annotations

import json
import signal
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from types import TracebackType
from typing import Any, Literal, TypeAlias

from runtime.child import IMPORT_ROOT, Child
from runtime.devices import HOST
from runtime.errors import LibraryMissing
from runtime.feeds import FeedSpec

Engine: TypeAlias = Literal[
    "onnxruntime", "onnxruntime without arena", "onnxruntime, subnormals are zero", "onnxruntime without arena, subnormals are zero",
    "einsat", "kernel", "kernel, weights from memory",
]  # fmt: skip
FROM_MEMORY: Engine = "kernel, weights from memory"
"""The engine that times a kernel with its constants in no cache."""
WORKER_COMMAND = (sys.executable, "-m", "runtime.worker")
START_SECONDS = 60.0
MESSAGE_CHARACTERS = 500


@dataclass(frozen=True)
class Timing:
    """The result of a measurement: samples when 'ok', otherwise a message with the reason."""

    status: Literal["ok", "failed", "hung", "wrong"]
    samples_us: tuple[float, ...] = ()
    message: str = ""
    plans: tuple[str, ...] = ()
    """If requested, the other plans by which a library computes what was loaded."""

    @property
    def median_us(self) -> float:
        return statistics.median(self.samples_us) if self.samples_us else float("inf")

    @property
    def lacks_library(self) -> bool:
        """Return whether a library or a compiler is missing, which concerns this machine, not the kernel."""
        return self.status == "failed" and self.message.startswith(f"{LibraryMissing.__name__}:")


@dataclass(frozen=True)
class Load:
    """What to run: a model file for onnxruntime or an artefact folder, with random inputs drawn from ``feeds``.

    ``inputs``: a file with the inputs, instead of random ones.
    """

    engine: Engine
    path: str
    feeds: tuple[FeedSpec, ...]
    threads: int
    seed: int = 0
    inputs: str = ""
    device: str = HOST
    """The device that runs it."""
    plan: str = ""
    """The plan of a library's kernel; empty for the one that the library prefers."""


@dataclass(frozen=True)
class Effort:
    """How long to repeat: until the median's standard error is at most ``error`` of it, for at most ``seconds``; with 0, for
    ``seconds``."""

    seconds: float = 0.03
    least: int = 5
    most: int = 2000
    error: float = 0.015


class Worker:
    """A measuring process, started when first needed, and again after it was lost."""

    def __init__(
        self,
        *,
        time_out_seconds: float = 20.0,
        start_seconds: float = START_SECONDS,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.time_out_seconds = time_out_seconds
        self._start_seconds = start_seconds
        self._command = tuple(command or WORKER_COMMAND)
        self._environment = dict(environment or {})
        self._child: Child | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def start(self, threads: int) -> None:
        """Start the process and return at once."""
        if self._child is None:
            self._start(threads)

    def load(self, load: Load) -> Timing:
        """Load something and run it twice; the returned timing has no samples, only a status."""
        feeds = [astuple(spec) for spec in load.feeds]
        values = {"engine": load.engine, "path": load.path, "threads": load.threads}
        values |= {"feeds": feeds, "seed": load.seed, "inputs": load.inputs, "device": load.device, "plan": load.plan}
        return self._ask({"command": "load", **values}, self._patience_seconds, load.threads)

    def plans(self, load: Load) -> Timing:
        """List the plans by which a library computes a kernel; the returned timing has no samples."""
        return self._ask({"command": "plans", "path": load.path, "device": load.device}, self._patience_seconds, load.threads)

    @property
    def _patience_seconds(self) -> float:
        return self.time_out_seconds + (self._start_seconds if self._child is None else 0.0)

    def time(self, effort: Effort) -> Timing:
        """Time what was loaded."""
        values = {"seconds": effort.seconds, "least": effort.least, "most": effort.most, "error": effort.error}
        return self._ask({"command": "time", **values}, self.time_out_seconds + effort.seconds, 0)

    def settle(self, seconds: float) -> None:
        """Wait until the threads that worked sleep, for so many seconds at most, because they would disturb the next timing."""
        if self._child is not None:
            self._ask({"command": "settle", "seconds": seconds}, self.time_out_seconds + seconds, 0)

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None:
            child.close()

    def _start(self, threads: int) -> Child:
        environment = {"OMP_NUM_THREADS": str(threads), **self._environment}
        self._child = Child(self._command, environment, folder=IMPORT_ROOT)
        return self._child

    def _ask(self, request: Mapping[str, Any], seconds: float, threads: int) -> Timing:
        child = self._child or self._start(threads)
        try:
            child.send(json.dumps(request).encode() + b"\n")
            reply = json.loads(child.line(seconds))
        except (BrokenPipeError, EOFError):
            return self._lost(child)
        except TimeoutError:
            self.close()
            return Timing("hung", message=f"no answer to {request['command']!r} within {seconds:.0f} s: process killed")
        except BaseException:  # Ctrl-C: a late answer must not be read as that of the next request
            self.close()
            raise
        if reply.get("is_over"):
            self.close()
        if "wrong" in reply:
            return Timing("wrong", message=str(reply["wrong"])[:MESSAGE_CHARACTERS])
        if "error" in reply:
            return Timing("failed", message=str(reply["error"])[:MESSAGE_CHARACTERS])
        return Timing("ok", tuple(reply.get("samples_us", ())), plans=tuple(reply.get("plans", ())))

    def _lost(self, child: Child) -> Timing:
        code, output = child.ended()
        self.close()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        output = output[-MESSAGE_CHARACTERS:]
        return Timing("failed", message=f"the measuring process ended with {how}" + (f": {output}" if output else ""))


def measure(worker: Worker, load: Load, effort: Effort = Effort()) -> Timing:
    """Load and time once; all failures are reported in the returned timing."""
    loaded = worker.load(load)
    return worker.time(effort) if loaded.status == "ok" else loaded
